"""What a check found: typed findings, errors first, as data for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from rankwise._text import explain_unknown, quote, sanitize, shorten
from rankwise.checks.kinds import KINDS
from rankwise.checks.text import format_findings, format_summary
from rankwise.errors import ArgumentError
from rankwise.probes.results import Probe

_FORMAT = "rankwise-findings"
SCHEMA_VERSION = 1

Figure = float | int | str
_LONGEST_MESSAGE = 400  # of a finding's repr


class Severity(str, Enum):
    """How serious a finding is.

    An error is something that healthy networks do not have; a warning is unusual and may be
    intended; a note is a fact that proves nothing by itself.

    Example:
        >>> import rankwise
        >>> rankwise.Severity("error") is rankwise.Severity.ERROR
        True
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    def __str__(self) -> str:
        return self.value

    def reaches(self, other: Severity) -> bool:
        """Return whether this severity is as serious as another, or more."""
        order = list(Severity)
        return order.index(self) <= order.index(other)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of one layer, or of the whole file.

    Attributes:
        kind: The stable name of the kind of problem; `rankwise.checks.KINDS` explains all.
        severity: Whether healthy networks have it.
        layer: The tensor's name; None for the whole file.
        message: What was found, in a sentence.
        advice: What to check next.
        confidence: How often healthy networks show the same, as measured; may be empty.
        figures: The numbers behind it.

    Example:
        >>> import torch, rankwise
        >>> finding = rankwise.check({"fc.weight": torch.zeros(8, 8)}).findings[0]
        >>> finding.kind, finding.severity.value, finding.layer
        ('all-zero', 'error', 'fc.weight')
    """

    kind: str
    severity: Severity
    layer: str | None
    message: str
    advice: str
    confidence: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)

    def __repr__(self) -> str:
        place = "" if self.layer is None else f" of {quote(self.layer)}"
        message = shorten(sanitize(self.message), _LONGEST_MESSAGE)
        return f"<Finding {self.kind}{place}, {self.severity}: {message}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain types."""
        return {
            "kind": self.kind,
            "severity": self.severity.value,
            "layer": self.layer,
            "message": self.message,
            "advice": self.advice,
            "confidence": self.confidence,
            "figures": dict(self.figures),
        }


@dataclass(frozen=True)
class Findings:
    """The result of `rankwise.check`: what is wrong with a network, and its probe.

    Attributes:
        source: What was checked: a path, or a class name.
        findings: Errors first, then warnings and notes, each in the order of the layers.
        probe: The metrics of every layer, with spectra.
        base: What it was compared with; None without a base.
        ignored: How many findings `ignore` left out.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> broken = torch.randn(32, 64)
        >>> broken[3, 5] = float("nan")
        >>> result = rankwise.check({"fc.weight": broken})
        >>> result.has_errors, [finding.kind for finding in result]
        (True, ['not-finite'])
    """

    source: str
    findings: tuple[Finding, ...]
    probe: Probe
    base: str | None = None
    ignored: int = 0

    def __iter__(self) -> Iterator[Finding]:
        """Iterate over the findings, errors first."""
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def has_errors(self) -> bool:
        """Whether there is an error."""
        return bool(self.select(Severity.ERROR))

    def select(self, severity: Severity | str) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        wanted = Severity(severity)
        return tuple(finding for finding in self.findings if finding.severity is wanted)

    def reach(self, severity: Severity | str) -> bool:
        """Return whether a finding is at least as serious as this."""
        limit = Severity(severity)
        return any(finding.severity.reaches(limit) for finding in self.findings)

    def ignore(self, patterns: Iterable[str]) -> Findings:
        """Return the findings without those that match `KIND` or `KIND:LAYER`, a glob.

        Raises:
            ArgumentError: If there is no such kind.
        """
        rules = [parse_ignore(pattern) for pattern in patterns]
        kept = tuple(f for f in self.findings if not any(_matches(f, *rule) for rule in rules))
        ignored = self.ignored + len(self.findings) - len(kept)
        return replace(self, findings=kept, ignored=ignored)

    def summary(self) -> str:
        """Return the result in one line."""
        return format_summary(self)

    def table(self, *, width: int | None = 80) -> str:
        """Return the summary and all findings as plain text."""
        return format_findings(self, width=width)

    def __repr__(self) -> str:
        return f"<Findings of {quote(self.source)}: {self.summary().rstrip('.')}>"

    def __str__(self) -> str:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain types, with the version of this schema."""
        counts = {f"{severity.value}s": len(self.select(severity)) for severity in Severity}
        return {
            "format": _FORMAT,
            "version": SCHEMA_VERSION,
            "source": self.source,
            "base": self.base,
            "summary": self.summary(),
            **counts,
            "ignored": self.ignored,
            "layers": self.count_verdicts(),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def count_verdicts(self) -> dict[str, int]:
        """Count the probed layers by what the comparison with random weights says."""
        counts = {"probed": len(self.probe.probed)}
        for layer in self.probe.probed:
            if layer.verdict is not None:
                counts[layer.verdict.value] = counts.get(layer.verdict.value, 0) + 1
        return counts

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the findings as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


def parse_ignore(pattern: str) -> tuple[str, str]:
    """Split `KIND[:LAYER]` into a kind and a glob.

    Raises:
        ArgumentError: If there is no such kind.
    """
    kind, _, layer = pattern.partition(":")
    if kind not in KINDS:
        reason = explain_unknown("kind", kind, list(KINDS))
        raise ArgumentError(
            f"Expected KIND or KIND:LAYER to ignore, got {quote(pattern)}. {reason}"
        )
    return kind, layer or "*"


def _matches(finding: Finding, kind: str, glob: str) -> bool:
    return finding.kind == kind and fnmatchcase(finding.layer or "", glob)


def make_finding(
    kind: str,
    severity: Severity,
    layer: str | None,
    message: str,
    *,
    confidence: str = "",
    **figures: Figure,
) -> Finding:
    """Make a finding with the advice of its kind."""
    return Finding(kind, severity, layer, message, KINDS[kind].advice, confidence, figures)
