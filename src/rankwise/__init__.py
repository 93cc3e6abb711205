"""Measure and check every layer of a network; train layer by layer.

A network is a module, a state dict, or the path of a checkpoint:
safetensors, PyTorch, ONNX, GGUF, Keras, a folder of Hugging Face, or
hf://org/name. No code in a file is run.

Measure every layer, and compare it with random weights of its shape:

    >>> import torch, rankwise
    >>> from torch.nn import Linear, ReLU, Sequential
    >>> _ = torch.manual_seed(0)
    >>> network = Sequential(Linear(64, 64), ReLU(), Linear(64, 10))
    >>> result = rankwise.probe(network)
    >>> result["0.weight"]
    <LayerMetrics '0.weight' (64×64 linear): rank 0, s 0, κ 1, q 0>

`print(result)` shows a table, `result.save(path)` keeps it, and
`result.to_frame()` is for pandas. What a metric means is said by
`print(rankwise.explain("stable_rank"))`.

Find what is wrong with a network:

    >>> findings = rankwise.check({"fc.weight": torch.zeros(32, 32)})
    >>> [(finding.kind, finding.layer) for finding in findings]
    [('all-zero', 'fc.weight')]

Compare a fine-tuned network with its base:

    >>> tuned = Sequential(Linear(64, 64), ReLU(), Linear(64, 10))
    >>> rankwise.diff(network, tuned).weights
    <NetworkChange: 4 of 4 tensors changed>

Train each layer at a rate that follows from its spectrum, with RMSGD or
with any optimizer:

    >>> layers = rankwise.layer_groups(network)
    >>> optimizer = rankwise.RMSGD(layers, epochs=30)
    >>> for epoch in range(2):
    ...     optimizer.zero_grad()
    ...     network(torch.randn(8, 64)).sum().backward()
    ...     optimizer.step()
    ...     optimizer.epoch_step()  # once per epoch: new rates
    >>> list(optimizer.rates())
    ['0', '2']
    >>> layers = rankwise.layer_groups(network)
    >>> adamw = torch.optim.AdamW(layers, lr=1e-3)
    >>> scheduler = rankwise.LayerwiseLR(adamw, rankwise.TempBalance())

Write an HTML page about a network, checkpoints or training runs:
`rankwise.report(network, out="report.html")`.

More is in packages: `rankwise.adapters` (layers to fine-tune, LoRA),
`rankwise.integrations` (Lightning, Transformers, Accelerate, loggers),
`rankwise.lab` and `rankwise.study` (the paper's experiments and yours).
The command `rankwise --help` does the same jobs from a shell.
"""

# Names are imported when they are first used, so that `rankwise --help` and `import
# rankwise.errors` do not wait for torch.

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise._lazy import import_lazily

