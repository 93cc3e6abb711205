"""The figures of a whole network (METHOD §9), from the rows of its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankwise.numerics.metrics import network_quality
from rankwise.numerics.randomness import Verdict
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.weights.tensor import Status

# Rows whose numbers another row counts already.
_COUNTED_ELSEWHERE = (Status.MERGED, Status.TIED)


@dataclass(frozen=True, slots=True)
class NetworkFigures:
    """What a probe says about the network as a whole.

    Figures are None where no layer was probed.

    None of these figures says which of two networks is better, and S and the total rank keep
    rising while a network overfits.

    Attributes:
        differing: How many layers differ from random weights, after scaling every filter to unit
            norm (`LayerMetrics.verdict`).
        judged: How many could be compared with random weights.
        too_small: How many are too small for that.
        signal_energy: Σ‖Ŵ‖² / Σ‖W‖² over the probed layers: how much of the weights' energy is in
            directions that stand out from noise. None too where all weights are zero.
        stable_rank_by_width: S = Σ n·s / Σ n over the unfoldings of the probed layers, n the
            smaller side of an unfolding.
        total_rank: Σ n' over the probed layers. A layer counts with the mean over its unfoldings,
            as in `LayerMetrics.rank`.
        parameters: How many numbers the network holds, tied ones counted once.
        coverage: The share of them in probed layers.
        quality: Q, the paper's figure: the root mean square of the layers' q.

    Example:
        >>> import torch, rankwise
        >>> figures = rankwise.probe({"fc.weight": torch.eye(4) + 9}).figures
        >>> figures.total_rank, figures.stable_rank_by_width, round(figures.signal_energy, 3)
        (1.0, 0.25, 0.993)
    """

    differing: int
    judged: int
    too_small: int
    signal_energy: float | None
    stable_rank_by_width: float | None
    total_rank: float | None
    parameters: int
    coverage: float
    quality: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain types."""
        return asdict(self)


def compute_figures(layers: Sequence[LayerMetrics]) -> NetworkFigures:
    """Compute the figures of a network from a row for each of its tensors."""
    probed = [layer for layer in layers if layer.is_probed]
    parameters = sum(layer.parameters for layer in layers if layer.status not in _COUNTED_ELSEWHERE)
    verdicts = [layer.verdict for layer in probed if layer.verdict is not None]
    too_small = verdicts.count(Verdict.TOO_SMALL)
    return NetworkFigures(
        differing=verdicts.count(Verdict.DIFFERS),
        judged=len(verdicts) - too_small,
        too_small=too_small,
        signal_energy=_compute_signal_energy(probed),
        stable_rank_by_width=_compute_stable_rank(probed),
        total_rank=math.fsum(layer.rank or 0.0 for layer in probed) if probed else None,
        parameters=parameters,
        coverage=sum(layer.parameters for layer in probed) / max(1, parameters),
        quality=network_quality(layer.quality for layer in probed if layer.quality is not None),
    )


def _compute_stable_rank(probed: Sequence[LayerMetrics]) -> float | None:
    modes = [mode for layer in probed for mode in layer.modes]
    if not modes:
        return None
    total = math.fsum(mode.rows * mode.stable_rank for mode in modes)
    return total / sum(mode.rows for mode in modes)


def _compute_signal_energy(probed: Sequence[LayerMetrics]) -> float | None:
    norms = [layer.frobenius_norm or 0.0 for layer in probed]
    largest = max(norms, default=0.0)
    if not largest:
        return None
    energies = [(norm / largest) ** 2 for norm in norms]  # a large norm's square may overflow
    kept = (
        energy * (1.0 - (layer.noise_fraction or 0.0))
        for energy, layer in zip(energies, probed, strict=True)
    )
    return math.fsum(kept) / math.fsum(energies)
