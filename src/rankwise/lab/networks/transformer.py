"""The transformer block that the Vision Transformer and the GPT share (Vaswani et al., 2017).

Pre-norm, as in GPT-2: what runs through the network is only ever added to.
"""

from __future__ import annotations

import math

import torch.nn.functional as F  # noqa: N812 - as everyone calls it
from torch import Tensor, nn

from rankwise.errors import ConfigError

__all__ = ["Block", "initialise"]

_STD = 0.02  # of GPT-2's weights


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each after a norm and each added to its input.

    Args:
        width: The size of a token.
        heads: How many heads share that width.
        causal: Whether a token sees only itself and those before it.
        dropout: Of the attention's weights and of what both halves add.

    Raises:
        ConfigError: If the heads can't share the width evenly.

    Example:
        >>> import torch
        >>> from rankwise.lab.networks.transformer import Block
        >>> Block(24, heads=3, causal=True)(torch.zeros(2, 5, 24)).shape
        torch.Size([2, 5, 24])
    """

    def __init__(self, width: int, *, heads: int, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, heads=heads, causal=causal, dropout=dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = _Perceptron(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T, width) to tokens of the same shape."""
        tokens = tokens + self.dropout(self.attention(self.norm1(tokens)))
        return tokens + self.dropout(self.mlp(self.norm2(tokens)))


class _Attention(nn.Module):
    """softmax(q·kᵀ/√d)·v in every head, and a projection of the heads side by side."""

    def __init__(self, width: int, *, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        if heads < 1 or width < 1 or width % heads:
            raise ConfigError(
                f"Expected a width that is a multiple of the {heads} heads, got {width}; "
                "choose another width or another number of heads."
            )
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        B, T, width = tokens.shape
        stacked = self.qkv(tokens).view(B, T, 3, self.heads, width // self.heads)
        q, k, v = stacked.permute(2, 0, 3, 1, 4).unbind()  # each (B, heads, T, d)
        seen = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=self.causal
        )
        return self.projection(seen.transpose(1, 2).reshape(B, T, width))


class _Perceptron(nn.Module):
    """Four times wider, GELU, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, 4 * width)
        self.projection = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.projection(F.gelu(self.widen(tokens)))


def initialise(network: nn.Module) -> None:
    """Draws the weights as GPT-2 does.

    Matrices and embeddings from N(0, 0.02²), biases 0. What a block adds is scaled by
    1/√(2·blocks), so that the sum over all blocks does not grow with their number.
    """
    blocks = [module for module in network.modules() if isinstance(module, Block)]
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for block in blocks:
        for projection in (block.attention.projection, block.mlp.projection):
            nn.init.normal_(projection.weight, std=_STD / math.sqrt(2 * len(blocks)))
