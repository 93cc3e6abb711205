"""What a check found → the cards that a page begins with, and the marks in its charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rankwise._text import format_name, sanitize
from rankwise.checks.kinds import KINDS
from rankwise.checks.text import group_findings
from rankwise.reports.page import FindingCard, FindingList, FoundLayer

if TYPE_CHECKING:
    from rankwise.checks.findings import Finding, Findings

MOST_NAMED = 200  # layers of one card
_MARKED = ("warning", "error")  # the worse the later; a note proves nothing, so it is not marked


def list_findings(findings: Findings, layers: Sequence[str]) -> FindingList:
    """Return the cards of a page, on which the layers given are numbered from 1.

    Many findings of one kind share a card, as they share a paragraph in a terminal.
    """
    numbers = {name: number for number, name in enumerate(layers, 1)}
    groups = group_findings(findings)
    return FindingList(
        sanitize(findings.summary()), tuple(_make_card(group, numbers) for group in groups)
    )


def find_severities(findings: Findings) -> dict[str, str]:
    """Return the worst severity of each layer that has a warning or an error, by its name."""
    worst: dict[str, str] = {}
    for severity in _MARKED:
        found = (one for one in findings if one.severity.value == severity)
        worst |= {one.layer: severity for one in found if one.layer is not None}
    return worst


def _make_card(group: Sequence[Finding], numbers: Mapping[str, int]) -> FindingCard:
    first = group[0]
    example = f"For example {format_name(first.layer)}: " if len(group) > 1 and first.layer else ""
    return FindingCard(
        severity=first.severity.value,
        kind=first.kind,
        title=KINDS[first.kind].title,
        layers=tuple(
            FoundLayer(format_name(one.layer), numbers.get(one.layer))
            for one in group[:MOST_NAMED]
            if one.layer is not None
        ),
        message=f"{example}{sanitize(first.message)}",
        confidence=sanitize(first.confidence),
        advice=sanitize(first.advice),
        hidden=max(len(group) - MOST_NAMED, 0),
    )
