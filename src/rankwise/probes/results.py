"""What a probe finds for one layer: typed, frozen, ready for JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from rankwise.probes.tensor import Status

__all__ = ["LayerMetrics", "LayerSpectrum", "ModeMetrics"]


@dataclass(frozen=True, slots=True)
class LayerSpectrum:
    """The singular values behind the metrics of one unfolding.

    Attributes:
        values: All singular values of W, descending.
        kept: d_i, descending: the shrunk singular values of the low-rank part.
        threshold: √(Mσ²x̄): what EVBMF kept lay above it. Where rows are dead, or structure is as
            fine as rounding, it is that of the living rows, or of the values beside rounding.

    Example:
        >>> import torch, rankwise
        >>> found = rankwise.probe({"fc.weight": torch.eye(4) + 9}, spectra=True)
        >>> [round(value, 3) for value in found.layers[0].modes[0].spectrum.values]
        [37.0, 1.0, 1.0, 1.0]
    """

    values: tuple[float, ...]
    kept: tuple[float, ...]
    threshold: float

    def to_dict(self) -> dict[str, Any]:
        """The spectrum as plain types."""
        return {
            "values": list(self.values),
            "kept": list(self.kept),
            "threshold": self.threshold,
        }

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> LayerSpectrum:
        """The inverse of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: Where the row does not describe a spectrum.
        """
        values, kept = (
            [_number(v, "a singular value") for v in row[k]] for k in ("values", "kept")
        )
        return cls(tuple(values), tuple(kept), _number(row["threshold"], "threshold"))


@dataclass(frozen=True, slots=True)
class ModeMetrics:
    """The metrics of one unfolding of a weight (METHOD §1–3); all figures are Python floats.

    Attributes:
        mode: "matrix" for 2-D weights, "input" or "output" for a convolution's two unfoldings.
        rows: L, the smaller side.
        columns: M, the larger side.
        rank: n', how many singular values the low-rank part has.
        rank_fraction: n'/n.
        stable_rank: s, Eq. 2.
        condition: κ, Eq. 3.
        quality: q = arctan(s/κ).
        noise_fraction: 1 − ‖Ŵ‖²/‖W‖² (Frobenius).
        noise_variance: σ² of the noise.
        spectral_norm: The largest singular value of W.
        effective_rank: exp of the entropy of W's singular values.
        spectrum: The singular values, where the probe was asked to keep them.

    Example:
        >>> import torch, rankwise
        >>> layer = rankwise.probe({"conv.weight": torch.randn(8, 4, 3, 3)}).layers[0]
        >>> [(mode.mode, mode.rows, mode.columns) for mode in layer.modes]
        [('input', 4, 72), ('output', 8, 36)]
    """

    mode: str
    rows: int
    columns: int
    rank: int
    rank_fraction: float
    stable_rank: float
    condition: float
    quality: float
    noise_fraction: float
    noise_variance: float
    spectral_norm: float
    effective_rank: float
    spectrum: LayerSpectrum | None = None

    def to_dict(self) -> dict[str, Any]:
        """The metrics as plain types; a spectrum only where there is one."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.spectrum is None:
            del row["spectrum"]
        else:
            row["spectrum"] = self.spectrum.to_dict()
        return row

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> ModeMetrics:
        """The inverse of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: Where the row does not describe an unfolding.
        """
        _check(row, ("mode",), str)
        _check(row, _MODE_FIGURES, (int, float))
        _ = whole(row["rows"]), whole(row["columns"]), whole(row["rank"])
        spectrum = row.get("spectrum")
        given = None if spectrum is None else LayerSpectrum.from_dict(spectrum)
        return cls(**{**row, "spectrum": given})


