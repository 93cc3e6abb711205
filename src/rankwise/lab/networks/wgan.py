"""A Wasserstein GAN (Arjovsky et al., 2017) of DCGAN's shape (Radford et al., 2016).

Clipped weights, or a gradient penalty (Gulrajani et al., 2017), keep the critic Lipschitz.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from rankwise.errors import ConfigError


class Generator(nn.Module):
    """Generate images from noise: 4×4 at first, doubled by each transposed convolution.

    The size is a power of two such as 32 or 64. The last layer has `width` input channels, each
    layer before it twice as many.

    Example:
        >>> import torch
        >>> Generator(size=32, width=4)(torch.randn(2, 100)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, *, size: int, channels: int = 3, latent: int = 100, width: int = 64) -> None:
        super().__init__()
        widths = _list_widths(size, width)[::-1]
        layers: list[nn.Module] = [nn.ConvTranspose2d(latent, widths[0], 4, bias=False)]
        for wider, narrower in pairwise(widths):
            layers += [nn.BatchNorm2d(wider), nn.ReLU()]
            layers += [nn.ConvTranspose2d(wider, narrower, 4, stride=2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        _initialise(self)

    def forward(self, latent: Tensor) -> Tensor:
        """Noise (B, latent) → images (B, channels, size, size) in −1 … 1."""
        return self.layers(latent[:, :, None, None])


class Critic(nn.Module):
    """Score images, higher for more real ones: the generator reversed.

    The gradient penalty is defined for each image by itself, so its critic must not use batch norm.

    Example:
        >>> import torch
        >>> Critic(size=32, width=4, norm=False)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2])
    """

    def __init__(self, *, size: int, channels: int = 3, width: int = 64, norm: bool) -> None:
        super().__init__()
        widths = _list_widths(size, width)
        layers = [nn.Conv2d(channels, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        for narrower, wider in pairwise(widths):
            layers += [nn.Conv2d(narrower, wider, 4, stride=2, padding=1, bias=not norm)]
            layers += [nn.BatchNorm2d(wider)] if norm else []
            layers += [nn.LeakyReLU(0.2)]
        layers += [nn.Conv2d(widths[-1], 1, 4)]
        self.layers = nn.Sequential(*layers)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, channels, size, size) in −1 … 1 → scores (B,)."""
        return self.layers(images).flatten()


def clip_weights(critic: nn.Module, bound: float = 0.01) -> None:
    """Clip every weight to ±bound, in place, so that the critic is Lipschitz.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(3, 1)
        >>> clip_weights(layer, bound=0.25)
        >>> bool(layer.weight.abs().max() <= 0.25)
        True
    """
    with torch.no_grad():
        for weight in critic.parameters():
            weight.clamp_(-bound, bound)


def gradient_penalty(critic: nn.Module, real: Tensor, fake: Tensor, epsilon: Tensor) -> Tensor:
    """Return E[(‖∇f(x̂)‖₂ − 1)²], the penalty for slopes other than 1 between real and fake.

    Each x̂ = ε·real + (1 − ε)·fake, with one random ε in 0 … 1 for each pair: (B,). No gradient
    flows back into the generator. The factor of the penalty (10 in the paper) is not applied.
    """
    epsilon = epsilon.to(real)[:, None, None, None]
    between = (epsilon * real + (1 - epsilon) * fake).detach().requires_grad_()
    # A score depends only on its own image, so the sum's gradient is each image's gradient.
    with torch.enable_grad():  # also when a line search evaluates the loss without gradients
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()


def _list_widths(size: int, width: int) -> list[int]:
    """Return the critic's channels at size/2, size/4, … 4."""
    if size < 8 or size & (size - 1):
        raise ConfigError(
            f"Expected images of a power of two and at least 8, such as 32 or 64, got {size}; "
            "resize them first."
        )
    return [width << i for i in range((size // 4).bit_length() - 1)]


def _initialise(network: nn.Module) -> None:
    """Initialise as DCGAN: weights from N(0, 0.02²), norms' from N(1, 0.02²), biases 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.BatchNorm2d):
            mean = 1.0 if isinstance(module, nn.BatchNorm2d) else 0.0
            nn.init.normal_(module.weight, mean, 0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
