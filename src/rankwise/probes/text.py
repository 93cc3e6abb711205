"""A probe in plain text: the table of its layers, a summary, what was skipped and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from rankwise._table import Cell, Column, Style, Table, align_cells, draw_bar, join_cells
from rankwise._text import format_count, format_percent, sanitize, wrap
from rankwise.errors import ArgumentError
from rankwise.numerics.randomness import Verdict
from rankwise.probes.tensor import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.probes.network_figures import NetworkFigures
    from rankwise.probes.tensor import Order

Item = TypeVar("Item")
Line = tuple[Cell, ...]

MAX_QUALITY = math.pi / 2
BY_NAME = "layers are listed by name; their order in the network is not known"
_MAX_NAMES = 4  # names listed before "and 12 more"
_BAR_WIDTH = 4

LAYER_SORT_KEYS: Mapping[str, Callable[[LayerMetrics], float | str | None]] = {
    "quality": lambda layer: layer.quality,
    "stable_rank": lambda layer: layer.stable_rank,
    "condition": lambda layer: layer.condition,
    "rank": lambda layer: layer.rank,
    "noise": lambda layer: layer.noise_fraction,
    "prominence": lambda layer: layer.prominence,
    "name": lambda layer: layer.name,
    "size": lambda layer: layer.parameters,
}
# How each status is called for one tensor and for several.
_LABELS: Mapping[Status, tuple[str, str]] = {
    Status.VECTOR: ("vector (bias or norm scale)", "vectors (biases, norm scales)"),
    Status.MERGED: ("merged into another", "merged into others"),
    Status.FILTERED: ("filtered out", "filtered out"),
    Status.INTEGER: ("integer tensor", "integer tensors"),
    Status.NO_DATA: ("without data", "without data"),
}
# What is said of one layer and of several; those that differ and those too small are counted only.
_OTHER_VERDICTS: Mapping[Verdict, tuple[str, str]] = {
    Verdict.FLAT: ("{} is flatter than random", "{} are flatter than random"),
    Verdict.NORMS_ONLY: (
        "{} differs only in its filters' norms",
        "{} differ only in their filters' norms",
    ),
    Verdict.RANDOM: ("no direction stands out in {}", "no direction stands out in {}"),
}
_SELF_EXPLAINING = {Status.VECTOR, Status.FILTERED}


def format_layers(
    layers: Sequence[LayerMetrics],
    *,
    sort: str | None = None,
    top: int | None = None,
    width: int | None = 80,
) -> str:
    """Return the probed layers as a plain table, one per line, never wider than `width`.

    Rank is n'/n, the mean over a convolution's two unfoldings; a star marks a q that an unfolding
    of rank 1 inflates. A full bar stands for the largest s in the table.

    Example:
        >>> import torch, rankwise
        >>> weight = torch.outer(torch.ones(8), torch.ones(9)) + torch.eye(8, 9)
        >>> print(format_layers(rankwise.probe({"fc.weight": weight}).layers, width=None))
        layer      shape  rank      s      κ       q  noise
        fc.weight    8×9   1/8  0.125  0.000  1.571*    12%
    """
    return join_cells(align_layers(layers, sort=sort, top=top, width=width))


def align_layers(
    layers: Sequence[LayerMetrics],
    *,
    sort: str | None = None,
    top: int | None = None,
    width: int | None = 80,
) -> list[Line]:
    """Return the lines of `format_layers` as cells with their styles."""
    probed = [layer for layer in layers if layer.is_probed]
    rows = sort_rows(probed, LAYER_SORT_KEYS, sort, top)
    if not rows:
        return []
    table = _make_layer_table(rows, find_bar_scale(probed, "stable_rank"))
    if width is None:
        table = table.select(i for i, column in enumerate(table.columns) if column.title)
    return [*align_cells(table, width), *count_hidden(len(probed) - len(rows))]


def _make_layer_table(layers: Sequence[LayerMetrics], s_scale: float) -> Table:
    def column(
        title: str, priority: int, text: Callable[[LayerMetrics], str], style: Style = ""
    ) -> tuple[Column, list[Cell]]:
        cells = [Cell(text(row), "dim" if row.is_empty else style) for row in layers]
        return Column(title, "left" if style else "right", priority), cells

    columns = [
        column("layer", 9, lambda row: sanitize(row.name), "name"),
        column("shape", 1, lambda row: format_shape(row.shape)),
        column("rank", 5, format_ranks),
        column("s", 7, lambda row: format_metric(row.stable_rank)),
        column(
            "", 2, lambda row: draw_bar((row.stable_rank or 0.0) / s_scale, _BAR_WIDTH), "bar s"
        ),
        column("κ", 6, lambda row: format_metric(row.condition)),
        column("q", 8, lambda row: format_metric(row.quality) + "*" * row.has_inflated_quality),
        column("noise", 4, lambda row: format_percent(row.noise_fraction).replace(" ", "")),
    ]
    return Table.from_columns(columns)


def find_bar_scale(layers: Sequence[LayerMetrics], metric: str) -> float:
    """Return what a full bar stands for: the largest value of layers without inflated quality.

    Trained layers have s and q of a few hundredths; with bars up to 1 and π/2 none would be seen.
    """
    values = (getattr(layer, metric) or 0.0 for layer in layers if not layer.has_inflated_quality)
    return max(values, default=0.0) or 1.0


def check_sort(keys: Mapping[str, object], sort: str | None, top: int | None) -> None:
    """Check the options of a table before the work behind it is done."""
    if sort is not None and sort.removeprefix("-") not in keys:
        choices = ", ".join(sorted(keys))
        raise ArgumentError(f"sort must be one of {choices} ('-' in front reverses), not {sort!r}.")
    if top is not None and top < 1:
        raise ArgumentError(f"top must be 1 or more, not {top}.")


def sort_rows(
    rows: Sequence[Item],
    keys: Mapping[str, Callable[[Item], float | str | None]],
    sort: str | None,
    top: int | None,
) -> list[Item]:
    """Return the first `top` rows, sorted by one of `keys`; those without a value come last."""
    check_sort(keys, sort, top)
    if sort is None:
        return list(rows[:top])
    key = keys[sort.removeprefix("-")]
    pairs = [(key(row), row) for row in rows]
    known = [(value, row) for value, row in pairs if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    unknown = [row for value, row in pairs if value is None]
    return [*(row for _, row in known), *unknown][:top]


def count_hidden(hidden: int) -> list[Line]:
    """Return the line that says how many rows a table leaves out."""
    return [(Cell(f"… {format_count(hidden, 'more layer')}", "dim"),)] if hidden else []


def format_shape(sides: Sequence[int]) -> str:
    """Return a shape as in 64×3×7×7."""
    return "×".join(map(str, sides)) or "scalar"


def format_ranks(layer: LayerMetrics) -> str:
    """Return n'/n."""
    if layer.rank is None or not layer.modes:
        return format_metric(layer.rank)
    return f"{layer.rank:g}/{sum(mode.rows for mode in layer.modes) / len(layer.modes):g}"


