"""Findings about a layer compared with its own earlier state, while its network is trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rankwise.checks.facts import TensorFacts
from rankwise.checks.findings import Finding, Severity, make_finding
from rankwise.checks.inspection import Inspection
from rankwise.checks.sibling_checks import (
    Layer,
    check_siblings,
    has_collapsed,
    list_matrices,
    numerical_rank,
)
from rankwise.checks.tensor_checks import check_tensors
from rankwise.numerics.randomness import MIN_WIDTH
from rankwise.probes.layer_metrics import LayerMetrics

# Of what the other checks find, these are events in a training run.
_WATCHED = {"not-finite", "all-zero", "dead-filters", "scale-outlier", "looks-untrained"}
# Layers leave the noise at different times. One that has not is reported when its siblings have
# been clear for half of the measurements so far, and for so many.
_PATIENCE = 3
# A whole layer is dead if its scale falls below this share of its largest, as for a single filter.
_VANISHED = 1e-4


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """What is remembered of a layer.

    Attributes:
        shape: Its shape; a layer that changes shape starts anew.
        digest: A key of its first values.
        first_kinds: What was found at its first update: how the run began, not an event in it.
        first_dead: The dead filters at its first update.
        rms: The largest so far.
        stable_rank: The largest ‖W‖²/s₁² so far; 0 before it is measured.
        measured: How often its spectrum was measured.
        untrained: How often in a row it looked untrained and its siblings did not.
    """

    shape: tuple[int, ...]
    digest: str
    first_kinds: tuple[str, ...]
    first_dead: int
    rms: float = 0.0
    stable_rank: float = 0.0
    measured: int = 0
    untrained: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain types."""
        fields = asdict(self)
        return {**fields, "shape": list(self.shape), "first_kinds": list(self.first_kinds)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> LayerRecord:
        """Make the record that `to_dict` described."""
        shape, kinds = tuple(fields["shape"]), tuple(fields["first_kinds"])
        return cls(**{**fields, "shape": shape, "first_kinds": kinds})


def follow_layers(
    inspection: Inspection, measured: Container[str], records: dict[str, LayerRecord]
) -> Iterator[Finding]:
    """Compare every layer with its record, yield what is new, and update the records.

    Args:
        inspection: The facts as they are now, and the latest metrics of every layer.
        measured: The layers whose metrics are new.
        records: By layer; changed in place.
    """
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in (*check_tensors(inspection), *check_siblings(inspection)):
        if finding.layer is not None and _is_watched(finding):
            found[finding.layer].append(finding)
    layers = {layer.name: layer for layer in list_matrices(inspection)}
    for row in inspection.probe.layers:
        record = records.get(row.name)
        facts = inspection.facts.get(row.name, TensorFacts(0, 0))
        if record is None or record.shape != row.shape:
            record = _start_record(row, facts, found[row.name])
        if row.name in measured:
            record = _count_measurement(record, found[row.name])
        for finding in found[row.name]:
            yield from _select_new(finding, record, facts)
        yield from _check_scale(row, facts, record)
        layer = layers.get(row.name) if row.name in measured else None
        rank = numerical_rank(row) if layer is not None else None
        if layer is not None and rank is not None:
            yield from _check_collapse(layer, rank, record)
        records[row.name] = replace(
            record,
            rms=max(record.rms, facts.rms),
            stable_rank=max(record.stable_rank, rank or 0.0),
        )


def _is_watched(finding: Finding) -> bool:
    """Return whether a finding, if new, is an event: a scale that falls is not."""
    figures = finding.figures
    if finding.kind == "scale-outlier" and float(figures["rms"]) < float(figures["siblings_rms"]):
        return False
    return finding.kind in _WATCHED and finding.severity.reaches(Severity.WARNING)


def _start_record(row: LayerMetrics, facts: TensorFacts, found: list[Finding]) -> LayerRecord:
    # No run begins with NaN on purpose; a mask of −inf is a warning.
    first = [f.kind for f in found if f.kind != "not-finite" or f.severity is Severity.WARNING]
    return LayerRecord(row.shape, facts.digest, tuple(first), facts.dead_filters)


def _count_measurement(record: LayerRecord, found: list[Finding]) -> LayerRecord:
    is_untrained = any(finding.kind == "looks-untrained" for finding in found)
    return replace(
        record,
        measured=record.measured + 1,
        untrained=record.untrained + 1 if is_untrained else 0,
    )


def _select_new(finding: Finding, record: LayerRecord, facts: TensorFacts) -> Iterator[Finding]:
    """Yield a finding, with what the record adds to it, if the layer did not begin like that."""
    if finding.kind == "looks-untrained":
        if record.untrained >= max(_PATIENCE, record.measured / 2):
            same = facts.digest == record.digest
            since = " Its values have not changed since the first update." if same else ""
            yield _extend(
                finding,
                f" The last {record.untrained} of {record.measured} measurements agree.{since}",
                updates=record.untrained,
            )
    elif finding.kind == "dead-filters":
        if facts.dead_filters > max(1, 2 * record.first_dead - 1):
            before = record.first_dead or "none"
            yield _extend(finding, f" At the first update {before} were.", before=record.first_dead)
    elif finding.kind not in record.first_kinds:
        yield finding


def _extend(finding: Finding, sentence: str, **figures: int) -> Finding:
    return replace(
        finding, message=finding.message + sentence, figures={**finding.figures, **figures}
    )


def _check_scale(row: LayerMetrics, facts: TensorFacts, record: LayerRecord) -> Iterator[Finding]:
    """Find a layer that has died as a whole, so that no filter is smaller than the others."""
    if facts.filters > 1 and 0.0 < facts.rms < _VANISHED * record.rms:
        message = (
            f"All its filters are nearly zero: the scale of its weights fell from "
            f"{record.rms:.3g} to {facts.rms:.3g}."
        )
        yield make_finding(
            "dead-filters",
            Severity.ERROR,
            row.name,
            message,
            dead=facts.filters,
            filters=facts.filters,
            rms=facts.rms,
            largest_rms=record.rms,
        )


def _check_collapse(layer: Layer, rank: float, record: LayerRecord) -> Iterator[Finding]:
    before = record.stable_rank
    if before and layer.width >= MIN_WIDTH and has_collapsed(rank, before):
        yield make_finding(
            "rank-collapse",
            Severity.WARNING,
            layer.name,
            f"Its stable rank ‖W‖²/s₁² fell from {before:.3g} to {rank:.3g}.",
            stable_rank=rank,
            largest_stable_rank=before,
        )
