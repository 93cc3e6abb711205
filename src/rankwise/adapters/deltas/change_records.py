"""What changed from a base to a tuned network: a record per tensor, and figures of the whole."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from rankwise.adapters.pairs import Form
from rankwise.probes.diff import make_frame

if TYPE_CHECKING:
    import pandas as pd


class ChangeStatus(str, Enum):
    """What happened to a tensor, or why that is not known.

    Example:
        >>> import rankwise
        >>> rankwise.ChangeStatus("rounding only") is rankwise.ChangeStatus.ROUNDING
        True
    """

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    ROUNDING = "rounding only"  # no more than storing it in a shorter type explains
    NEW = "new"
    MISSING = "missing"
    RESHAPED = "reshaped"
    TIED = "tied"  # the same memory as an earlier tensor
    NOT_FINITE = "not finite"
    NOT_COMPARABLE = "not comparable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class TensorChange:
    """How a tensor changed.

    Attributes:
        name: Its name in the tuned network; of a missing one, in the base.
        status: What happened to it.
        form: "matrix" for weights that have a rank, "vector" for biases and norm scales, "other".
        shape: As it is stored.
        dtype: Its type in the tuned network; of a missing one, in the base.
        bytes: How many it takes there.
        reason: Why it could not be compared, or a caveat.
        base_name: Its name in the base; None if it is new.
        norm: ‖ΔW‖, the Frobenius norm of tuned − base; None where it was not measured.
        base_norm: ‖W‖ of the base.
        rank: n', the rank that EVBMF finds in ΔW as outputs × all other axes; of matrices only.
        low_rank_share: The share of ‖ΔW‖² in the n' largest singular values.
        sides: Of the matrix: outputs × all other axes.
        group: The stored tensor that it is a slice of, as one of many experts.

    Example:
        >>> import torch
        >>> from rankwise.adapters import measure_changes
        >>> base = {"fc.weight": torch.eye(6)}
        >>> (change,) = measure_changes(base, {"fc.weight": torch.eye(6) + 1}).tensors
        >>> change.rank, round(change.relative, 3), change.adapter_parameters
        (1, 2.449, 12)
    """

    name: str
    status: ChangeStatus
    form: Form
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    reason: str = ""
    base_name: str | None = None
    norm: float | None = None
    base_norm: float | None = None
    rank: int | None = None
    low_rank_share: float | None = None
    sides: tuple[int, int] | None = None
    group: str | None = None

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def relative(self) -> float | None:
        """‖ΔW‖/‖W‖; None where it was not measured, or the base is all zeros."""
        if self.norm is None or not self.base_norm:
            return None
        ratio = self.norm / self.base_norm
        return ratio if math.isfinite(ratio) else None

    @property
    def adapter_parameters(self) -> int | None:
        """How many parameters a LoRA of rank n' has: n'·(out + in)."""
        return None if self.rank is None or self.sides is None else self.rank * sum(self.sides)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain types."""
        return {
            "name": self.name,
            "base_name": self.base_name,
            "status": self.status.value,
            "reason": self.reason,
            "form": self.form,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "parameters": self.parameters,
            "norm": self.norm,
            "base_norm": self.base_norm,
            "relative_change": self.relative,
            "rank": self.rank,
            "low_rank_share": self.low_rank_share,
            "adapter_parameters": self.adapter_parameters,
        }