@dataclass(frozen=True, slots=True)
class LayerMetrics:
    """One tensor's row: its metrics, or a status and a reason why it has none.

    The metrics are means over the layer's unfoldings (`modes`) and None where the tensor was not
    probed. `reason` also speaks where a probed layer's figures need a caveat, as for rank 1.

    Attributes:
        name: The tensor's name.
        kind: "linear", "conv2d", "embedding", "recurrent", … as far as shape and name tell.
        shape: The tensor's shape.
        dtype: The type it is stored in, as in "float32".
        parameters: How many numbers it holds.
        status: Probed, or why not.
        reason: The status in words, empty where there is nothing to say.
        rank: n', mean over the modes.
        rank_fraction: n'/n.
        stable_rank: s, Eq. 2.
        condition: κ, Eq. 3.
        quality: q = arctan(s/κ).
        noise_fraction: 1 − ‖Ŵ‖²/‖W‖².
        noise_variance: σ².
        spectral_norm: Largest singular value.
        frobenius_norm: Root of the sum of squares.
        effective_rank: exp of the entropy of the spectrum.
        modes: The same per unfolding.

    Example:
        >>> import torch, rankwise
        >>> layer = rankwise.probe({"bias": torch.zeros(3)}).layers[0]
        >>> (layer.status.value, layer.reason, layer.quality)
        ('vector', '1-D: biases and norm scales are not probed', None)
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    parameters: int
    status: Status
    reason: str = ""
    rank: float | None = None
    rank_fraction: float | None = None
    stable_rank: float | None = None
    condition: float | None = None
    quality: float | None = None
    noise_fraction: float | None = None
    noise_variance: float | None = None
    spectral_norm: float | None = None
    frobenius_norm: float | None = None
    effective_rank: float | None = None
    modes: tuple[ModeMetrics, ...] = ()

    @property
    def probed(self) -> bool:
        """Whether the layer has metrics."""
        return self.status is Status.PROBED

    @property
    def is_empty(self) -> bool:
        """Whether a probed layer's low-rank part is empty: noise only."""
        return self.rank == 0

    @property
    def is_rank_one(self) -> bool:
        """Whether every unfolding holds just one direction.

        There κ = 0, so q is at its maximum by definition, which says nothing of learning.
        """
        return bool(self.modes) and all(mode.rank == 1 for mode in self.modes)

    def to_dict(self) -> dict[str, Any]:
        """The row as plain types, ready for JSON."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row["status"] = self.status.value
        row["shape"] = list(self.shape)
        row["modes"] = [mode.to_dict() for mode in self.modes]
        return row

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> LayerMetrics:
        """The inverse of `to_dict`; keys it does not know are left out.

        Raises:
            KeyError, TypeError, ValueError: Where the row does not describe a layer.
        """
        known = {field.name: row[field.name] for field in fields(cls) if field.name in row}
        known["status"] = Status(known["status"])
        known["shape"] = tuple(whole(side) for side in known["shape"])
        known["parameters"] = whole(known["parameters"])
        known["modes"] = tuple(ModeMetrics.from_dict(mode) for mode in known.get("modes", ()))
        _check(known, ("name", "kind", "dtype", "reason"), str)
        _check(known, _FIGURES, (int, float, type(None)))
        if known["status"] is Status.PROBED:
            if not known["modes"]:
                raise ValueError("a probed layer must have unfoldings")
            _check({name: known.get(name) for name in _FIGURES}, _FIGURES, (int, float))
        return cls(**known)


def whole(value: object) -> int:
    """A whole number that is not negative, or a TypeError."""
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"expected a whole number, got {value!r}")
    return value


def _check(row: dict[str, Any], names: Sequence[str], types: type | tuple[type, ...]) -> None:
    for name in names:
        value = row.get(name)
        if name in row and not isinstance(value, types):
            raise TypeError(f"{name} can't be {value!r}")
        if isinstance(value, int | float):
            _number(value, name)


def _number(value: object, name: str) -> float:
    """A number that a float holds, as one; else an error."""
    if not isinstance(value, int | float):
        raise TypeError(f"{name} can't be {value!r}")
    if not abs(value) <= sys.float_info.max:  # not `>`, which a NaN would pass by
        raise ValueError(f"{name} can't be {value!r}")
    return float(value)


_TEXTS = ("mode", "name", "kind", "dtype", "status", "reason", "shape", "parameters", "modes")
_FIGURES = tuple(field.name for field in fields(LayerMetrics) if field.name not in _TEXTS)
_MODE_FIGURES = tuple(
    field.name for field in fields(ModeMetrics) if field.name not in (*_TEXTS, "spectrum")
)
