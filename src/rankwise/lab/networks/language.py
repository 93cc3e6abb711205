"""The language models by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypedDict

from torch import nn

from rankwise.errors import ConfigError
from rankwise.lab.networks.gpt import GPT
from rankwise.lab.networks.lstm import LSTMLanguageModel

__all__ = ["LANGUAGE_NETWORKS", "build_language"]

_EMBEDDING, _HIDDEN = 400, 1150
_GPT_WIDTH, _GPT_HEADS = 128, 4


class _Options(TypedDict, total=False):
    dropout: float
    tied: bool


def _lstm(
    vocabulary: int,
    width: float,
    context: int,  # noqa: ARG001 - an LSTM remembers without limit
    options: _Options,
    *,
    layers: int,
) -> nn.Module:
    embedding, hidden = _scaled(_EMBEDDING, width), _scaled(_HIDDEN, width)
    return LSTMLanguageModel(
        vocabulary, layers=layers, embedding=embedding, hidden=hidden, **options
    )


def _gpt(vocabulary: int, width: float, context: int, options: _Options) -> nn.Module:
    size = _scaled(_GPT_WIDTH, width, multiple=_GPT_HEADS)
    return GPT(vocabulary, heads=_GPT_HEADS, width=size, context=context, **options)


LANGUAGE_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "lstm1": partial(_lstm, layers=1),
    "lstm2": partial(_lstm, layers=2),
    "lstm3": partial(_lstm, layers=3),
    "gpt": _gpt,
}


def build_language(
    name: str,
    vocabulary: int,
    *,
    width: float = 1.0,
    dropout: float | None = None,
    tied: bool = True,
    context: int = 70,
) -> nn.Module:
    """Builds a language model.

    All are called alike: `logits, state = model(words, state)`, with words (T, B) and logits
    (T, B, vocabulary).

    Args:
        name: One of LANGUAGE_NETWORKS.
        vocabulary: How many words there are.
        width: Scales the sizes of the embedding and of the layers.
        dropout: None for the network's own: 0.4 for an LSTM, 0.1 for a GPT.
        tied: Whether the decoder's weight is the embedding's.
        context: How many words a GPT can see at once; an LSTM has no such limit.

    Raises:
        ConfigError: If there is no such network, or an option is out of its range.

    Example:
        >>> from rankwise.lab.networks.language import build_language
        >>> model = build_language("lstm2", vocabulary=100, width=0.1)
        >>> model.embedding
        Embedding(100, 40)
    """
    if name not in LANGUAGE_NETWORKS:
        known = ", ".join(LANGUAGE_NETWORKS)
        raise ConfigError(f"Expected a language network, one of {known}; got {name!r}.")
    _check(vocabulary, width, dropout, context)
    options = _Options(tied=tied)
    if dropout is not None:
        options["dropout"] = dropout
    return LANGUAGE_NETWORKS[name](vocabulary, width, context, options)


def _check(vocabulary: int, width: float, dropout: float | None, context: int) -> None:
    if vocabulary < 1 or context < 1:
        raise ConfigError(
            "Expected a vocabulary and a context of 1 word or more, got "
            f"{vocabulary} and {context}."
        )
    if not 0 < width < math.inf:
        raise ConfigError(f"Expected a width above 0 (1 for the usual sizes), got {width!r}.")
    if dropout is not None and not 0 <= dropout < 1:
        raise ConfigError(f"Expected a dropout of at least 0 and below 1, got {dropout!r}.")


def _scaled(size: int, width: float, multiple: int = 1) -> int:
    """The size times the width factor, rounded to a multiple that is not 0."""
    return multiple * max(1, round(size * width / multiple))
