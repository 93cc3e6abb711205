"""A network's spectra → one number that may tell how well it does: the paper's Q and others.

Written n, M for an unfolding's sides (n ≤ M), n' for its rank, d_i for the singular values of its
low-rank part, s_1 for the largest of the weight itself, t for the level that noise ends at. The
candidates, `CANDIDATES`, were written down before any of them was tried on real networks; they
treat every unfolding (`mode`) by itself, since a layer may be of rank 1 in one of two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import rankwise

__all__ = ["BASELINES", "CANDIDATES", "PROPOSED", "SCORES", "Score"]

_WIDE = 16


@dataclass(frozen=True, slots=True)
class Score:
    """A number for a network.

    Attributes:
        name: A word for files.
        label: A few words for tables.
        formula: How it is computed.
        of: The function; None where it is not defined.
    """

    name: str
    label: str
    formula: str
    of: Callable[[rankwise.Probe], float | None]


def modes_of(probe: rankwise.Probe) -> list[rankwise.ModeMetrics]:
    """Every unfolding of every probed layer."""
    return [mode for layer in probe.probed for mode in layer.modes]


def mean_log(values: Iterable[float | None]) -> float | None:
    """The mean of logarithms; a weight that is all zeros has none and is left out."""
    logs = [math.log(value) for value in values if value]
    return statistics.fmean(logs) if logs else None


def mean_of(field: str) -> Callable[[rankwise.Probe], float | None]:
    """The plain mean of a metric over the probed layers."""

    def mean(probe: rankwise.Probe) -> float | None:
        found = [getattr(layer, field) for layer in probe.probed]
        return statistics.fmean(found) if found else None

    return mean


def honest_quality(mode: rankwise.ModeMetrics) -> float:
    """Q of an unfolding, with 0 for rank 1: there κ = 0 by definition, and q = π/2 says nothing."""
    return mode.quality if mode.rank > 1 else 0.0


def root_mean_square(
    values: Iterable[float], weights: Iterable[float] | None = None
) -> float | None:
    """√(Σ w v² / Σ w); None without values."""
    found = list(values)
    shares = [1.0] * len(found) if weights is None else list(weights)
    if not found:
        return None
    total = math.fsum(share * value**2 for share, value in zip(shares, found, strict=True))
    return math.sqrt(total / math.fsum(shares))


def weighted_by_width(
    probe: rankwise.Probe, value: Callable[[rankwise.ModeMetrics], float]
) -> float | None:
    """Σ n v / Σ n over the unfoldings."""
    modes = modes_of(probe)
    widths = math.fsum(mode.rows for mode in modes)
    return math.fsum(mode.rows * value(mode) for mode in modes) / widths if modes else None


def rank_one_as_zero(probe: rankwise.Probe) -> float | None:
    """Q over unfoldings, those of rank 1 as 0: √(mean q²)."""
    return root_mean_square(honest_quality(mode) for mode in modes_of(probe))


def two_or_more(probe: rankwise.Probe) -> float | None:
    """Q over the unfoldings of rank 2 or more alone."""
    return root_mean_square(mode.quality for mode in modes_of(probe) if mode.rank > 1)


def quality_by_width(probe: rankwise.Probe) -> float | None:
    """Q over unfoldings, those of rank 1 as 0, weighted by width: √(Σ n q² / Σ n)."""
    modes = modes_of(probe)
    return root_mean_square(map(honest_quality, modes), [mode.rows for mode in modes])


def quality_of_wide(probe: rankwise.Probe) -> float | None:
    """Q over the unfoldings with n ≥ 16, those of rank 1 as 0."""
    return root_mean_square(honest_quality(mode) for mode in modes_of(probe) if mode.rows >= _WIDE)


def rank_by_width(probe: rankwise.Probe) -> float | None:
    """Stable directions among all directions: Σ n s / Σ n."""
    return weighted_by_width(probe, lambda mode: mode.stable_rank)


def log_directions(probe: rankwise.Probe) -> float | None:
    """How many stable directions an unfolding has, n s, on a log scale: mean log₂(1 + n s)."""
    logs = [math.log2(1 + mode.rows * mode.stable_rank) for mode in modes_of(probe)]
    return statistics.fmean(logs) if logs else None


def signal_by_width(probe: rankwise.Probe) -> float | None:
    """The share of energy that is not noise, weighted by width: Σ n ‖Ŵ‖²/‖W‖² / Σ n."""
    return weighted_by_width(probe, lambda mode: 1 - mode.noise_fraction)


def prominence(probe: rankwise.Probe) -> float | None:
    """How far the strongest direction stands out of the noise: mean ln(s_1 / t) over unfoldings.

    Below 0 for an empty one, a little above it for a weak direction, whatever the rank. An
    unfolding without noise has no t and is left out. Needs a probe with spectra.
    """
    spectra = [mode.spectrum for mode in modes_of(probe) if mode.spectrum is not None]
    return mean_log(s.values[0] / s.threshold for s in spectra if s.values and s.threshold > 0)


def _log_parameters(probe: rankwise.Probe) -> float | None:
    return math.log(probe.parameters) if probe.parameters else None


BASELINES = (
    Score("quality", "Q", "√(mean q²) over layers", lambda probe: probe.quality),
    Score(
        "quality_without_empty",
        "Q without empty",
        "the same over layers whose q is not 0",
        lambda probe: probe.network_quality(skip_empty=True),
    ),
    Score("stable_rank", "mean s", "mean stable rank", mean_of("stable_rank")),
    Score("condition", "mean κ", "mean condition", mean_of("condition")),
    Score("rank_fraction", "mean rank fraction", "mean n'/n", mean_of("rank_fraction")),
    Score("noise_fraction", "mean noise", "mean 1 − ‖Ŵ‖²/‖W‖²", mean_of("noise_fraction")),
    Score(
        "log_frobenius",
        "mean log ‖W‖F",
        "mean ln of the Frobenius norm",
        lambda probe: mean_log(layer.frobenius_norm for layer in probe.probed),
    ),
    Score(
        "log_spectral",
        "mean log ‖W‖₂",
        "mean ln of the spectral norm",
        lambda probe: mean_log(layer.spectral_norm for layer in probe.probed),
    ),
    Score("log_parameters", "log parameters", "ln of how many numbers it holds", _log_parameters),
)
CANDIDATES = (
    Score("rank_one_as_zero", "Q, rank 1 as 0", "√(mean q²), q = 0 for rank 1", rank_one_as_zero),
    Score("two_or_more", "Q, rank 2 or more", "√(mean q²) of rank 2 or more", two_or_more),
    Score(
        "quality_by_width",
        "Q by width",
        "√(Σ n q² / Σ n), q = 0 for rank 1",
        quality_by_width,
    ),
    Score(
        "quality_of_wide",
        "Q of wide layers",
        f"√(mean q²) where n ≥ {_WIDE}, q = 0 for rank 1",
        quality_of_wide,
    ),
    Score("rank_by_width", "s by width", "Σ n s / Σ n", rank_by_width),
    Score("log_directions", "log directions", "mean log₂(1 + n s)", log_directions),
    Score("signal_by_width", "signal by width", "Σ n ‖Ŵ‖²/‖W‖² / Σ n", signal_by_width),
    Score("prominence", "prominence", "mean ln(s_1 / noise's edge)", prominence),
)
SCORES: Mapping[str, Score] = MappingProxyType(
    {score.name: score for score in (*BASELINES, *CANDIDATES)}
)
PROPOSED = "prominence"