@dataclass(frozen=True, repr=False)
class NetworkChange:
    """What changed from a base to a tuned network.

    The figures of the whole are about matrices. Vectors, such as biases, norm scales and running
    statistics, have no rank, and their numbers have other units.

    Attributes:
        base: Where the base comes from.
        tuned: Where the tuned network comes from.
        tensors: Those of the tuned network in its order, then those that only the base has.
        renamed_prefix: As in `ProbeDiff.renamed_prefix`.
        notes: Sentences about the whole.

    Example:
        >>> import torch
        >>> from rankwise.adapters import measure_changes
        >>> base = {"fc.weight": torch.eye(40)}
        >>> change = measure_changes(base, {"fc.weight": torch.eye(40) + 1})
        >>> change.low_rank_share, change.adapter_parameters, change.full_parameters
        (1.0, 80, 1600)
    """

    base: str
    tuned: str
    tensors: tuple[TensorChange, ...]
    renamed_prefix: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<NetworkChange: {len(self.changed)} of {len(self.tensors)} tensors changed>"

    def select(self, *statuses: ChangeStatus) -> tuple[TensorChange, ...]:
        """Return the tensors that have one of these statuses."""
        return tuple(tensor for tensor in self.tensors if tensor.status in statuses)

    @property
    def changed(self) -> tuple[TensorChange, ...]:
        """The tensors that changed by more than rounding."""
        return self.select(ChangeStatus.CHANGED)

    @property
    def matrices(self) -> tuple[TensorChange, ...]:
        """The matrices that changed by more than rounding."""
        return tuple(tensor for tensor in self.changed if tensor.form == "matrix")

    @property
    def relative(self) -> float | None:
        """‖ΔW‖/‖W‖ over all matrices that were compared; None without any, or if all are zero."""
        compared = [x for x in self.tensors if x.form == "matrix" and x.norm is not None]
        norm, base = _add_norms(x.norm for x in compared), _add_norms(x.base_norm for x in compared)
        return norm / base if base and math.isfinite(norm / base) else None

    @property
    def low_rank_share(self) -> float | None:
        """The share of ‖ΔW‖² that is in low-rank parts, over all matrices; None if none changed."""
        total = _add_norms(x.norm for x in self.matrices)
        if not total:
            return None
        shares = ((x.low_rank_share or 0.0) * ((x.norm or 0.0) / total) ** 2 for x in self.matrices)
        return min(math.fsum(shares), 1.0)

    @property
    def total_rank(self) -> int:
        """Σ n' over all changes."""
        return sum(tensor.rank or 0 for tensor in self.matrices)

    @property
    def adapter_parameters(self) -> int:
        """How many parameters a LoRA with the rank n' for each matrix has."""
        return sum(tensor.adapter_parameters or 0 for tensor in self.matrices)

    @property
    def adapter_bytes(self) -> int:
        """How many bytes these take in the types of the tuned network."""
        parts = ((x.adapter_parameters or 0) * x.bytes / x.parameters for x in self.matrices)
        return round(math.fsum(parts))

    @property
    def full_parameters(self) -> int:
        """How many parameters the matrices that changed have."""
        return sum(tensor.parameters for tensor in self.matrices)

    @property
    def full_bytes(self) -> int:
        """How many bytes these take in the tuned network."""
        return sum(tensor.bytes for tensor in self.matrices)

    @property
    def other_parameters(self) -> int:
        """How many numbers changed tensors without a rank have, which an adapter keeps whole."""
        return sum(tensor.parameters for tensor in self.changed if tensor.form != "matrix")

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of the whole and all records as plain types."""
        counts = {status.value: len(self.select(status)) for status in ChangeStatus}
        return {
            "base": self.base,
            "tuned": self.tuned,
            "renamed_prefix": self.renamed_prefix,
            "notes": list(self.notes),
            "counts": {name: count for name, count in counts.items() if count},
            "relative_change": self.relative,
            "low_rank_share": self.low_rank_share,
            "total_rank": self.total_rank,
            "adapter_parameters": self.adapter_parameters,
            "adapter_bytes": self.adapter_bytes,
            "full_parameters": self.full_parameters,
            "full_bytes": self.full_bytes,
            "other_parameters": self.other_parameters,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }

    def to_json(self, indent: int | None = None) -> str:
        """Return the same as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with a row for every tensor.

        Raises:
            MissingExtraError: Without pandas.
        """
        return make_frame([tensor.to_dict() for tensor in self.tensors])


def _add_norms(norms: Iterable[float | None]) -> float:
    """Return the root of the sum of squares, which itself could overflow."""
    return math.hypot(*(norm or 0.0 for norm in norms))
