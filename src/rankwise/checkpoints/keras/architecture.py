"""The configuration of a Keras model → a tree of its layers: their classes, names and options.

It is read as text: nothing in it is looked up or run, and functions that Keras pickles into it
(those of Lambda layers) stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

_MAX_LAYERS = 20_000
_MAX_DEPTH = 32
# Options that describe something else in the way in which layers are described.
_OTHERS = re.compile(
    r".*(_initializer|_regularizer|_constraint|activation|dtype|_policy|optimizer)"
)
CONTAINERS = ("layers", "_layer_checkpoint_dependencies", "cells")  # in paths of Keras 3
_MAX_SLASHES = 8
_WRAPPED = ("layer", "forward_layer")


@dataclass(slots=True)
class Layer:
    """A layer or model, and the layers in it."""

    class_name: str
    name: str
    options: Mapping[str, object]
    place: int = 0  # in the order of the configuration, which is that of the network
    by_name: dict[str, Layer] = field(default_factory=dict)
    # Keras 3 stores layers under their class and a number, or the option that holds them.
    by_key: dict[str, Layer] = field(default_factory=dict)
    below: dict[str, Layer] | None = None

    def find(self, steps: tuple[str, ...], *, by_key: bool = False) -> tuple[Layer, int]:
        """Return the innermost layer that a path leads to, and how many steps lead there."""
        layer, found, place = self, 0, 0
        while place < len(steps):
            inner, end = layer._step(steps, place, by_key=by_key)
            if inner is not None:
                layer, found, place = inner, end, end
            elif steps[place] in CONTAINERS:
                place += 1
            else:
                break
        return layer, found

    def _step(
        self, steps: tuple[str, ...], start: int, *, by_key: bool
    ) -> tuple[Layer | None, int]:
        """Return the layer that the next steps name; a layer's own name may contain slashes."""
        for layer in (self, self.wrapped):
            for end in range(min(len(steps), start + _MAX_SLASHES), start, -1):
                step = "/".join(steps[start:end])
                inner = layer.by_key.get(step) if by_key else None
                inner = inner or layer.by_name.get(step) or layer._below().get(step)
                if inner is not None:
                    return inner, end
        return None, start

    def _below(self) -> dict[str, Layer]:
        """Return the layers at any depth: Keras 2 gives no path to those of a model in a model."""
        if self.below is None:
            self.below = {}
            for inner in self.by_name.values():
                for name, layer in (*inner.by_name.items(), *inner._below().items()):
                    self.below.setdefault(name, layer)
        return self.below

    @property
    def wrapped(self) -> Layer:
        """The layer that a wrapper such as Bidirectional applies, else the layer itself."""
        layer = self
        for _ in range(_MAX_DEPTH):
            inner = next((layer.by_key[key] for key in _WRAPPED if key in layer.by_key), None)
            if inner is None:
                return layer
            layer = inner
        return layer


def parse_model(config: Mapping[str, object]) -> Layer | None:
    """Return the layers that a model's configuration describes; None if it describes none.

    Example:
        >>> dense = {"class_name": "Dense", "config": {"name": "head", "units": 4}}
        >>> model = {"class_name": "Sequential", "config": {"name": "net", "layers": [dense]}}
        >>> layer, steps = parse_model(model).find(("head", "kernel"))
        >>> layer.class_name, steps
        ('Dense', 1)
    """
    return _Parser().parse(config, 0) if _is_layer(config) else None


def to_snake_case(name: str) -> str:
    """Return the name of a class as Keras uses it in names of layers: "conv2d_transpose"."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


class _Parser:
    def __init__(self) -> None:
        self._count = 0

    def parse(self, value: Mapping[str, object], depth: int) -> Layer:
        options = value["config"]
        if isinstance(options, list):  # a Sequential model of before Keras 2.3
            options = {"layers": options}
        assert isinstance(options, Mapping)  # noqa: S101 - as _is_layer has seen
        name = options.get("name", value.get("name"))
        self._count += 1
        layer = Layer(
            str(value["class_name"]).rpartition(">")[2],
            name if isinstance(name, str) else "",
            options,
            self._count,
        )
        if depth < _MAX_DEPTH:
            for key, inner in self._list_inner(options, depth):
                layer.by_key.setdefault(key, inner)
                if inner.name:
                    layer.by_name.setdefault(inner.name, inner)
        return layer

    def _list_inner(self, options: Mapping[str, object], depth: int) -> Iterator[tuple[str, Layer]]:
        for key, value in options.items():
            if _OTHERS.fullmatch(key):
                continue
            if _is_layer(value) and self._count < _MAX_LAYERS:
                yield key, self.parse(value, depth + 1)
            counts: dict[str, int] = {}
            for item in value if isinstance(value, list) else ():
                if _is_layer(item) and self._count < _MAX_LAYERS:
                    inner = self.parse(item, depth + 1)
                    snake = to_snake_case(inner.class_name)
                    count = counts.get(snake, 0)
                    counts[snake] = count + 1
                    yield (f"{snake}_{count}" if count else snake), inner


def _is_layer(value: object) -> TypeGuard[Mapping[str, object]]:
    match value:
        case {"class_name": str(), "config": dict() | list()}:
            return True
    return False
