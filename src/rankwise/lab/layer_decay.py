"""The depth of every parameter of a transformer, for rates that fall from block to block."""

from __future__ import annotations

from torch import nn

from rankwise.errors import ConfigError

# What blocks of the lab's networks, timm, torchvision and transformers call their attention.
_ATTENTION = ("attention", "attn", "self_attention", "self_attn")


def list_depths(network: nn.Module) -> dict[str, int]:
    """Return the depth of every parameter, by name.

    It is 1 … n in the n blocks, 0 for what the network holds before them, such as embeddings and
    positions, and n + 1 for what comes after them, such as the last norm and the classifier. A
    matrix of words that is tied to the output counts as an embedding.

    Example:
        >>> from rankwise.lab.networks.transformer import GPT
        >>> depths = list_depths(GPT(50, layers=2, width=16))
        >>> depths["embedding.weight"], depths["blocks.1.norm1.weight"], depths["norm.weight"]
        (0, 2, 3)
    """
    prefix, blocks = _find_blocks(network)
    numbers = {name: number for number, (name, _) in enumerate(blocks.named_children(), 1)}
    depths, after = {}, 0
    for name, _ in network.named_parameters():
        if name.startswith(prefix):
            depths[name] = numbers[name[len(prefix) :].partition(".")[0]]
            after = len(numbers) + 1
        else:
            depths[name] = after
    return depths


def _find_blocks(network: nn.Module) -> tuple[str, nn.Module]:
    """Return the one container of blocks with attention, and the prefix of its parameters."""
    found = [
        (f"{name}." if name else "", module)
        for name, module in network.named_modules()
        if isinstance(module, nn.Sequential | nn.ModuleList)
        and len(module)
        and all(_has_attention(child) for child in module)
    ]
    if len(found) != 1:
        raise ConfigError(
            "Expected a transformer with one sequence of blocks, such as vit or gpt, for "
            f"adamw-layer-decay, whose rates follow the number of a block; got {len(found)} such "
            "sequences. Use adamw instead."
        )
    return found[0]


def _has_attention(module: nn.Module) -> bool:
    return any(hasattr(module, name) for name in _ATTENTION)
