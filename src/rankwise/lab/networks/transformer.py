"""A small Vision Transformer (Dosovitskiy et al. 2021) and a small GPT (Radford et al. 2019).

Both use one transformer block (Vaswani et al. 2017), pre-norm as in GPT-2.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor, nn

from rankwise.errors import ConfigError
from rankwise.lab.networks.blocks import NetworkSpec

_STD = 0.02  # of GPT-2's initial weights
_VIT_HEADS, _VIT_LAYERS, _VIT_WIDTH = 3, 6, 192


class TransformerBlock(nn.Module):
    """Attention, then a two-layer perceptron, each after a norm and each added to its input.

    If causal, a token sees only itself and those before it. The dropout is that of the attention
    weights and of both outputs.

    Example:
        >>> import torch
        >>> TransformerBlock(24, heads=3, causal=True)(torch.zeros(2, 5, 24)).shape
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
        """(B, T, width) → (B, T, width)."""
        tokens = tokens + self.dropout(self.attention(self.norm1(tokens)))
        return tokens + self.dropout(self.mlp(self.norm2(tokens)))


class _Attention(nn.Module):
    """softmax(q·kᵀ/√d)·v in every head, then a projection of the concatenated heads."""

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
        qkv = self.qkv(tokens).view(B, T, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # each (B, heads, T, d)
        values = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=self.causal
        )
        return self.projection(values.transpose(1, 2).reshape(B, T, width))


class _Perceptron(nn.Module):
    """A linear layer to four times the width, GELU, and a linear layer back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, 4 * width)
        self.projection = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.projection(F.gelu(self.widen(tokens)))


class VisionTransformer(nn.Module):
    """Split an image into patches; every patch attends to every other.

    The classifier gets the mean over the patches; there is no class token. `spec.width` is ignored.
    """

    def __init__(self, spec: NetworkSpec, *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        patch = _choose_patch_size(spec.size)
        self.patches = nn.Conv2d(spec.channels, width, kernel_size=patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, (spec.size // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads=heads, causal=False) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, spec.classes)
        _initialise(self)
        nn.init.normal_(self.positions, std=_STD)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → logits (B, classes)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)  # (B, patches, width)
        tokens = self.norm(self.blocks(tokens + self.positions))
        return self.classifier(tokens.mean(dim=1))


def build_vit(spec: NetworkSpec) -> nn.Module:
    """Build a Vision Transformer of six blocks with three heads, 192 wide at width 1.

    An image of 32 × 32 is split into 8 × 8 patches.

    Example:
        >>> import torch
        >>> spec = NetworkSpec(10, channels=1, size=8, width=0.25)
        >>> build_vit(spec)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    # Fast attention kernels need heads whose size is a multiple of 8.
    width = spec.scale(_VIT_WIDTH, multiple=8 * _VIT_HEADS)
    return VisionTransformer(spec, width=width, layers=_VIT_LAYERS, heads=_VIT_HEADS)


class GPT(nn.Module):
    """Predict each next word from those before it.

    Example:
        >>> import torch
        >>> logits, state = GPT(50, layers=1, width=16, context=8)(torch.zeros(8, 2).long())
        >>> logits.shape, state
        (torch.Size([8, 2, 50]), None)
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        context: int = 128,
        dropout: float = 0.1,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(width, heads=heads, causal=True, dropout=dropout)
                for _ in range(layers)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.decoder.weight = self.embedding.weight
        _initialise(self)

    def forward(self, words: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Return the logits (T, B, vocabulary) after words (T, B), T at most the context, and None.

        A GPT has no state; the argument makes all language models callable alike.
        """
        if len(words) > self.context:
            raise ConfigError(
                f"Expected at most {self.context} words at once, the GPT's context, got "
                f"{len(words)}; build it with a longer context or pass fewer words."
            )
        positions = torch.arange(len(words), device=words.device)
        tokens = self.embedding(words.T) + self.positions(positions)  # (B, T, width)
        tokens = self.blocks(self.dropout(tokens))
        return self.decoder(self.norm(tokens)).transpose(0, 1), state


def _choose_patch_size(size: int) -> int:
    """Return the divisor nearest to an eighth of the image, but more than one pixel."""
    divisors = [side for side in range(2, size + 1) if size % side == 0]
    return min(divisors, key=lambda side: abs(side - size / 8))


def _initialise(network: nn.Module) -> None:
    """Initialise the weights as GPT-2 does.

    Matrices and embeddings are drawn from N(0, 0.02²), biases are 0. The last layer of what a
    block adds is scaled by 1/√(2·blocks), so that the sum does not grow with the blocks.
    """
    blocks = [module for module in network.modules() if isinstance(module, TransformerBlock)]
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for block in blocks:
        for projection in (block.attention.projection, block.mlp.projection):
            nn.init.normal_(projection.weight, std=_STD / math.sqrt(2 * len(blocks)))
