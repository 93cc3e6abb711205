"""rankwise: see what every layer of a network has learned, from its weights alone."""

from rankwise.changes import LayerChange
from rankwise.diff import ProbeDiff
from rankwise.errors import (
    ArgumentError,
    CheckpointError,
    ExchangeError,
    MissingExtraError,
    NotFiniteError,
    ProbeMismatchError,
    RankwiseError,
    TargetError,
    UnknownLayerError,
    UnsafeFileError,
)
from rankwise.evbmf import LowRank, evbmf, low_rank
from rankwise.explain import explain
from rankwise.layers import layer_groups
from rankwise.metrics import (
    condition,
    effective_rank,
    network_quality,
    quality,
    stable_rank,
    theorem_rate_bound,
)
from rankwise.optimizer import RMSGD
from rankwise.probe import probe
from rankwise.probe_result import Probe
from rankwise.rates import beta_for
from rankwise.results import LayerMetrics, LayerSpectrum, ModeMetrics, Status
from rankwise.scheduler import StableRankLR
from rankwise.spectrum import singular_values
from rankwise.survey import Progress
from rankwise.unfold import Unfolding, kind_of, plan, unfold

__all__ = [  # noqa: RUF022 - RMSGD is no constant
    "ArgumentError",
    "CheckpointError",
    "ExchangeError",
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
    "plan",
    "probe",
    "quality",
    "singular_values",
    "stable_rank",
    "theorem_rate_bound",
    "unfold",
]

__version__ = "0.1.0"
