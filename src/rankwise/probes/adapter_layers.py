"""An adapter → what each of its layers changes: used rank, first direction, scale, zero factors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rankwise.errors import NotFiniteError
from rankwise.numerics.thin_product import find_least_rank
from rankwise.weights.tensor import LOAD_ERRORS, Status, Weight

ADAPTER_KINDS = ("lora", "loha", "lokr")  # weights that are products of an adapter's factors
DEFAULT_ERROR = 0.01  # of ‖ΔW‖², that a rank may lose and still count as all that is used


@dataclass(frozen=True, slots=True)
class AdapterLayer:
    """What an adapter changes in one layer; ΔW is the product of its factors times the scale.

    Attributes:
        name: Of the product, as a probe names it.
        module: Of the layer, as it is stored.
        kind: "lora", "loha" or "lokr".
        shape: Of ΔW, outputs × inputs.
        status: PROBED; NOT_FINITE or UNREADABLE, where there are no figures.
        reason: Why there are none.
        rank: r, which is stored; None for other kinds than "lora".
        used_rank: The least rank whose error is at most a share of ‖ΔW‖².
        first_share: s₁²/‖ΔW‖², what the first direction carries.
        stable_rank: ‖ΔW‖²/s₁².
        norm: ‖ΔW‖.
        scale: α/r, or α/√r for rsLoRA; None for other kinds, and where α is not known and so taken
            for r.
        zero_factors: Those of A and B that hold nothing but zeros.
        nbytes: The size of its factors.
    """

    name: str
    module: str
    kind: str
    shape: tuple[int, ...]
    status: Status = Status.PROBED
    reason: str = ""
    rank: int | None = None
    used_rank: int = 0
    first_share: float = 0.0
    stable_rank: float = 0.0
    norm: float = 0.0
    scale: float | None = None
    zero_factors: tuple[str, ...] = ()
    nbytes: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether it changes nothing."""
        return self.status is Status.PROBED and self.norm == 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain types."""
        return {**asdict(self), "status": self.status.value}


def measure_adapter(weights: Iterable[Weight], error: float = DEFAULT_ERROR) -> list[AdapterLayer]:
    """Measure the layers of an adapter; other weights are left out.

    Example:
        >>> import torch
        >>> from rankwise.api import open_target
        >>> from rankwise.probes.adapter_layers import measure_adapter
        >>> a = torch.eye(4, 8)
        >>> weights = open_target({"fc.lora_A.weight": a, "fc.lora_B.weight": a.T})
        >>> layer = measure_adapter(weights.tensors)[0]
        >>> layer.rank, layer.used_rank, layer.first_share
        (4, 4, 0.25)
    """
    return [
        _measure(weight, error)
        for weight in weights
        if weight.kind in ADAPTER_KINDS and weight.singular_values is not None
    ]


def _measure(weight: Weight, error: float) -> AdapterLayer:
    factors = weight.factors
    layer: dict[str, Any] = {
        "name": weight.name,
        "module": weight.name.rpartition(".")[0] if factors is None else factors.module,
        "kind": weight.kind,
        "shape": weight.shape,
        "rank": None if factors is None else factors.rank,
        "nbytes": _count_bytes(weight),
    }
    try:
        values = _load_values(weight)
        if factors is not None:
            layer["scale"] = factors.compute_scale() if factors.has_scale else None
            pairs = zip("BA", factors.load(), strict=True)
            layer["zero_factors"] = tuple(
                sorted(n for n, side in pairs if not bool(side.float().any()))
            )
    except NotFiniteError as problem:
        return AdapterLayer(**layer, status=Status.NOT_FINITE, reason=str(problem))
    except LOAD_ERRORS as problem:
        reason = " ".join(str(problem).split()) or repr(problem)
        return AdapterLayer(**layer, status=Status.UNREADABLE, reason=reason)
    top = float(values[0]) if values.size else 0.0
    if top == 0.0:
        return AdapterLayer(**layer)
    stable = math.fsum((values / top) ** 2)
    return AdapterLayer(
        **layer,
        used_rank=find_least_rank(values, error),
        first_share=1 / stable,
        stable_rank=stable,
        norm=top * math.sqrt(stable),
    )


def _load_values(weight: Weight) -> np.ndarray[Any, np.dtype[np.float64]]:
    assert weight.singular_values is not None  # noqa: S101
    values = np.sort(weight.singular_values())[::-1]
    if not np.isfinite(values).all():
        raise NotFiniteError("it holds NaN or infinity")
    return values


def _count_bytes(weight: Weight) -> int:
    factors = weight.factors
    if factors is None:
        return (weight.parameters or 0) * weight.dtype.itemsize
    return sum(math.prod(w.shape) * w.dtype.itemsize for w in (factors.down, factors.up))
