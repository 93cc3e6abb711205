"""One row per tensor: its metrics, or why it has none; typed, frozen, ready for JSON."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields, replace
from typing import Any

from rankwise.numerics.randomness import Verdict
from rankwise.probes.one_line import describe_layer, describe_spectrum
from rankwise.weights.tensor import Status


@dataclass(frozen=True, slots=True)
class LayerSpectrum:
    """The singular values behind the metrics of one unfolding.

    Attributes:
        values: All singular values of W, descending.
        kept: d_i, descending: the shrunk singular values of the low-rank part.
        threshold: √(Mσ²x̄): EVBMF kept the values above it. Where rows are zero, or structure is
            as fine as rounding, it is that of the non-zero rows, or of the values above rounding.

    Example:
        >>> import torch, rankwise
        >>> result = rankwise.probe({"fc.weight": torch.eye(4) + 9}, spectra=True)
        >>> [round(value, 3) for value in result.layers[0].modes[0].spectrum.values]
        [37.0, 1.0, 1.0, 1.0]
    """

    values: tuple[float, ...]
    kept: tuple[float, ...]
    threshold: float

    def __repr__(self) -> str:
        return describe_spectrum(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the spectrum as plain types."""
        return {
            "values": list(self.values),
            "kept": list(self.kept),
            "threshold": self.threshold,
        }

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> LayerSpectrum:
        """Invert `to_dict`; raise KeyError, TypeError or ValueError for any other row."""
        values, kept = (tuple(_check_number(v, name) for v in row[name]) for name in _SPECTRA)
        return cls(values, kept, _check_number(row["threshold"], "threshold"))


@dataclass(frozen=True, slots=True)
class ModeMetrics:
    """The metrics of one unfolding of a weight (METHOD §1–3); all numbers are Python floats.

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
        prominence: ln(s₁/threshold): how far the strongest direction stands out from the noise,
            negative for rank 0; None where there is no noise.
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
    prominence: float | None = None
    spectrum: LayerSpectrum | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as plain types; a spectrum only where there is one."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.spectrum is None:
            del row["spectrum"]
        else:
            row["spectrum"] = self.spectrum.to_dict()
        return row

    def without_spectrum(self) -> ModeMetrics:
        """Return the metrics alone."""
        return self if self.spectrum is None else replace(self, spectrum=None)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> ModeMetrics:
        """Invert `to_dict`; raise KeyError, TypeError or ValueError for any other row."""
        spectrum = row.get("spectrum")
        values: dict[str, Any] = {name: _check_number(row[name], name) for name in _MODE_METRICS}
        for name in ("rows", "columns", "rank"):
            values[name] = _check_count(row[name], name)
        if min(values["rows"], values["columns"]) < 1:
            raise ValueError("an unfolding must have rows and columns")
        values["mode"] = _check_text(row["mode"], "mode")
        values["prominence"] = _check_optional(row.get("prominence"), "prominence")
        values["spectrum"] = None if spectrum is None else LayerSpectrum.from_dict(spectrum)
        _check_metrics(values)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class LayerMetrics:
    """One tensor's row: its metrics, or a status and a reason why it has none.

    The metrics are means over the layer's unfoldings (`modes`) and None where the tensor was not
    probed. `reason` is also set where a probed layer's metrics need a caveat, as for rank 1.

    Attributes:
        kind: "linear", "conv2d", "embedding", "recurrent", … as far as shape and name show.
        dtype: The type it is stored in, as in "float32".
        parameters: How many numbers it holds.
        reason: The status explained, empty where there is nothing to say.
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
        prominence: ln(s₁/threshold) of the noise; None where there is no noise.
        verdict: Whether the weights differ from random numbers; None where that was not tested.
        chance: The probability that random weights differ from the expectation as much.
        overlap: How much more alike the filters are than random ones, in standard deviations.
        group: The stored tensor that it is a slice of, where one holds many matrices, as experts.
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
    prominence: float | None = None
    verdict: Verdict | None = None
    chance: float | None = None
    overlap: float | None = None
    group: str | None = None
    modes: tuple[ModeMetrics, ...] = ()

    def __repr__(self) -> str:
        return describe_layer(self)

    @property
    def is_probed(self) -> bool:
        """Whether the layer has metrics."""
        return self.status is Status.PROBED

    @property
    def is_empty(self) -> bool:
        """Whether a probed layer's low-rank part is empty: noise only."""
        return self.rank == 0

    @property
    def is_rank_one(self) -> bool:
        """Whether every unfolding has rank 1.

        There κ = 0, so q is at its maximum by definition, which says nothing about learning.
        """
        return bool(self.modes) and all(mode.rank == 1 for mode in self.modes)

    @property
    def has_inflated_quality(self) -> bool:
        """Whether an unfolding has rank 1, where q is π/2 by definition."""
        return any(mode.rank == 1 for mode in self.modes)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain types, ready for JSON."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row["status"] = self.status.value
        row["verdict"] = None if self.verdict is None else self.verdict.value
        row["shape"] = list(self.shape)
        row["modes"] = [mode.to_dict() for mode in self.modes]
        return row

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> LayerMetrics:
        """Invert `to_dict`, without unknown keys; errors are those of `ModeMetrics.from_dict`."""
        status, modes = Status(row["status"]), row.get("modes", ())
        verdict, group = row.get("verdict"), row.get("group")
        values: dict[str, Any] = {
            name: _check_text(row[name], name) for name in ("name", "kind", "dtype")
        }
        for name in _LAYER_METRICS:
            value = row.get(name)
            if value is not None or status is Status.PROBED:
                values[name] = _check_number(value, name)
        for name in _OPTIONAL_METRICS:
            values[name] = _check_optional(row.get(name), name)
        if status is Status.PROBED and not modes:
            raise ValueError("a probed layer must have unfoldings")
        _check_metrics(values)
        return cls(
            shape=tuple(_check_count(side, "shape") for side in row["shape"]),
            parameters=_check_count(row["parameters"], "parameters"),
            status=status,
            reason=_check_text(row.get("reason", ""), "reason"),
            verdict=None if verdict is None else Verdict(verdict),
            group=None if group is None else _check_text(group, "group"),
            modes=tuple(ModeMetrics.from_dict(mode) for mode in modes),
            **values,
        )


