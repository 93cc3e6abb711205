"""Scores: one number from a network's spectra that might say how well it does, Q among them.

Notation: n, M for an unfolding's sides (n ≤ M), n' for its rank, s_1 for the largest singular value
of the weight, t for the edge of the noise. `REFERENCES` need no spectra: a score that does no more
than they do is of no use. `CANDIDATES` were written down before any of them was tried on real
networks; none of them ranks networks. They treat every unfolding (`mode`) by itself, since a layer
may have rank 1 in one of two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import rankwise
from rankwise.study.zoo.networks import Network, SkippedNetwork

_MIN_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Score:
    """A number for a network; None where it is not defined."""

    name: str  # for files
    label: str  # for tables
    formula: str
    compute: Callable[[rankwise.Probe], float | None]


def _list_modes(probe: rankwise.Probe) -> list[rankwise.ModeMetrics]:
    return [mode for layer in probe.probed for mode in layer.modes]


def _mean_log(values: Iterable[float | None]) -> float | None:
    """Return the mean of logarithms; a weight of zeros has none and is skipped."""
    logs = [math.log(value) for value in values if value]
    return statistics.fmean(logs) if logs else None


def _mean_of(field: str) -> Callable[[rankwise.Probe], float | None]:
    """Return a function: the mean of a metric over the probed layers."""

    def mean(probe: rankwise.Probe) -> float | None:
        values = [getattr(layer, field) for layer in probe.probed]
        return statistics.fmean(values) if values else None

    return mean


def _quality(mode: rankwise.ModeMetrics) -> float:
    """Return q of an unfolding, with 0 for rank 1: there κ = 0 by definition and q = π/2."""
    return mode.quality if mode.rank > 1 else 0.0


def _root_mean_square(
    values: Iterable[float], weights: Iterable[float] | None = None
) -> float | None:
    """Return √(Σ w v² / Σ w); None without values."""
    squares = [value**2 for value in values]
    if not squares:
        return None
    shares = [1.0] * len(squares) if weights is None else list(weights)
    total = math.fsum(share * square for share, square in zip(shares, squares, strict=True))
    return math.sqrt(total / math.fsum(shares))


def _weight_by_width(
    value: Callable[[rankwise.ModeMetrics], float],
) -> Callable[[rankwise.Probe], float | None]:
    """Return a function: Σ n v / Σ n over the unfoldings."""

    def mean(probe: rankwise.Probe) -> float | None:
        modes = _list_modes(probe)
        widths = math.fsum(mode.rows for mode in modes)
        return math.fsum(mode.rows * value(mode) for mode in modes) / widths if modes else None

    return mean


def _quality_by_width(probe: rankwise.Probe) -> float | None:
    modes = _list_modes(probe)
    return _root_mean_square(map(_quality, modes), [mode.rows for mode in modes])


def _log_directions(probe: rankwise.Probe) -> float | None:
    logs = [math.log2(1 + mode.rows * mode.stable_rank) for mode in _list_modes(probe)]
    return statistics.fmean(logs) if logs else None


def _prominence(probe: rankwise.Probe) -> float | None:
    """Return the mean of ln(s_1 / t) over unfoldings: how far the strongest direction stands out.

    Of a layer it tells learned weights from random ones. An unfolding without noise is skipped.
    """
    values = [mode.prominence for mode in _list_modes(probe) if mode.prominence is not None]
    return statistics.fmean(values) if values else None


BASELINES = (
    Score("quality", "Q", "√(mean q²) over layers", lambda probe: probe.quality),
    Score(
        "quality_without_empty",
        "Q without empty",
        "the same over layers whose q is not 0",
        lambda probe: probe.network_quality(skip_empty=True),
    ),
    Score("stable_rank", "mean s", "mean stable rank", _mean_of("stable_rank")),
    Score("condition", "mean κ", "mean condition", _mean_of("condition")),
    Score("rank_fraction", "mean rank fraction", "mean n'/n", _mean_of("rank_fraction")),
    Score("noise_fraction", "mean noise", "mean 1 − ‖Ŵ‖²/‖W‖²", _mean_of("noise_fraction")),
    Score(
        "log_frobenius",
        "mean log ‖W‖F",
        "mean ln of the Frobenius norm",
        lambda probe: _mean_log(layer.frobenius_norm for layer in probe.probed),
    ),
    Score(
        "log_spectral",
        "mean log ‖W‖₂",
        "mean ln of the spectral norm",
        lambda probe: _mean_log(layer.spectral_norm for layer in probe.probed),
    ),
    Score(
        "log_parameters",
        "log parameters",
        "ln of the number of parameters",
        lambda probe: math.log(probe.parameters) if probe.parameters else None,
    ),
)
CANDIDATES = (
    Score(
        "rank_one_as_zero",
        "Q, rank 1 as 0",
        "√(mean q²), q = 0 for rank 1",
        lambda probe: _root_mean_square(map(_quality, _list_modes(probe))),
    ),
    Score(
        "two_or_more",
        "Q, rank 2 or more",
        "√(mean q²) of rank 2 or more",
        lambda probe: _root_mean_square(m.quality for m in _list_modes(probe) if m.rank > 1),
    ),
    Score(
        "quality_by_width",
        "Q by width",
        "√(Σ n q² / Σ n), q = 0 for rank 1",
        _quality_by_width,
    ),
    Score(
        "quality_of_wide",
        "Q of wide layers",
        f"√(mean q²) where n ≥ {_MIN_WIDTH}, q = 0 for rank 1",
        lambda probe: _root_mean_square(
            _quality(mode) for mode in _list_modes(probe) if mode.rows >= _MIN_WIDTH
        ),
    ),
    Score(
        "rank_by_width",
        "s by width",
        "Σ n s / Σ n",
        _weight_by_width(lambda mode: mode.stable_rank),
    ),
    Score("log_directions", "log directions", "mean log₂(1 + n s)", _log_directions),
    Score(
        "signal_by_width",
        "signal by width",
        "Σ n ‖Ŵ‖²/‖W‖² / Σ n",
        _weight_by_width(lambda mode: 1 - mode.noise_fraction),
    ),
    Score("prominence", "prominence", "mean ln(s_1 / edge of the noise)", _prominence),
)
SCORES: Mapping[str, Score] = MappingProxyType(
    {score.name: score for score in (*BASELINES, *CANDIDATES)}
)
# Shown with every other score, always.
REFERENCES = ("log_parameters", "log_frobenius")


@dataclass(frozen=True, slots=True)
class MeasuredNetwork:
    """A network and its scores."""

    network: Network
    scores: Mapping[str, float | None]
    qualities: Mapping[str, float]  # the q of every probed layer
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # by layer; equal for one architecture
    rank_one: int  # layers of rank 1
    empty: int  # layers in which no direction stands out
    modes: int  # unfoldings
    rank_one_widths: tuple[int, ...]  # the smaller side of each unfolding of rank 1

    @property
    def rank_one_share(self) -> float:
        """The share of unfoldings that have rank 1."""
        return len(self.rank_one_widths) / self.modes


def measure_networks(
    networks: Iterable[Network], progress: Callable[[rankwise.Progress], None] | None = None
) -> tuple[list[MeasuredNetwork], list[SkippedNetwork]]:
    """Probe every network; one that can't be read is skipped with its reason."""
    measured: list[MeasuredNetwork] = []
    skipped: list[SkippedNetwork] = []
    listed = list(networks)
    for done, network in enumerate(listed, 1):
        result = _measure(network)
        if isinstance(result, MeasuredNetwork):
            measured.append(result)
        else:
            skipped.append(result)
        if progress is not None:
            progress(rankwise.Progress(done, len(listed), network.name))
    return measured, skipped


def _measure(network: Network) -> MeasuredNetwork | SkippedNetwork:
    try:
        probe = rankwise.probe(network.path, key=network.key)
    except (rankwise.RankwiseError, OSError) as error:
        return SkippedNetwork(network.name, str(error))
    if not probe.probed:
        return SkippedNetwork(network.name, "holds no layer that can be probed")
    modes = _list_modes(probe)
    return MeasuredNetwork(
        network,
        {name: score.compute(probe) for name, score in SCORES.items()},
        {layer.name: layer.quality for layer in probe.probed if layer.quality is not None},
        tuple((layer.name, layer.shape) for layer in probe.probed),
        sum(layer.is_rank_one for layer in probe.probed),
        sum(layer.is_empty for layer in probe.probed),
        len(modes),
        tuple(mode.rows for mode in modes if mode.rank == 1),
    )
