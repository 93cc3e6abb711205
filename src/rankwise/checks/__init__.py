"""Verdicts about a network: findings with a severity, the layer, the figures and what to check."""

from rankwise.checks.findings import Finding, Findings, Severity
from rankwise.checks.kinds import KINDS, Kind

__all__ = ["KINDS", "Finding", "Findings", "Kind", "Severity"]
