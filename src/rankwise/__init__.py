"""rankwise: see what every layer of a network has learned, from its weights alone.

Names are imported when they are first used, so that `rankwise --help` and `import rankwise.errors`
do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwise.api import probe
    from rankwise.errors import (
        ArgumentError,
        CheckpointError,
        DistributedError,
        MissingExtraError,
        NotFiniteError,
        ProbeMismatchError,
        RankwiseError,
        TargetError,
        UnknownLayerError,
        UnsafeFileError,
    )
    from rankwise.numerics.evbmf import LowRank, evbmf, low_rank
    from rankwise.numerics.metrics import (
        condition,
        effective_rank,
        network_quality,
        quality,
        stable_rank,
        theorem_rate_bound,
    )
    from rankwise.numerics.spectrum import singular_values
    from rankwise.numerics.unfold import Unfolding, kind_of, plan_unfoldings, unfold
    from rankwise.optim.param_groups import layer_groups
    from rankwise.optim.rates import beta_for
    from rankwise.optim.rmsgd import RMSGD
    from rankwise.optim.stable_rank_lr import StableRankLR
    from rankwise.probes.changes import LayerChange
    from rankwise.probes.diff import ProbeDiff
    from rankwise.probes.explain import explain
    from rankwise.probes.measure import Progress
    from rankwise.probes.probe_result import Probe
    from rankwise.probes.results import LayerMetrics, LayerSpectrum, ModeMetrics
    from rankwise.probes.tensor import Status

__all__ = [  # noqa: RUF022 - RMSGD is no constant
    "ArgumentError",
    "CheckpointError",
    "DistributedError",
    "LayerChange",
    "LayerMetrics",
    "LayerSpectrum",
    "LowRank",
    "MissingExtraError",
    "ModeMetrics",
    "NotFiniteError",
    "Probe",
    "ProbeDiff",
    "ProbeMismatchError",
    "Progress",
    "RMSGD",
    "RankwiseError",
    "StableRankLR",
    "Status",
    "TargetError",
    "Unfolding",
    "UnknownLayerError",
    "UnsafeFileError",
    "__version__",
    "beta_for",
    "condition",
    "effective_rank",
    "evbmf",
    "explain",
    "kind_of",
    "layer_groups",
    "low_rank",
    "network_quality",
    "plan_unfoldings",
    "probe",
    "quality",
    "singular_values",
    "stable_rank",
    "theorem_rate_bound",
    "unfold",
]

__version__ = "0.1.0"

# Where each public name is defined.
_MODULES = {
    "api": ("probe",),
    "errors": (
        "ArgumentError",
        "CheckpointError",
        "DistributedError",
        "MissingExtraError",
        "NotFiniteError",
        "ProbeMismatchError",
        "RankwiseError",
        "TargetError",
        "UnknownLayerError",
        "UnsafeFileError",
    ),
    "numerics.evbmf": ("LowRank", "evbmf", "low_rank"),
    "numerics.metrics": (
        "condition",
        "effective_rank",
        "network_quality",
        "quality",
        "stable_rank",
        "theorem_rate_bound",
    ),
    "numerics.spectrum": ("singular_values",),
    "numerics.unfold": ("Unfolding", "kind_of", "plan_unfoldings", "unfold"),
    "optim.param_groups": ("layer_groups",),
    "optim.rates": ("beta_for",),
    "optim.rmsgd": ("RMSGD",),
    "optim.stable_rank_lr": ("StableRankLR",),
    "probes.changes": ("LayerChange",),
    "probes.diff": ("ProbeDiff",),
    "probes.explain": ("explain",),
    "probes.probe_result": ("Probe",),
    "probes.measure": ("Progress",),
    "probes.results": ("LayerMetrics", "LayerSpectrum", "ModeMetrics"),
    "probes.tensor": ("Status",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'rankwise' has no attribute {name!r}")
    value = getattr(import_module(f"rankwise.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
