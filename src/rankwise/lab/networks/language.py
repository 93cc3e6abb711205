"""The language models by name: LSTMs with the sizes of Merity et al. (2018), and a small GPT."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypedDict

from torch import Tensor, nn

from rankwise.errors import ConfigError
from rankwise.lab.networks.transformer import GPT

LSTMState = tuple[tuple[Tensor, Tensor], ...]  # h and c of each layer, each (1, B, size)

_LSTM_EMBEDDING, _LSTM_HIDDEN = 400, 1150
_LSTM_RANGE = 0.1  # of the initial weights of embedding and decoder
_GPT_WIDTH, _GPT_HEADS = 128, 4


class LSTMLanguageModel(nn.Module):
    """Predict each next word from those before it.

    The dropout is that of the embeddings, between the layers and of the last output. Where the
    decoder is tied to the embedding's weight, the last layer has the embedding's size.

    Example:
        >>> import torch
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
        embedding: int = _LSTM_EMBEDDING,
        hidden: int = _LSTM_HIDDEN,
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
        # nn.LSTM itself draws its weights from ±1/√size.
        self.layers = nn.ModuleList(map(nn.LSTM, sizes[:-1], sizes[1:]))
        self.decoder = nn.Linear(last, vocabulary)
        if tied:
            self.decoder.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -_LSTM_RANGE, _LSTM_RANGE)
        nn.init.uniform_(self.decoder.weight, -_LSTM_RANGE, _LSTM_RANGE)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        """Return the logits (T, B, vocabulary) after words (T, B), and the state at their end.

        The state is part of the graph: detach it before the next piece of text.
        """
        states = state if state is not None else [None] * len(self.layers)
        outputs = self.dropout(self.embedding(words))  # (T, B, embedding)
        next_states = []
        for layer, layer_state in zip(self.layers, states, strict=True):
            outputs, next_state = layer(outputs, layer_state)
            outputs = self.dropout(outputs)
            next_states.append(next_state)
        return self.decoder(outputs), tuple(next_states)


class _Options(TypedDict, total=False):
    dropout: float
    tied: bool


def _build_lstm(
    vocabulary: int,
    width: float,
    context: int,  # noqa: ARG001 - an LSTM's memory has no limit
    options: _Options,
    *,
    layers: int,
) -> nn.Module:
    embedding, hidden = _scale(_LSTM_EMBEDDING, width), _scale(_LSTM_HIDDEN, width)
    return LSTMLanguageModel(
        vocabulary, layers=layers, embedding=embedding, hidden=hidden, **options
    )


def _build_gpt(vocabulary: int, width: float, context: int, options: _Options) -> nn.Module:
    size = _scale(_GPT_WIDTH, width, multiple=_GPT_HEADS)
    return GPT(vocabulary, heads=_GPT_HEADS, width=size, context=context, **options)


LANGUAGE_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "lstm1": partial(_build_lstm, layers=1),
    "lstm2": partial(_build_lstm, layers=2),
    "lstm3": partial(_build_lstm, layers=3),
    "gpt": _build_gpt,
}


def build_language_network(
    name: str,
    vocabulary: int,
    *,
    width: float = 1.0,
    dropout: float | None = None,
    tied: bool = True,
    context: int = 70,
) -> nn.Module:
    """Build one of LANGUAGE_NETWORKS; `width` is a factor for embedding and layers.

    All are called alike: `logits, state = model(words, state)`, with words (T, B) and logits (T, B,
    vocabulary). Without a dropout, an LSTM has 0.4 and a GPT 0.1. A GPT takes at most `context`
    words in one call; an LSTM has no such limit.

    Example:
        >>> model = build_language_network("lstm2", vocabulary=100, width=0.1)
        >>> model.embedding
        Embedding(100, 40)
    """
    if name not in LANGUAGE_NETWORKS:
        known = ", ".join(LANGUAGE_NETWORKS)
        raise ConfigError(f"Expected a language network, one of {known}; got {name!r}.")
    if vocabulary < 1 or context < 1:
        raise ConfigError(
            "Expected a vocabulary and a context of 1 word or more, got "
            f"{vocabulary} and {context}."
        )
    if not 0 < width < math.inf:
        raise ConfigError(f"Expected a width above 0 (1 for the usual sizes), got {width!r}.")
    if dropout is not None and not 0 <= dropout < 1:
        raise ConfigError(f"Expected a dropout of at least 0 and below 1, got {dropout!r}.")
    options = _Options(tied=tied)
    if dropout is not None:
        options["dropout"] = dropout
    return LANGUAGE_NETWORKS[name](vocabulary, width, context, options)


def _scale(size: int, width: float, multiple: int = 1) -> int:
    """Return the size times the width factor, rounded to a positive multiple."""
    return multiple * max(1, round(size * width / multiple))
