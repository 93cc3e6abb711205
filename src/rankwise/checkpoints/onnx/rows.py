"""Stored tensors of an ONNX model and their uses → a row for each weight, and for all the rest."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from rankwise.checkpoints.onnx.constants import Constant, Load
from rankwise.checkpoints.onnx.graph import Use, Uses
from rankwise.checkpoints.onnx.operators import Role
from rankwise.weights.kinds import infer_kind
from rankwise.weights.tensor import Status, Weight

_MAX_MATRICES = 4096  # in a stack: more are no experts or heads


class _LastStack:
    """The stack that was computed last: its matrices are loaded one after the other."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._number: int | None = None
        self._tensor: Tensor | None = None

    def get(self, number: int, constant: Constant) -> Tensor:
        tensor = self._tensor
        if tensor is None or self._number != number:
            self._number, self._tensor = None, None  # free the last one first
            tensor = constant.compute(self._load)
            self._number, self._tensor = number, tensor
        return tensor


def build_rows(stored: Sequence[Weight], uses: Uses, load: Load) -> list[Weight]:
    """Return a row for every weight, and one for each stored tensor that is none.

    Args:
        stored: A row for each stored tensor, as its name and shape describe it.
        uses: What the graph uses them for, by their places.
        load: Loads a stored tensor, given its place.
    """
    last = _LastStack(load)
    rows: list[Weight] = []
    for place, weight in enumerate(stored):
        use = uses.weights.get(place)
        if use is not None:
            rows += _build_weights(place, stored, use, load, last)
        elif place in uses.parts:
            whole = stored[uses.parts[place]].name
            rows.append(dataclasses.replace(weight, obstacle=(Status.MERGED, f"part of {whole}")))
        elif place in uses.unknown or not _looks_like_weight(weight):
            rows.append(weight)
        else:
            reason = uses.others.get(place, "not used by the graph")
            rows.append(dataclasses.replace(weight, obstacle=(Status.NOT_A_WEIGHT, reason)))
    return rows


def _looks_like_weight(weight: Weight) -> bool:
    is_floating = weight.dtype.is_floating_point and weight.obstacle is None
    return is_floating and len(weight.shape) > 1


def _build_weights(
    place: int, stored: Sequence[Weight], use: Use, load: Load, last: _LastStack
) -> list[Weight]:
    weight, constant, role = stored[place], use.constant, use.role
    if role is None:
        if not _looks_like_weight(weight):
            return [weight]
        note = f"the graph computes a weight from it by {constant.unknown}, which is not followed"
        return [dataclasses.replace(weight, note=note)]
    sources = [stored[source].obstacle for source in constant.sources]
    # Types of 4 bits have no row of their own, but their codes can be read.
    broken = next((o for o in sources if o is not None and o[0] is not Status.QUANTISED), None)
    if broken is not None:
        if weight.obstacle is None and not weight.dtype.is_floating_point:
            broken = (Status.QUANTISED, f"quantised, not measured: {broken[1]}")
        return [dataclasses.replace(weight, obstacle=broken)]
    if use.obstacle:
        obstacle = (Status.QUANTISED, f"quantised, not measured: {use.obstacle}")
        return [dataclasses.replace(weight, kind=role.kind, obstacle=obstacle)]
    inferred = infer_kind(weight.name, weight.shape)
    if role.kind == "linear" and inferred in ("recurrent", "attention"):  # a cell written out
        role = role._replace(kind=inferred)
    if constant.transpose_of is not None:  # shown as it is stored
        constant, role = constant.transpose_of, role._replace(output_axis=1 - role.output_axis)
    if role.stack:
        return _split_stack(place, weight, constant, role, last)
    return [_describe(weight, constant, role, load)]


def _describe(weight: Weight, constant: Constant, role: Role, load: Load) -> Weight:
    row = dataclasses.replace(
        weight, kind=role.kind, output_axis=role.output_axis, gates=role.gates
    )
    if constant.operators == 0:
        return row

    return dataclasses.replace(
        row,
        shape=constant.shape,
        dtype=constant.dtype,
        stored=constant.stored,
        load=partial(constant.compute, load),
        load_rows=None,
        obstacle=None,
    )


def _split_stack(
    place: int, weight: Weight, constant: Constant, role: Role, last: _LastStack
) -> list[Weight]:
    """Return a row for each matrix of a stack; a stack of one keeps its name."""
    sides, shape = constant.shape[:-2], constant.shape[-2:]
    count = math.prod(sides)
    if count > _MAX_MATRICES:
        obstacle = (Status.NOT_A_WEIGHT, f"a stack of {count} matrices, too many to be weights")
        return [dataclasses.replace(weight, kind=role.kind, obstacle=obstacle)]
    is_plain = constant.operators == 0 and len(sides) == 1

    def make_load(index: int) -> Callable[[], Tensor]:
        if is_plain and weight.load_rows is not None:
            return lambda: weight.load_slice(index, 1)[0]
        return lambda: last.get(place, constant).reshape(count, *shape)[index]

    return [
        dataclasses.replace(
            weight,
            name=weight.name + label,
            shape=shape,
            dtype=constant.dtype,
            stored=constant.stored,
            load=make_load(index),
            load_rows=None,
            kind=role.kind,
            output_axis=role.output_axis,
            gates=role.gates,
            group=weight.name if role.stack == "matrices" and count > 1 else None,
            obstacle=None,
        )
        for index, label in enumerate(_list_labels(sides, role))
    ]


def _list_labels(sides: tuple[int, ...], role: Role) -> list[str]:
    if math.prod(sides) == 1:
        return [""]
    if role.stack == "directions" and sides == (2,):
        return ["[forward]", "[reverse]"]
    indices = itertools.product(*(range(side) for side in sides))
    return [f"[{','.join(map(str, index))}]" for index in indices]