if TYPE_CHECKING:  # for type checkers; a test compares these names with the table below
    from rankwise.adapters.deltas.change_records import ChangeStatus as ChangeStatus
    from rankwise.adapters.deltas.change_records import NetworkChange as NetworkChange
    from rankwise.adapters.deltas.change_records import TensorChange as TensorChange
    from rankwise.adapters.deltas.comparison import NetworkDiff as NetworkDiff
    from rankwise.adapters.deltas.comparison import diff as diff
    from rankwise.api import probe as probe
    from rankwise.checks.check import check as check
    from rankwise.checks.findings import Finding as Finding
    from rankwise.checks.findings import Findings as Findings
    from rankwise.checks.findings import Severity as Severity
    from rankwise.checks.monitor import LayerMonitor as LayerMonitor
    from rankwise.errors import ArgumentError as ArgumentError
    from rankwise.errors import CheckpointError as CheckpointError
    from rankwise.errors import DistributedError as DistributedError
    from rankwise.errors import LayerWarning as LayerWarning
    from rankwise.errors import MissingExtraError as MissingExtraError
    from rankwise.errors import NotFiniteError as NotFiniteError
    from rankwise.errors import ProbeMismatchError as ProbeMismatchError
    from rankwise.errors import RankwiseError as RankwiseError
    from rankwise.errors import TargetError as TargetError
    from rankwise.errors import UnknownLayerError as UnknownLayerError
    from rankwise.errors import UnsafeFileError as UnsafeFileError
    from rankwise.numerics.evbmf import LowRank as LowRank
    from rankwise.numerics.evbmf import evbmf as evbmf
    from rankwise.numerics.evbmf import low_rank as low_rank
    from rankwise.numerics.hill import hill_exponent as hill_exponent
    from rankwise.numerics.metrics import condition as condition
    from rankwise.numerics.metrics import effective_rank as effective_rank
    from rankwise.numerics.metrics import network_quality as network_quality
    from rankwise.numerics.metrics import quality as quality
    from rankwise.numerics.metrics import stable_rank as stable_rank
    from rankwise.numerics.metrics import theorem_rate_bound as theorem_rate_bound
    from rankwise.numerics.randomness import Verdict as Verdict
    from rankwise.numerics.spectrum import singular_values as singular_values
    from rankwise.numerics.unfold import Unfolding as Unfolding
    from rankwise.numerics.unfold import plan_unfoldings as plan_unfoldings
    from rankwise.numerics.unfold import unfold as unfold
    from rankwise.optim.layerwise_lr import LayerwiseLR as LayerwiseLR
    from rankwise.optim.param_groups import layer_groups as layer_groups
    from rankwise.optim.rmsgd import RMSGD as RMSGD
    from rankwise.optim.rules.annealed_stable_rank import AnnealedStableRank as AnnealedStableRank
    from rankwise.optim.rules.llr import LLR as LLR
    from rankwise.optim.rules.relative_update import RelativeUpdate as RelativeUpdate
    from rankwise.optim.rules.rule import LayerReading as LayerReading
    from rankwise.optim.rules.rule import RateRule as RateRule
    from rankwise.optim.rules.stable_rank import StableRank as StableRank
    from rankwise.optim.rules.stable_rank import beta_for as beta_for
    from rankwise.optim.rules.temp_balance import TempBalance as TempBalance
    from rankwise.optim.stable_rank_lr import StableRankLR as StableRankLR
    from rankwise.probes.diff import LayerChange as LayerChange
    from rankwise.probes.diff import ProbeDiff as ProbeDiff
    from rankwise.probes.explain import explain as explain
    from rankwise.probes.layer_metrics import LayerMetrics as LayerMetrics
    from rankwise.probes.layer_metrics import LayerSpectrum as LayerSpectrum
    from rankwise.probes.layer_metrics import ModeMetrics as ModeMetrics
    from rankwise.probes.network_figures import NetworkFigures as NetworkFigures
    from rankwise.probes.parallel import Progress as Progress
    from rankwise.probes.results import Probe as Probe
    from rankwise.probes.workers import Resources as Resources
    from rankwise.report_page import report as report
    from rankwise.weights.kinds import infer_kind as infer_kind
    from rankwise.weights.tensor import Status as Status

__version__ = "0.1.0"

_PUBLIC_NAMES = {
    ".adapters.deltas.change_records": "ChangeStatus NetworkChange TensorChange",
    ".adapters.deltas.comparison": "NetworkDiff diff",
    ".api": "probe",
    ".checks.check": "check",
    ".checks.findings": "Finding Findings Severity",
    ".checks.monitor": "LayerMonitor",
    ".errors": (
        "ArgumentError CheckpointError DistributedError LayerWarning MissingExtraError "
        "NotFiniteError ProbeMismatchError RankwiseError TargetError UnknownLayerError "
        "UnsafeFileError"
    ),
    ".numerics.evbmf": "LowRank evbmf low_rank",
    ".numerics.hill": "hill_exponent",
    ".numerics.metrics": (
        "condition effective_rank network_quality quality stable_rank theorem_rate_bound"
    ),
    ".numerics.randomness": "Verdict",
    ".numerics.spectrum": "singular_values",
    ".numerics.unfold": "Unfolding plan_unfoldings unfold",
    ".optim.layerwise_lr": "LayerwiseLR",
    ".optim.param_groups": "layer_groups",
    ".optim.rmsgd": "RMSGD",
    ".optim.rules.annealed_stable_rank": "AnnealedStableRank",
    ".optim.rules.llr": "LLR",
    ".optim.rules.relative_update": "RelativeUpdate",
    ".optim.rules.rule": "LayerReading RateRule",
    ".optim.rules.stable_rank": "StableRank beta_for",
    ".optim.rules.temp_balance": "TempBalance",
    ".optim.stable_rank_lr": "StableRankLR",
    ".probes.diff": "LayerChange ProbeDiff",
    ".probes.explain": "explain",
    ".probes.layer_metrics": "LayerMetrics LayerSpectrum ModeMetrics",
    ".probes.parallel": "Progress",
    ".probes.network_figures": "NetworkFigures",
    ".probes.results": "Probe",
    ".probes.workers": "Resources",
    ".report_page": "report",
    ".weights.kinds": "infer_kind",
    ".weights.tensor": "Status",
}

# The table is the only list.
__all__ = sorted(["__version__", *" ".join(_PUBLIC_NAMES.values()).split()])  # noqa: PLE0605

if not TYPE_CHECKING:  # type checkers would take every name for defined
    __getattr__, __dir__ = import_lazily(__name__, _PUBLIC_NAMES)