def format_metric(value: float | None) -> str:
    """Return a metric with three decimals."""
    return "–" if value is None else f"{value:.3f}"


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
    sentences = []
    broken = [layer for layer in layers if layer.status is Status.NOT_FINITE]
    if broken:
        verb = "holds" if len(broken) == 1 else "hold"
        count = format_count(len(broken), "layer")
        sentences.append(f"Warning: {count} {verb} NaN or Inf: {list_names(broken)}.")
    probed = [layer for layer in layers if layer.is_probed]
    if probed:
        sentences += [
            _describe_verdicts(probed, figures),
            _describe_figures(figures),
            _describe_paper_figures(probed, figures),
        ]
    else:
        sentences.append("No layer was probed.")
    return "\n".join(wrap(sentence, width) for sentence in sentences)


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


def format_total_rank(total: float | None) -> str:
    """Return Σ n'; it ends in .5 where a convolution's two unfoldings differ by an odd number.

    Example:
        >>> format_total_rank(12345.5), format_total_rank(7.0)
        ('12,345.5', '7')
    """
    return "–" if total is None else f"{total:,.1f}".removesuffix(".0")


def _describe_paper_figures(probed: Sequence[LayerMetrics], figures: NetworkFigures) -> str:
    text = f"The paper's figures: Q = {format_metric(figures.quality)}"
    inflated = sum(layer.has_inflated_quality for layer in probed)
    if not inflated:
        return f"{text}."
    verb = "has" if inflated == 1 else "have"
    count = format_count(inflated, "layer")
    return f"{text}; {count} (*) {verb} rank 1, where q is at its maximum by definition."


def format_skipped(layers: Sequence[LayerMetrics], *, width: int | None = 80) -> str:
    """List what was not probed and why, a line for each status; the counts add up to all tensors.

    Example:
        >>> import rankwise, torch
        >>> print(format_skipped(rankwise.probe({"fc.bias": torch.ones(8)}).layers))
        0 of 1 tensor probed; not probed:
          1 vector (bias or norm scale): fc.bias
    """
    groups: dict[Status, list[LayerMetrics]] = {}
    for layer in layers:
        groups.setdefault(layer.status, []).append(layer)
    probed = len(groups.pop(Status.PROBED, []))
    if not groups:
        only = "The only tensor was probed." if probed else ""
        return f"All {probed} tensors were probed." if probed > 1 else only
    head = f"{probed} of {format_count(len(layers), 'tensor')} probed; not probed:"
    lines = [wrap(_describe_group(s, group), width, "      ") for s, group in groups.items()]
    return "\n".join([wrap(head, width), *lines])


def _describe_group(status: Status, group: Sequence[LayerMetrics]) -> str:
    label = _LABELS.get(status, (status.value, status.value))[len(group) != 1]
    reasons = {clean_reason(layer) for layer in group}
    if status in _SELF_EXPLAINING or reasons == {""}:
        listed = list_names(group)
    elif len(reasons) == 1 and len(group) > 1:
        listed = f"{list_names(group)} ({reasons.pop()})"
    else:
        listed = list_names(group, with_reasons=True)
    return f"  {len(group)} {label}: {listed}"


def list_notes(notes: Sequence[str], order: Order) -> list[str]:
    """Return the notes of a probe, and one on the order of its layers where that is not known.

    Example:
        >>> list_notes(("weights taken from 'model'",), "network")
        ["Note: weights taken from 'model'"]
    """
    by_name = (BY_NAME,) if order == "name" else ()
    return [f"Note: {sanitize(note)}" for note in (*notes, *by_name)]


def clean_reason(layer: LayerMetrics) -> str:
    """Return the reason of a row's status, safe to print within a sentence."""
    return sanitize(layer.reason).rstrip(".")


def list_names(layers: Sequence[LayerMetrics], *, with_reasons: bool = False) -> str:
    """Return the first few names, and how many more there are."""
    texts = [
        sanitize(layer.name)
        + (f" ({clean_reason(layer)})" if with_reasons and layer.reason else "")
        for layer in layers[:_MAX_NAMES]
    ]
    hidden = len(layers) - _MAX_NAMES
    return ", ".join(texts) + (f" and {hidden} more" if hidden > 0 else "")
