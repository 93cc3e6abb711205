"""Networks that look trained without training, for the tests of verdicts."""

import math

import numpy as np
import torch


def plant(*shape, rank=12, strength=2.0, seed=0):
    """A weight of a few strong directions and noise, as training leaves it."""
    generator = torch.Generator().manual_seed(seed)
    filters, inputs = shape[0], math.prod(shape[1:])
    left = torch.randn(filters, rank, generator=generator)
    right = torch.randn(rank, inputs, generator=generator)
    noise = torch.randn(filters, inputs, generator=generator)
    scale = strength / (filters * inputs) ** 0.25
    return (0.05 * (scale * left @ right + noise)).reshape(shape)


def plant_network(blocks=6, width=64):
    """The state dict of a healthy network: an embedding, blocks of four roles, a head."""
    network = {"embed.weight": plant(96, width, seed=1)}
    for block in range(blocks):
        for place, (role, shape) in enumerate(
            {
                "attn.q": (width, width),
                "attn.o": (width, width),
                "mlp.up": (2 * width, width),
                "conv": (width, 16, 3, 3),
            }.items()
        ):
            name, seed = f"blocks.{block}.{role}", 100 + 10 * block + place
            network[f"{name}.weight"] = plant(*shape, seed=seed)
            network[f"{name}.bias"] = 0.1 * torch.randn(
                shape[0], generator=torch.Generator().manual_seed(seed)
            )
    network["norm.running_var"] = torch.linspace(0.5, 2.0, width)
    network["head.weight"] = plant(20, width, seed=2)
    return network


def tune(network, change=0.01):
    """The network after a little more training: every tensor moves by a share of itself."""
    generator = torch.Generator().manual_seed(7)
    return {
        name: tensor + change * tensor.abs().mean() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in network.items()
    }


def randomise(tensor, seed=0):
    """Random weights of the shape and scale of a tensor, as before training."""
    generator = torch.Generator().manual_seed(seed)
    return float(tensor.std()) * torch.randn(tensor.shape, generator=generator)


def save_damaged(path, weights, name):
    """Save an .npz file in which the values of one tensor do not fit their checksum."""
    np.savez(path, **{name: tensor.numpy() for name, tensor in weights.items()})
    values = weights[name].numpy().tobytes()
    path.write_bytes(path.read_bytes().replace(values, bytes(len(values))))
    return path
