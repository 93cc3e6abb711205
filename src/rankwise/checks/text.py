"""Findings in plain text: one line for a clean network, a few lines for each problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rankwise._text import format_count, format_name, format_percent, sanitize, wrap
from rankwise.checks.inspection import measure_coverage
from rankwise.checks.kinds import KINDS
from rankwise.numerics.randomness import Verdict
from rankwise.weights.tensor import Status

if TYPE_CHECKING:
    from rankwise.checks.findings import Finding, Findings

_INDENT = "  "
_MAX_SINGLE = 3  # findings of one kind and severity that are described one by one
_MAX_NAMES = 4
_MOSTLY_CHECKED = 0.9
_COUNTED = (Status.PROBED, Status.NOT_FINITE, Status.UNREADABLE)


def format_summary(result: Findings) -> str:
    """Return the result in one line.

    Example:
        >>> import torch, rankwise
        >>> rankwise.check({"fc.weight": torch.eye(8) + 1.0}).summary()
        '1 layer, no problems found; 1 too small to tell from random weights.'
    """
    layers = [row for row in result.probe.layers if row.status in _COUNTED and len(row.shape) > 1]
    clauses = [_count_problems(result, len(layers)), *_count_verdicts(result)]
    coverage = measure_coverage(result.probe)
    if layers and coverage < _MOSTLY_CHECKED:
        clauses.append(f"{format_percent(coverage)} of parameters checked")
    if codes := sum(row.status is Status.QUANTISED for row in result.probe.layers):
        clauses.append(f"{format_count(codes, 'quantised weight')} not measured")
    if result.ignored:
        clauses.append(f"{format_count(result.ignored, 'finding')} ignored")
    return "; ".join(clauses) + "."


def _count_problems(result: Findings, layers: int) -> str:
    errors, warnings = len(result.select("error")), len(result.select("warning"))
    if errors or warnings:
        counts = [
            format_count(number, noun)
            for number, noun in ((errors, "error"), (warnings, "warning"))
            if number
        ]
        where = f" in {format_count(layers, 'layer')}" if layers else "; no layer could be checked"
        return f"{', '.join(counts)}{where}"
    if not layers:
        return "No layer could be checked"
    return f"{format_count(layers, 'layer')}, no problems found"


def _count_verdicts(result: Findings) -> Iterator[str]:
    figures = result.probe.figures
    flat = sum(row.verdict is Verdict.FLAT for row in result.probe.probed)
    differ, judged, small = figures.differing, figures.judged, figures.too_small
    if judged:
        share = f"{differ}" if differ == judged else f"{differ} of {judged}"
        verb = "differs" if differ == judged == 1 else "differ"
        rest = f", {flat} flatter than random" if flat else ""
        rest += f", {small} too small to tell" if small else ""
        yield f"{share} {verb} from random weights{rest}"
    elif small:
        yield f"{small} too small to tell from random weights"


def format_findings(result: Findings, *, width: int | None = 80) -> str:
    """Return the summary, then every finding with what to check; many of one kind are grouped."""
    parts = [wrap(result.summary(), width)]
    parts += [format_group(group, width) for group in group_findings(result.findings)]
    return "\n\n".join(parts)


def group_findings(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Put findings of one kind and severity into one group where there are many of them."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity.value, finding.kind), []).append(finding)
    result: list[list[Finding]] = []
    for group in groups.values():
        result += [group] if len(group) > _MAX_SINGLE else [[finding] for finding in group]
    return result


def format_group(group: Sequence[Finding], width: int | None) -> str:
    """Return the lines of a finding, or of several of one kind."""
    first = group[0]
    head = f"{first.severity.value}: {_name_layers(group)} [{first.kind}]"
    example = "" if len(group) == 1 else f"For example {_name(first)}: "
    body = [f"{example}{sanitize(first.message)}"]
    if first.confidence:
        body.append(first.confidence)
    body.append(f"Next: {first.advice}")
    return "\n".join([wrap(head, width), *(wrap(_INDENT + line, width, _INDENT) for line in body)])


def _name_layers(group: Sequence[Finding]) -> str:
    if len(group) == 1:
        return _name(group[0])
    names = ", ".join(_name(finding) for finding in group[:_MAX_NAMES])
    title = KINDS[group[0].kind].title.lower()
    rest = len(group) - _MAX_NAMES
    more = f" and {rest} more" if rest > 0 else ""
    return f"{title} in {format_count(len(group), 'layer')}: {names}{more}"


def _name(finding: Finding) -> str:
    return "the whole file" if finding.layer is None else format_name(finding.layer)
