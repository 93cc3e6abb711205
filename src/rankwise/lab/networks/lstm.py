"""LSTM language models of one or more layers, with the sizes of Merity et al. (2018)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from rankwise.errors import ConfigError

__all__ = ["LSTMLanguageModel", "State"]

State = tuple[tuple[Tensor, Tensor], ...]  # h and c of each layer, each (1, B, size)

_RANGE = 0.1  # of the embedding's and the decoder's first weights


class LSTMLanguageModel(nn.Module):
    """Predicts each next word from those before it.

    Args:
        vocabulary: How many words there are.
        layers: How many LSTM layers.
        embedding: The size of a word's embedding.
        hidden: The size of an LSTM layer.
        dropout: Of the embeddings, between the layers and of the last one's output.
        tied: Whether the decoder's weight is the embedding's. The last layer then has the
            embedding's size.

    Raises:
        ConfigError: If there is no layer.

    Example:
        >>> import torch
        >>> from rankwise.lab.networks.lstm import LSTMLanguageModel
        >>> model = LSTMLanguageModel(50, layers=2, embedding=8, hidden=16)
        >>> logits, state = model(torch.zeros(5, 2).long())
        >>> logits.shape, len(state)
        (torch.Size([5, 2, 50]), 2)
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int,
        embedding: int = 400,
        hidden: int = 1150,
        dropout: float = 0.4,
        tied: bool = True,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ConfigError(f"Expected an LSTM of 1 layer or more, got layers={layers}.")
        last = embedding if tied else hidden
        sizes = [embedding, *[hidden] * (layers - 1), last]
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, embedding)
        # nn.LSTM itself draws its weights from ±1/√(its size).
        self.layers = nn.ModuleList(map(nn.LSTM, sizes[:-1], sizes[1:]))
        self.decoder = nn.Linear(last, vocabulary)
        if tied:
            self.decoder.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -_RANGE, _RANGE)
        nn.init.uniform_(self.decoder.weight, -_RANGE, _RANGE)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Logits of the words that follow.

        Args:
            words: int64 (T, B).
            state: What the call before gave, to go on from there; None to start from zeros.

        Returns:
            Logits (T, B, vocabulary), and the state after the last word. It still hangs on the
            graph: detach it before the next piece of text.
        """
        flow = self.dropout(self.embedding(words))  # (T, B, embedding)
        states = []
        for layer, before in zip(self.layers, self._each(state), strict=True):
            flow, after = layer(flow, before)
            flow = self.dropout(flow)
            states.append(after)
        return self.decoder(flow), tuple(states)

    def _each(self, state: State | None) -> Iterator[tuple[Tensor, Tensor] | None]:
        yield from state if state is not None else [None] * len(self.layers)
