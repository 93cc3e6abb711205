"""A small GPT (Radford et al., 2019): a language model of transformer blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankwise.errors import ConfigError
from rankwise.lab.networks.transformer import Block, initialise

__all__ = ["GPT"]


class GPT(nn.Module):
    """Predicts each next word from those before it.

    Args:
        vocabulary: How many words there are.
        layers: How many blocks.
        heads: How many attention heads a block has.
        width: The size of a word's embedding.
        context: How many words it can see at once.
        dropout: Of the embeddings and inside the blocks.
        tied: Whether the head's weight is the embedding's.

    Raises:
        ConfigError: If the heads can't share the width evenly.

    Example:
        >>> import torch
        >>> from rankwise.lab.networks.gpt import GPT
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
            *(Block(width, heads=heads, causal=True, dropout=dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.decoder.weight = self.embedding.weight
        initialise(self)

    def forward(self, words: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Logits of the words that follow.

        Args:
            words: int64 (T, B), T at most the context.
            state: None; a GPT carries nothing on. There so that all language models are called
                alike.

        Returns:
            Logits (T, B, vocabulary), and None.

        Raises:
            ConfigError: If there are more words than the context holds.
        """
        if len(words) > self.context:
            raise ConfigError(
                f"Expected at most {self.context} words at once, the GPT's context, got "
                f"{len(words)}; build it with a longer context or feed shorter pieces."
            )
        places = torch.arange(len(words), device=words.device)
        tokens = self.embedding(words.T) + self.positions(places)  # (B, T, width)
        tokens = self.blocks(self.dropout(tokens))
        return self.decoder(self.norm(tokens)).transpose(0, 1), state
