"""Several stored tensors that make one weight: what every rule for them shares."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rankwise.weights.tensor import Status, Weight

if TYPE_CHECKING:
    from rankwise.weights.adapter_scale import AlphaTable

Parts = tuple[Weight, ...]
Config = Mapping[str, object]


class Context(NamedTuple):
    """What a rule may look at, apart from the tensor itself."""

    by_name: Mapping[str, Weight]  # all tensors of the network
    config: Config  # the model's configuration, empty where there is none
    alphas: AlphaTable | None = None  # of an adapter, where its configuration is known


class Whole(NamedTuple):
    """A weight, and the stored tensors that it is computed from."""

    weight: Weight
    parts: Parts


# Returns the weight that a tensor is a part of; None if the rule does not apply.
Rule = Callable[[Weight, Context], Whole | None]


def join_parts(name: str, parts: Parts, join: Callable[..., Tensor], **changes: object) -> Weight:
    """Return a weight that is computed from its parts on loading; the first gives its shape."""
    first = parts[0]
    fields: dict[str, object] = {
        "name": name,
        "load": lambda: join(*(part.load().detach().to(torch.float64) for part in parts)),
        "identity": tuple(part.identity for part in parts) if first.identity else None,
        "parameters": sum(math.prod(part.shape) for part in parts),
        "collective": any(part.collective for part in parts),
        "obstacle": next((part.obstacle for part in parts if part.obstacle), _find_complex(parts)),
    }
    return dataclasses.replace(first, **{**fields, **changes})  # type: ignore[arg-type]


def _find_complex(parts: Parts) -> tuple[Status, str] | None:
    is_complex = any(part.dtype.is_complex for part in parts)
    return (Status.COMPLEX, "complex numbers are not probed") if is_complex else None