_SPECTRA = ("values", "kept")
_LARGEST = sys.float_info.max
_MOST = 2.0**63  # of anything that is counted
_ROUNDING = 1e-9
# The largest value of each metric; none is negative but prominence and overlap.
_LIMITS = {
    "rank": _MOST,
    "rank_fraction": 1.0,
    "stable_rank": 1.0,
    "condition": 1.0,
    "quality": math.pi / 2,
    "noise_fraction": 1.0,
    "noise_variance": _LARGEST,
    "spectral_norm": _LARGEST,
    "frobenius_norm": _LARGEST,
    "effective_rank": _MOST,
    "chance": 1.0,
}
_MODE_METRICS = tuple(field.name for field in fields(ModeMetrics) if field.type == "float")
# Absent from probes of layers without noise, and where the weights were not compared with random.
_OPTIONAL_METRICS = ("prominence", "chance", "overlap")
_LAYER_METRICS = tuple(
    field.name
    for field in fields(LayerMetrics)
    if field.type == "float | None" and field.name not in _OPTIONAL_METRICS
)


def _check_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} can't be {value!r}")
    return value


def _check_count(value: object, name: str) -> int:
    if not isinstance(value, int) or not 0 <= value < _MOST:
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    return value


def _check_metrics(values: dict[str, Any]) -> None:
    """Raise ValueError if a metric is outside of its range, as in a damaged file."""
    for name, value in values.items():
        limit = _LIMITS.get(name)
        if limit is not None and value is not None and not -_ROUNDING <= value <= limit + _ROUNDING:
            raise ValueError(f"{name} can't be {value!r}")


def _check_optional(value: object, name: str) -> float | None:
    return None if value is None else _check_number(value, name)


def _check_number(value: object, name: str) -> float:
    """Return a number that a float can hold as a float."""
    if not isinstance(value, int | float):
        raise TypeError(f"{name} can't be {value!r}")
    if not abs(value) <= sys.float_info.max:  # not `>`, which is false for NaN
        raise ValueError(f"{name} can't be {value!r}")
    return float(value)
