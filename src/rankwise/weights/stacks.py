"""One stored tensor that holds several matrices → a weight for each of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from rankwise.weights.tensor import Weight

_GATES = {3: "rzn", 4: "ifgo"}
_RECURRENT = re.compile(r"^(?P<head>.*\bweight_)[ih]h(?P<tail>(_l\d+(_reverse)?)?)$")
_FUSED = re.compile(r"(^|\.)(in_proj_weight|(qkv|c_attn|in_proj|Wqkv)\.weight)$")


def split_stacks(weights: Iterable[Weight]) -> list[Weight]:
    """Split recurrent layers into their gates, and stacked attention projections into q, k, v."""
    weights = list(weights)
    by_name = {weight.name: weight for weight in weights}
    return [piece for weight in weights for piece in _split_stack(weight, by_name)]


def _split_stack(weight: Weight, by_name: Mapping[str, Weight]) -> list[Weight]:
    axis, letters = _find_stack(weight, by_name)
    if not letters or weight.obstacle:
        return [weight]
    size = weight.shape[axis] // len(letters)
    shape = tuple(size if i == axis else side for i, side in enumerate(weight.shape))

    def piece(i: int, letter: str) -> Weight:
        return dataclasses.replace(
            weight,
            name=f"{weight.name}[{letter}]",
            shape=shape,
            load=lambda: weight.load().narrow(axis, i * size, size),
            identity=(weight.identity, letter) if weight.identity else None,
        )

    return [piece(i, letter) for i, letter in enumerate(letters)]


def _find_stack(weight: Weight, by_name: Mapping[str, Weight]) -> tuple[int, str]:
    """Return the axis along which a weight is stacked, and one letter for each block."""
    if len(weight.shape) != 2:
        return 0, ""
    rows, columns = weight.shape
    if _FUSED.search(weight.name):
        axis = 0 if rows == 3 * columns else 1
        return axis, "qkv" if weight.shape[axis] == 3 * weight.shape[1 - axis] else ""
    if match := _RECURRENT.match(weight.name):
        hidden = _find_hidden_size(match["head"], match["tail"], by_name)
        return 0, _GATES.get(rows // hidden, "") if hidden and rows % hidden == 0 else ""
    return 0, ""


def _find_hidden_size(head: str, tail: str, by_name: Mapping[str, Weight]) -> int:
    """Return a recurrent layer's width: `weight_hr`'s columns where the output is projected."""
    for sibling in ("hr", "hh"):
        weight = by_name.get(f"{head}{sibling}{tail}")
        if weight is not None and len(weight.shape) == 2:
            return weight.shape[1]
    return 0
