"""`rankwise.check`: what is wrong with a network, from its weights alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence

from rankwise.api import Target, open_target
from rankwise.checks.adapter_checks import check_adapter_layers
from rankwise.checks.base_checks import check_base
from rankwise.checks.calibration import describe_alarms
from rankwise.checks.file_checks import check_file
from rankwise.checks.findings import Finding, Findings, Severity, parse_ignore
from rankwise.checks.inspection import Inspection, inspect_target, inspect_weights
from rankwise.checks.kinds import KINDS
from rankwise.checks.sibling_checks import check_siblings
from rankwise.checks.tensor_checks import check_coverage, check_tensors
from rankwise.errors import ProbeMismatchError
from rankwise.probes.parallel import Progress
from rankwise.probes.workers import Resources

_ORDER = {severity: place for place, severity in enumerate(Severity)}


def check(
    target: Target,
    base: Target | None = None,
    *,
    ignore: Sequence[str] = (),
    key: str | None = None,
    resources: Resources | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Findings:
    """Find what is wrong with a network, from its weights alone.

    Errors are what healthy networks do not have: values that are not finite, a layer that looks
    like random weights while its siblings do not, a number that dwarfs all others. docs/check.md
    lists all kinds and how often each is right.

    Args:
        target: A module, a state dict, or the path of a checkpoint, as for `rankwise.probe`.
        base: The network that it was made from, to find layers that were replaced, lost or left
            unchanged.
        ignore: Findings to leave out: `KIND`, or `KIND:LAYER` with a glob.
        key: The dotted name of the part of a nested checkpoint that holds the weights.
        resources: How many layers to measure at once, and in how much memory, as for `probe`.
        progress: Called after each layer.

    Returns:
        The findings, errors first, and the probe with every layer's metrics.

    Raises:
        CheckpointError: If the target or the base can't be read as weights.
        ProbeMismatchError: If the two have no tensor in common.
        ArgumentError: If `ignore` names no kind of finding.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> weight = torch.randn(64, 4) @ torch.randn(4, 64) + torch.randn(64, 64)
        >>> print(rankwise.check({"fc.weight": weight}))
        1 layer, no problems found; 1 differs from random weights.
    """
    for pattern in ignore:
        parse_ignore(pattern)
    if base is None:
        inspection = inspect_target(target, key=key, resources=resources, progress=progress)
        findings = check_inspection(inspection)
        source = None
    else:
        weights = open_target(base)
        is_file = isinstance(base, str | os.PathLike)
        reference = inspect_weights(
            weights, is_file=is_file, spectra=False, resources=resources, progress=progress
        )
        inspection = inspect_target(
            target, key=key, base=weights, resources=resources, progress=progress
        )
        _require_common_names(inspection, reference)
        findings = merge_findings(check_inspection(inspection), check_base(inspection, reference))
        source = reference.probe.source
    ordered = sort_findings([*findings, *check_file(inspection)], inspection)
    return Findings(inspection.probe.source, ordered, inspection.probe, source).ignore(ignore)


def check_inspection(inspection: Inspection) -> list[Finding]:
    """Run the checks that need nothing but the tensors themselves."""
    return [
        *check_tensors(inspection),
        *check_siblings(inspection),
        *check_adapter_layers(inspection.adapter),
        *check_coverage(inspection),
    ]


def merge_findings(findings: Iterable[Finding], more: Iterable[Finding]) -> list[Finding]:
    """Add findings; of two of one kind about one layer keep the more serious."""
    best: dict[tuple[str, str | None], Finding] = {}
    for finding in (*findings, *more):
        place = finding.kind, finding.layer
        if place not in best or not best[place].severity.reaches(finding.severity):
            best[place] = finding
    return list(best.values())


def sort_findings(findings: Iterable[Finding], inspection: Inspection) -> tuple[Finding, ...]:
    """Sort by severity, then by the order of the layers; add how often healthy networks have it."""
    places = {row.name: place for place, row in enumerate(inspection.probe.layers)}
    ordered = sorted(findings, key=lambda f: (_ORDER[f.severity], places.get(f.layer or "", -1)))
    return tuple(_add_confidence(finding) for finding in ordered)


def _add_confidence(finding: Finding) -> Finding:
    if finding.severity is Severity.NOTE or KINDS[finding.kind].is_of_adapters:
        return finding
    alarms = describe_alarms(finding.kind, finding.severity.value)
    text = " ".join(filter(None, (finding.confidence, alarms)))
    return dataclasses.replace(finding, confidence=text)


def _require_common_names(inspection: Inspection, base: Inspection) -> None:
    ours = {row.name for row in inspection.probe.layers}
    if not ours & {row.name for row in base.probe.layers}:
        raise ProbeMismatchError(
            f"{inspection.probe.source} and its base {base.probe.source} have no tensor of the "
            "same name; give the network that this one was made from."
        )
