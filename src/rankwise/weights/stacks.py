"""One stored tensor that holds a matrix for each expert → a weight for each of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from rankwise.weights.kinds import find_non_weight, infer_kind
from rankwise.weights.orientation import find_output_axis
from rankwise.weights.tensor import Status, Weight

_CONSTANT = "a buffer: a constant that is not trained"
_VECTORS = "a vector for each index of its first axes"
_MAX_MATRICES = 8192  # in one tensor; more of them are no experts, and a small file may hold many


def resolve_tensors(weights: Sequence[Weight]) -> list[Weight]:
    """Mark the tensors that are no weight matrices, and unstack those that hold several.

    Example:
        >>> import torch
        >>> from rankwise.weights.module import describe_tensor
        >>> stack = describe_tensor("mlp.experts.down_proj", torch.zeros(4, 8, 16))
        >>> [(weight.name, weight.shape) for weight in resolve_tensors([stack])][:2]
        [('mlp.experts.down_proj[0]', (8, 16)), ('mlp.experts.down_proj[1]', (8, 16))]
    """
    by_name = {weight.name: weight for weight in weights}
    marked = (_mark_non_weight(weight) for weight in weights)
    return [piece for weight in marked for piece in _resolve(weight, by_name)]


def _mark_non_weight(weight: Weight) -> Weight:
    # A table of biases may be an embedding; what else is known of a tensor is right.
    is_known = weight.kind not in (None, "embedding", "constant")
    if weight.obstacle is not None or is_known or not weight.dtype.is_floating_point:
        return weight
    is_constant = weight.kind == "constant"
    reason = _CONSTANT if is_constant else find_non_weight(weight.name, weight.shape)
    if not reason:
        return weight
    return dataclasses.replace(weight, kind="other", obstacle=(Status.NOT_A_WEIGHT, reason))


def _resolve(weight: Weight, by_name: Mapping[str, Weight]) -> list[Weight]:
    if weight.obstacle is not None or not weight.dtype.is_floating_point or len(weight.shape) < 2:
        return [weight]
    kind = weight.kind or infer_kind(weight.name, weight.shape)
    outer = weight.shape[:-2]
    if outer and math.prod(outer) == 1 and kind in ("stack", "embedding"):
        weight, kind = _squeeze(weight), ""
    is_stack = kind == "stack"
    if len(weight.shape) == 2 or is_stack:
        weight = dataclasses.replace(weight, output_axis=find_output_axis(weight, by_name))
    return _unstack(weight) if is_stack else [weight]


def _squeeze(weight: Weight) -> Weight:
    """Return a matrix that is stored with leading sides of 1, as tables of positions are."""
    shape = weight.shape[-2:]
    return dataclasses.replace(
        weight,
        shape=shape,
        load=lambda: weight.load().reshape(shape),
        load_rows=None,
        squeezed=len(weight.shape) - 2,
        kind=None if weight.kind == "stack" else weight.kind,
    )


def _unstack(weight: Weight) -> list[Weight]:
    """Return a weight for each matrix of a stack."""
    *outer, rows, columns = weight.shape
    if min(rows, columns) < 2:
        obstacle = (Status.NOT_A_WEIGHT, _VECTORS)
        return [dataclasses.replace(weight, kind="other", obstacle=obstacle)]
    if (count := math.prod(outer)) > _MAX_MATRICES:
        obstacle = (Status.UNREADABLE, f"it holds {count} matrices, more than {_MAX_MATRICES}")
        return [dataclasses.replace(weight, obstacle=obstacle)]
    inner = math.prod(outer[1:])  # matrices for each index of the first axis
    load_slice = weight.load_slice if weight.load_rows is not None else _share_load(weight)

    def piece(i: int, place: tuple[int, ...]) -> Weight:
        def load() -> Tensor:
            block = load_slice(i // inner, 1)
            return block.reshape(inner, rows, columns)[i % inner]

        name = f"{weight.name}[{','.join(map(str, place))}]"
        return dataclasses.replace(
            weight,
            name=name,
            shape=(rows, columns),
            load=load,
            load_rows=None,
            identity=None if weight.identity is None else (weight.identity, i),
            kind=infer_kind(name, (rows, columns)),
            group=weight.name,
            parameters=None if weight.parameters is None else weight.parameters // math.prod(outer),
        )

    places = itertools.product(*map(range, outer))
    return [piece(i, place) for i, place in enumerate(places)]


def _share_load(weight: Weight) -> Callable[[int, int], Tensor]:
    """Return a loader of slices that loads the whole once and drops it after the last slice.

    Some sources can't load a slice alone: a compressed file, or a tensor in shards, which all
    processes must put together in one order.
    """
    whole: list[Tensor] = []
    left = weight.shape[0]

    def load_slice(start: int, count: int) -> Tensor:
        nonlocal left
        if not whole:
            whole.append(weight.load())
        block = whole[0].narrow(0, start, count)
        left -= count
        if left <= 0:
            whole.clear()
        return block

    return load_slice
