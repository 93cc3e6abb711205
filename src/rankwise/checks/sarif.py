"""Findings as SARIF 2.1.0, the format of code-scanning services such as GitHub's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import rankwise
from rankwise.checks.findings import Finding, Findings
from rankwise.checks.kinds import KINDS

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def format_sarif(results: Sequence[Findings]) -> str:
    """Return the findings of one file or several as a SARIF log.

    Example:
        >>> import json, torch, rankwise
        >>> from rankwise.checks.sarif import format_sarif
        >>> log = json.loads(format_sarif([rankwise.check({"w": torch.zeros(4, 4)})]))
        >>> log["runs"][0]["results"][0]["ruleId"]
        'all-zero'
    """
    names = sorted({finding.kind for result in results for finding in result})
    driver = {
        "name": "rankwise",
        "version": rankwise.__version__,
        "rules": [_describe_rule(name) for name in names],
    }
    rows = [_describe_result(finding, result.source) for result in results for finding in result]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": rows}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _describe_rule(name: str) -> dict[str, Any]:
    kind = KINDS[name]
    return {
        "id": name,
        "shortDescription": {"text": f"{kind.title}."},
        "help": {"text": kind.advice},
    }


def _describe_result(finding: Finding, source: str) -> dict[str, Any]:
    where: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(PurePath(source).as_posix())},
            # A place in a binary file has no line; services show results only with one.
            "region": {"startLine": 1},
        }
    }
    if finding.layer is not None:
        where["logicalLocations"] = [{"fullyQualifiedName": finding.layer, "kind": "member"}]
    subject = "" if finding.layer is None else f"{finding.layer}: "
    text = f"{subject}{finding.message} {finding.advice}"
    return {
        "ruleId": finding.kind,
        "level": finding.severity.value,
        "message": {"text": text},
        "locations": [where],
        "partialFingerprints": {"rankwise/v1": f"{finding.kind}:{finding.layer or ''}"},
        "properties": dict(finding.figures),
    }
