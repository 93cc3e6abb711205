"""What a check found → the cards that a page begins with, and the marks in its charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise._text import sanitize
from rankwise.reports.page import FindingCard, FindingList

if TYPE_CHECKING:
    from rankwise.checks import Findings

_MARKED = ("warning", "error")  # the worse the later; a note proves nothing, so it is not marked


def list_findings(findings: Findings, layers: Sequence[str]) -> FindingList:
    """Return the cards of a page, on which the layers given are numbered from 1."""
    numbers = {name: number for number, name in enumerate(layers, 1)}
    cards = (
        FindingCard(
            severity=finding.severity.value,
            layer=sanitize(finding.layer or ""),
            number=numbers.get(finding.layer or ""),
            message=sanitize(finding.message),
            advice=sanitize(finding.advice),
        )
        for finding in findings
    )
    return FindingList(sanitize(findings.summary()), tuple(cards))


def find_severities(findings: Findings) -> dict[str, str]:
    """Return the worst severity of each layer that has a warning or an error, by its name."""
    worst: dict[str, str] = {}
    for severity in _MARKED:
        found = (one for one in findings if one.severity.value == severity)
        worst |= {one.layer: severity for one in found if one.layer is not None}
    return worst
