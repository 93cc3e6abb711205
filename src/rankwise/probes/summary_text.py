"""A probe in a few sentences: what differs from random, the network's figures, the paper's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise._text import format_count, format_name, format_percent, wrap
from rankwise.numerics.randomness import Verdict
from rankwise.probes.groups import Outlier, group_layers, list_outliers
from rankwise.probes.text import format_metric, format_total_rank, list_names
from rankwise.weights.tensor import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.probes.network_figures import NetworkFigures

# What is said of one layer and of several; those that differ and those too small are counted only.
_OTHER_VERDICTS: Mapping[Verdict, tuple[str, str]] = {
    Verdict.FLAT: ("{} is flatter than random", "{} are flatter than random"),
    Verdict.NORMS_ONLY: (
        "{} differs only in its filters' norms",
        "{} differ only in their filters' norms",
    ),
    Verdict.RANDOM: ("no direction stands out in {}", "no direction stands out in {}"),
}

# What is said of one weight and of several without metrics.
_WARNINGS: Mapping[Status, tuple[str, str]] = {
    Status.NOT_FINITE: ("1 layer holds NaN or Inf", "{} layers hold NaN or Inf"),
    Status.UNREADABLE: ("1 layer could not be read", "{} layers could not be read"),
    Status.QUANTISED: (
        "1 quantised weight was not measured",
        "{} quantised weights were not measured",
    ),
}
_MAX_OUTLIERS = 5
_OUTLYING: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "rank": ("rank", lambda value: f"{value:g}"),
    "stable_rank": ("s", format_metric),
    "noise_fraction": ("noise", format_percent),
    "frobenius_norm": ("norm", lambda value: f"{value:.3g}"),
}


def format_summary(
    layers: Sequence[LayerMetrics], figures: NetworkFigures, *, width: int | None = 80
) -> str:
    """Summarise a probe in a few sentences; layers that are not finite come first.

    Example:
        >>> import rankwise
        >>> probe = rankwise.Probe("nothing", ())
        >>> print(format_summary(probe.layers, probe.figures))
        The model holds no tensors.
    """
    if not layers:
        return "The model holds no tensors."
    sentences = list_warnings(layers)
    probed = [layer for layer in layers if layer.is_probed]
    if probed:
        sentences += [
            _describe_verdicts(probed, figures),
            *describe_outliers(probed),
            _describe_figures(figures),
            _describe_paper_figures(probed, figures),
        ]
    else:
        sentences.append("No layer was probed.")
    return "\n".join(wrap(sentence, width) for sentence in sentences)


def list_warnings(layers: Sequence[LayerMetrics]) -> list[str]:
    """Return a sentence for each kind of weight that has no metrics though it should have them.

    Example:
        >>> import torch, rankwise
        >>> list_warnings(rankwise.probe({"fc.weight": torch.full((4, 4), torch.nan)}).layers)
        ['Warning: 1 layer holds NaN or Inf: fc.weight.']
    """
    sentences = []
    for status, (one, many) in _WARNINGS.items():
        if affected := [layer for layer in layers if layer.status is status]:
            what = one if len(affected) == 1 else many.format(len(affected))
            sentences.append(f"Warning: {what}: {list_names(affected)}.")
    return sentences


def describe_outliers(layers: Sequence[LayerMetrics]) -> list[str]:
    """Return which experts differ from those of their group, the farthest first; [] for none."""
    outliers = list_outliers(group_layers(layers))
    if not outliers:
        return []
    texts = [_describe_outlier(outlier) for outlier in outliers[:_MAX_OUTLIERS]]
    hidden = len(outliers) - _MAX_OUTLIERS
    more = f" and {hidden} more" if hidden > 0 else ""
    return [f"Unlike their siblings: {', '.join(texts)}{more}."]


def _describe_outlier(outlier: Outlier) -> str:
    name, format_value = _OUTLYING[outlier.metric]
    value, usual = getattr(outlier.layer, outlier.metric), outlier.usual
    return f"{format_name(outlier.layer.name)} ({name} {format_value(value)}, " + (
        f"median {format_value(usual)})"
    )


def _describe_verdicts(probed: Sequence[LayerMetrics], figures: NetworkFigures) -> str:
    """Return how many layers differ from random weights, and what is said of the others."""
    if not figures.judged and not figures.too_small:  # as after an epoch of training
        return _describe_directions(probed)
    by_verdict: dict[Verdict | None, list[LayerMetrics]] = {}
    for layer in probed:
        by_verdict.setdefault(layer.verdict, []).append(layer)
    zeros, rest = _split_zeros(by_verdict.get(None, []))
    clauses = [_count_differing(figures)]
    for verdict, (one, many) in _OTHER_VERDICTS.items():
        if layers := by_verdict.get(verdict):
            words = one if len(layers) == 1 else many
            clauses.append(f"{words.format(len(layers))}: {list_names(layers)}")
    if figures.judged and figures.too_small:
        verb = "is" if figures.too_small == 1 else "are"
        clauses.append(f"{figures.too_small} {verb} too small to tell")
    if rest:
        verb = "was" if len(rest) == 1 else "were"
        clauses.append(f"{len(rest)} {verb} not compared: {list_names(rest)}")
    return "; ".join([*clauses, *_count_zeros(zeros)]) + "."


def _count_differing(figures: NetworkFigures) -> str:
    if not figures.judged:
        count = format_count(figures.too_small, "layer")
        return f"Too small to compare with random weights: {count}"
    verb = "differs" if 1 in {figures.differing, figures.judged} else "differ"
    total = format_count(figures.judged, "layer")
    return f"{figures.differing} of {total} {verb} from random weights"


def _describe_directions(probed: Sequence[LayerMetrics]) -> str:
    """Return in how many layers a direction stands out from noise, and the names of the others."""
    zeros, flat = _split_zeros([layer for layer in probed if layer.is_empty])
    count = len(probed) - len(zeros) - len(flat)
    total = format_count(len(probed), "layer")
    clauses = [f"Directions stand out from noise in {count} of {total}"]
    if flat:
        clauses.append(f"no direction stands out in {len(flat)}: {list_names(flat)}")
    return "; ".join([*clauses, *_count_zeros(zeros)]) + "."


def _split_zeros(
    layers: Sequence[LayerMetrics],
) -> tuple[list[LayerMetrics], list[LayerMetrics]]:
    zeros = [layer for layer in layers if layer.frobenius_norm == 0]
    return zeros, [layer for layer in layers if layer.frobenius_norm != 0]


def _count_zeros(zeros: Sequence[LayerMetrics]) -> list[str]:
    verb = "is" if len(zeros) == 1 else "are"
    return [f"{len(zeros)} {verb} all zero: {list_names(zeros)}"] if zeros else []


def _describe_figures(figures: NetworkFigures) -> str:
    return (
        f"Signal energy {format_percent(figures.signal_energy)}; stable rank by width S = "
        f"{format_metric(figures.stable_rank_by_width)}; total rank "
        f"{format_total_rank(figures.total_rank)}; "
        f"{figures.parameters:,} parameters, {format_percent(figures.coverage)} of them probed."
    )


def _describe_paper_figures(probed: Sequence[LayerMetrics], figures: NetworkFigures) -> str:
    text = f"The paper's figures: Q = {format_metric(figures.quality)}"
    inflated = sum(layer.has_inflated_quality for layer in probed)
    if not inflated:
        return f"{text}."
    verb = "has" if inflated == 1 else "have"
    count = format_count(inflated, "layer")
    return f"{text}; {count} (*) {verb} rank 1, where q is at its maximum by definition."
