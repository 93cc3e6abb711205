"""Findings about a network and its base: unchanged, replaced, missing and reshaped tensors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from rankwise._text import format_count, sanitize
from rankwise.checks.calibration import describe_width
from rankwise.checks.findings import Finding, Severity, make_finding
from rankwise.checks.inspection import Change, Inspection
from rankwise.checks.sibling_checks import Layer, list_matrices, numerical_rank
from rankwise.numerics.randomness import MIN_WIDTH, Verdict
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.text import format_shape, list_names

_REPLACED_COSINE = 0.5  # below it little of the base is left
_MUCH_MORE, _MUCH = 10.0, 0.2  # times the median change, and a share of the weight's norm
_COLLAPSE = 4.0  # times less stable rank than in the base


def check_base(inspection: Inspection, base: Inspection) -> Iterator[Finding]:
    """Compare every tensor with the base's of the same name."""
    yield from _check_names(inspection, base)
    yield from _check_types(inspection, base)
    yield from _check_unchanged(inspection)
    yield from _check_changes(inspection)
    digests = {facts.digest: name for name, facts in base.facts.items() if facts.filters}
    earlier = {layer.name: layer for layer in list_matrices(base)}
    for layer in list_matrices(inspection):
        other = digests.get(layer.facts.digest)
        if other is not None and _is_moved(inspection, layer, other):
            message = f"It holds the values of {sanitize(other)} in the base."
            yield make_finding("swapped-layer", Severity.ERROR, layer.name, message, other=other)
        if layer.name in earlier:
            yield from _check_layer(layer, earlier[layer.name], inspection.changes.get(layer.name))


def _is_moved(inspection: Inspection, layer: Layer, other: str) -> bool:
    change = inspection.changes.get(layer.name)
    is_plain = layer.facts.is_zero or layer.facts.is_constant
    return other != layer.name and change is not None and change.distance > 0 and not is_plain


def _check_layer(layer: Layer, base: Layer, change: Change | None) -> Iterator[Finding]:
    is_random = layer.row.verdict is Verdict.RANDOM and layer.is_spread_like_initial
    is_replaced = change is not None and change.cosine < _REPLACED_COSINE
    differed = base.row.verdict in (Verdict.DIFFERS, Verdict.FLAT)
    if is_random and (base.is_clear or (differed and is_replaced)):
        yield make_finding(
            "looks-untrained",
            Severity.ERROR,
            layer.name,
            "The layer can't be distinguished from random weights; in the base it can.",
            confidence=describe_width(layer.width),
            width=layer.width,
            chance=layer.row.chance or 0.0,
            overlap=layer.row.overlap or 0.0,
            base_overlap=base.row.overlap or 0.0,
        )
    own, before = numerical_rank(layer.row), numerical_rank(base.row)
    if own and before and layer.width >= MIN_WIDTH and before >= _COLLAPSE * own:
        yield make_finding(
            "rank-collapse",
            Severity.WARNING,
            layer.name,
            f"Its stable rank ‖W‖²/s₁² fell from {before:.3g} in the base to {own:.3g}.",
            stable_rank=own,
            base_stable_rank=before,
        )


def _check_names(inspection: Inspection, base: Inspection) -> Iterator[Finding]:
    ours = {row.name: row for row in inspection.probe.layers}
    theirs = {row.name: row for row in base.probe.layers}
    missing = [row for name, row in theirs.items() if name not in ours]
    added = [row for name, row in ours.items() if name not in theirs]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        message = f"{_count(missing)} of the base {verb} missing: {list_names(missing)}."
        yield make_finding(
            "missing-tensor",
            Severity.WARNING,
            None,
            message,
            count=len(missing),
            names=_join(missing),
        )
    if added:
        verb = "is" if len(added) == 1 else "are"
        message = f"{_count(added)} {verb} not in the base: {list_names(added)}."
        yield make_finding(
            "added-tensor", Severity.WARNING, None, message, count=len(added), names=_join(added)
        )
    for name, row in ours.items():
        before = theirs.get(name)
        if before is not None and before.shape != row.shape:
            message = (
                f"Its shape is {format_shape(row.shape)}; in the base it is "
                f"{format_shape(before.shape)}."
            )
            yield make_finding("changed-shape", Severity.WARNING, name, message)


def _check_types(inspection: Inspection, base: Inspection) -> Iterator[Finding]:
    before = {row.name: row.dtype for row in base.probe.layers}
    changed = [r for r in inspection.probe.layers if before.get(r.name, r.dtype) != r.dtype]
    pairs = sorted({f"{before[row.name]} → {row.dtype}" for row in changed})
    if changed:
        message = (
            f"{_count(changed)} of another type than in the base ({', '.join(pairs)}): "
            f"{list_names(changed)}."
        )
        yield make_finding(
            "changed-dtype", Severity.NOTE, None, message, count=len(changed), names=_join(changed)
        )


def _check_unchanged(inspection: Inspection) -> Iterator[Finding]:
    rows = [row for row in inspection.probe.probed if row.name in inspection.changes]
    same = [row for row in rows if inspection.changes[row.name].distance == 0.0]
    if not same:
        return
    whole = len(same) == len(rows)
    message = (
        f"All {format_count(len(rows), 'layer')} equal those of the base: nothing was trained."
        if whole
        else f"{len(same)} of {len(rows)} layers equal those of the base: {list_names(same)}."
    )
    severity = Severity.WARNING if whole else Severity.NOTE
    yield make_finding(
        "unchanged", severity, None, message, count=len(same), layers=len(rows), names=_join(same)
    )


def _check_changes(inspection: Inspection) -> Iterator[Finding]:
    rows = [row for row in inspection.probe.probed if row.name in inspection.changes]
    distances = [inspection.changes[row.name].distance for row in rows]
    changed = [distance for distance in distances if 0 < distance < math.inf]
    if not changed:
        return
    usual = statistics.median(changed)
    for row, distance in zip(rows, distances, strict=True):
        cosine = inspection.changes[row.name].cosine
        is_replaced = cosine < _REPLACED_COSINE and usual < _REPLACED_COSINE
        is_much = distance >= max(_MUCH, _MUCH_MORE * usual)
        if math.isfinite(distance) and (is_much or (distance > _MUCH and is_replaced)):
            yield make_finding(
                "changed-most",
                Severity.WARNING,
                row.name,
                f"It changed by {100 * distance:.3g} % of its norm, the layers that changed by "
                f"{100 * usual:.3g} % (median); its cosine with the base is {cosine:.2f}.",
                change=distance,
                median_change=usual,
                cosine=cosine,
            )


def _count(rows: Sequence[LayerMetrics]) -> str:
    return format_count(len(rows), "tensor")


def _join(rows: Sequence[LayerMetrics]) -> str:
    return "\n".join(row.name for row in rows)
