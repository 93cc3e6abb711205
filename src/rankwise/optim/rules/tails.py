"""What the rules by Hill exponents share: the linear map, and which layer is what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from rankwise.errors import ArgumentError
from rankwise.optim.rules.rule import LayerReading

_NUMBER = re.compile(r"\d+")


def map_linearly(values: Mapping[str, float], low: float, high: float) -> dict[str, float]:
    """Map values from [their minimum, their maximum] to [low, high]; to 1 where all are equal.

    Example:
        >>> map_linearly({"a": 2.0, "b": 3.0, "c": 4.0}, 0.5, 1.5)
        {'a': 0.5, 'b': 1.0, 'c': 1.5}
    """
    least, most = min(values.values(), default=0.0), max(values.values(), default=0.0)
    if least == most:
        return dict.fromkeys(values, 1.0)
    shares = {name: (value - least) / (most - least) for name, value in values.items()}
    return {name: (1 - share) * low + share * high for name, share in shares.items()}


def map_exponents(readings: Iterable[LayerReading], low: float, high: float) -> dict[str, float]:
    """Return multipliers by Hill exponent: `low` for the heaviest tail; 1 for a layer without α."""
    readings = list(readings)
    values = {r.name: r.value for r in readings if r.value is not None}
    undefined = [reading.name for reading in readings if reading.outcome == "undefined"]
    return {**map_linearly(values, low, high), **dict.fromkeys(undefined, 1.0)}


def matches(layer: LayerReading, globs: Sequence[str]) -> bool:
    """Return whether a layer's name or kind matches one of the globs."""
    return any(fnmatchcase(text, glob) for text in (layer.name, layer.kind) for glob in globs)


def find_head(layers: Sequence[LayerReading]) -> str | None:
    """Return the name of the layer that computes the network's output, if it can be told.

    That is the last layer, unless another one has its shape and, but for the numbers, its name:
    then it belongs to the last of many blocks, and the output is tied to the embedding.

    Example:
        >>> last, block = ("lm_head", "blocks.0.mlp"), ("blocks.0.mlp", "blocks.1.mlp")
        >>> [find_head([LayerReading(n, shape=(4, 4)) for n in names]) for names in (last, block)]
        ['blocks.0.mlp', None]
    """
    weights = [layer for layer in layers if layer.shape]
    if not weights:
        return None
    *others, last = weights
    pattern = _NUMBER.sub("#", last.name)
    has_sibling = any(
        layer.shape == last.shape and _NUMBER.sub("#", layer.name) == pattern for layer in others
    )
    return None if has_sibling else last.name


def check_range(low: float, high: float) -> None:
    """Raise unless 0 < low ≤ high, both finite."""
    if not 0.0 < low <= high < float("inf"):
        raise ArgumentError(f"Expected 0 < lowest ≤ highest multiplier, got {low!r} and {high!r}.")
