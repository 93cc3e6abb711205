"""Findings about one tensor by itself: broken values, dead or copied filters, what dominates it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rankwise._text import format_percent
from rankwise.checks.facts import TensorFacts
from rankwise.checks.findings import Finding, Severity, make_finding
from rankwise.checks.inspection import Inspection, measure_coverage
from rankwise.numerics.randomness import MIN_WIDTH
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.weights.tensor import Status

# Every limit was chosen on one half of the families of real networks and measured on the other
# (docs/check.md). The largest value that a healthy network shows is given behind it.
_DEAD_ERROR, _DEAD_WARNING = 0.5, 0.1
# So many other layers with this share of dead filters make them the network's style.
_DEAD_LAYERS, _DEAD_ELSEWHERE = 2, 0.25
# A matrix with more zeros than this, dead filters not counted, is pruned or constructed.
_DENSE = 0.5
_COPIES_ERROR, _COPIES_WARNING = 0.5, 0.1  # 0.46, in filters of 24 inputs
_ENTRY_ERROR, _ENTRY_WARNING = 30.0, 10.0  # 6.4, in the first block of a sentence encoder
_FILTER_ERROR, _FILTER_WARNING = 50.0, 15.0  # 8, in a depthwise convolution
_DIRECTION_ERROR, _DIRECTION_WARNING = 0.9999, 0.99  # 0.998
_LITTLE_CHECKED = 0.5


@dataclass(frozen=True, slots=True)
class _Network:
    """What the rules for one tensor ask of the others, counted once.

    Attributes:
        kinds: How many tensors there are of each kind and shape.
        zeros: How many of them hold nothing but zeros.
        dead: The layers with a large share of dead filters.
    """

    kinds: Mapping[tuple[str, tuple[int, ...]], int]
    zeros: Mapping[tuple[str, tuple[int, ...]], int]
    dead: frozenset[str]


def _survey(inspection: Inspection) -> _Network:
    rows = inspection.probe.layers
    return _Network(
        Counter((row.kind, row.shape) for row in rows),
        Counter((row.kind, row.shape) for row in rows if row.frobenius_norm == 0),
        frozenset(
            row.name
            for row, facts in inspection.list_layers()
            if facts.filters and facts.dead_filters >= _DEAD_ELSEWHERE * facts.filters
        ),
    )


def check_tensors(inspection: Inspection) -> Iterator[Finding]:
    """Check every tensor by itself."""
    network = _survey(inspection)
    for row in inspection.probe.layers:
        if row.status is Status.UNREADABLE:
            message = f"The tensor can't be read: {row.reason}."
            yield make_finding("unreadable", Severity.ERROR, row.name, message)
        facts = inspection.facts.get(row.name)
        if facts is None:
            if row.status is Status.NOT_FINITE:  # a product of factors that is never formed
                message = "Its factors hold NaN or infinite numbers."
                yield make_finding("not-finite", Severity.ERROR, row.name, message)
            continue
        if facts.not_finite:
            yield _describe_not_finite(row, facts)
        elif min(facts.filters, facts.inputs) < 2:
            yield from _check_vector(row, facts)
        else:
            yield from _check_matrix(row, facts, network)


def check_coverage(inspection: Inspection) -> Iterator[Finding]:
    """Say so where most of a network could not be checked."""
    coverage = measure_coverage(inspection.probe)
    if coverage < _LITTLE_CHECKED:
        message = (
            f"Only {format_percent(coverage)} of the parameters are in layers that were checked."
        )
        yield make_finding(
            "little-checked", Severity.WARNING, None, message, coverage=round(coverage, 6)
        )


def _describe_not_finite(row: LayerMetrics, facts: TensorFacts) -> Finding:
    # Masks and tables of scores hold −inf on purpose; training leaves NaN, or infinity both ways.
    has_nan = facts.minus_infinite < facts.not_finite
    is_mask = facts.zeros + facts.not_finite == facts.entries
    severity = Severity.ERROR if has_nan else Severity.NOTE if is_mask else Severity.WARNING
    what = "NaN or infinite" if has_nan else "minus infinity"
    verb = "is" if facts.not_finite == 1 else "are"
    return make_finding(
        "not-finite",
        severity,
        row.name,
        f"{facts.not_finite:,} of {facts.entries:,} numbers {verb} {what}.",
        not_finite=facts.not_finite,
        entries=facts.entries,
    )


def _check_vector(row: LayerMetrics, facts: TensorFacts) -> Iterator[Finding]:
    if facts.has_absurd_entry:
        yield _describe_entry(row, facts, Severity.ERROR)


def _check_matrix(row: LayerMetrics, facts: TensorFacts, network: _Network) -> Iterator[Finding]:
    if facts.is_zero:
        yield _describe_zero(row, network)
    elif facts.is_constant:
        is_wide = min(facts.filters, facts.inputs) >= MIN_WIDTH
        message = f"All {facts.entries:,} numbers are {facts.high:.6g}."
        severity = Severity.ERROR if is_wide else Severity.WARNING
        yield make_finding("constant", severity, row.name, message, value=facts.high)
    else:
        yield from _check_dominance(row, facts)
        if not facts.has_absurd_entry:  # next to such a number every other filter looks dead
            yield from _check_filters(row, facts, network)


def _describe_zero(row: LayerMetrics, network: _Network) -> Finding:
    # Masks come in numbers, and so do weights that are zero by design until they are trained.
    alike, zeros = (count[row.kind, row.shape] for count in (network.kinds, network.zeros))
    severity = Severity.WARNING if alike > 2 and zeros == alike else Severity.ERROR
    message = f"All {row.parameters:,} numbers are zero."
    return make_finding("all-zero", severity, row.name, message, entries=row.parameters)


def _check_dominance(row: LayerMetrics, facts: TensorFacts) -> Iterator[Finding]:
    """Find the smallest part that dwarfs the rest: an entry, else a filter, else a direction."""
    ratio = facts.largest / facts.runner_up if facts.runner_up else float("inf")
    width = min(facts.filters, facts.inputs)
    direction = ((row.spectral_norm or 0.0) / (row.frobenius_norm or 1.0)) ** 2
    if facts.has_absurd_entry:
        yield _describe_entry(row, facts, Severity.ERROR)
    elif severity := _grade(ratio, _ENTRY_ERROR, _ENTRY_WARNING):
        # Two rows of an embedding, or a kernel of few numbers, may well have one large number.
        yield _describe_entry(row, facts, severity if width >= MIN_WIDTH else Severity.NOTE)
    elif width < MIN_WIDTH:
        return
    elif severity := _grade(facts.top_filter, _FILTER_ERROR, _FILTER_WARNING):
        yield make_finding(
            "dominant-filter",
            severity,
            row.name,
            f"The norm of one filter is {facts.top_filter:.3g} times that of every other.",
            ratio=facts.top_filter,
        )
    elif severity := _grade(direction, _DIRECTION_ERROR, _DIRECTION_WARNING):
        yield make_finding(
            "dominant-direction",
            severity,
            row.name,
            f"One direction holds {100 * direction:.2f} % of the layer's energy.",
            share=direction,
        )


def _describe_entry(row: LayerMetrics, facts: TensorFacts, severity: Severity) -> Finding:
    message = (
        f"The largest number is {facts.largest:.3g}, the second largest {facts.runner_up:.3g}."
    )
    return make_finding(
        "dominant-entry",
        severity,
        row.name,
        message,
        largest=facts.largest,
        runner_up=facts.runner_up,
    )


def _check_filters(row: LayerMetrics, facts: TensorFacts, network: _Network) -> Iterator[Finding]:
    if facts.dead_filters:
        share = facts.dead_filters / facts.filters
        severity = _grade(share, _DEAD_ERROR, _DEAD_WARNING) or Severity.NOTE
        if row.kind == "embedding":  # rows of tokens that never occur
            severity = Severity.NOTE
        elif severity is Severity.ERROR and not _is_exception(row, facts, network):
            severity = Severity.WARNING
        message = f"{facts.dead_filters} of {facts.filters} filters are zero or nearly zero."
        yield make_finding(
            "dead-filters",
            severity,
            row.name,
            message,
            dead=facts.dead_filters,
            filters=facts.filters,
        )
    if facts.dead_inputs:
        share = facts.dead_inputs / facts.inputs
        severity = Severity.WARNING if share >= _DEAD_ERROR else Severity.NOTE
        message = f"{facts.dead_inputs} of {facts.inputs} inputs are used by no filter."
        yield make_finding(
            "dead-inputs",
            severity,
            row.name,
            message,
            dead=facts.dead_inputs,
            inputs=facts.inputs,
        )
    if facts.copies and min(facts.filters, facts.inputs) >= MIN_WIDTH:
        share = facts.copies / (facts.filters - facts.dead_filters)
        severity = _grade(share, _COPIES_ERROR, _COPIES_WARNING) or Severity.NOTE
        message = (
            f"{facts.copies} of {facts.filters} filters are identical, or nearly so, to an earlier "
            "one."
        )
        yield make_finding(
            "identical-filters",
            Severity.NOTE if row.kind == "embedding" else severity,
            row.name,
            message,
            copies=facts.copies,
            filters=facts.filters,
        )


def _is_exception(row: LayerMetrics, facts: TensorFacts, network: _Network) -> bool:
    """Return whether a layer of many dead filters stands alone in a network without pruning."""
    alive = facts.filters - facts.dead_filters
    zeros = facts.zeros - facts.dead_filters * facts.inputs
    if zeros > _DENSE * alive * facts.inputs:
        return False
    return len(network.dead - {row.name}) < _DEAD_LAYERS


def _grade(value: float, error: float, warning: float) -> Severity | None:
    if value >= error:
        return Severity.ERROR
    return Severity.WARNING if value >= warning else None
