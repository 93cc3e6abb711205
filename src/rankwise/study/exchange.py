"""What a study found, for other programs: CSV with a line a cell, and JSON with all of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rankwise._text import join_lines
from rankwise.study.columns import Task
from rankwise.study.findings import Findings
from rankwise.study.leads import Lead
from rankwise.study.tables import Entry
from rankwise.study.tried import Tried

__all__ = ["harmless", "to_csv", "to_json"]

_COLUMNS = (
    *("setting", "task", "network", "data", "score", "mean", "sd", "n"),
    *("diverged", "unscored", "unfinished", "mark", "seeds", "values"),
)
_FORMULA = ("=", "+", "-", "@")


def to_csv(found: Findings) -> str:
    """A line for each setting and task; shares as 0 … 1, seeds and values with blanks between.

    Names that a spreadsheet would take for a formula get an apostrophe in front.

    Args:
        found: What to write.

    Example:
        >>> from rankwise.study.findings import findings
        >>> to_csv(findings([])).split(",")[:3]
        ['setting', 'task', 'network']
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in _rows(found):
        lists = {name: " ".join(map(repr, row[name])) for name in ("seeds", "values")}
        words = {name: harmless(value) for name, value in row.items() if isinstance(value, str)}
        writer.writerow({**row, **words, **lists})
    return text.getvalue()


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula.

    Example:
        >>> harmless("=1+1")
        "'=1+1"
    """
    shown = join_lines(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def _rows(found: Findings) -> Iterator[dict[str, Any]]:
    table = found.table
    for task in table.tasks:
        for setting in table.settings:
            entry = table.entries.get((setting, task))
            if entry is not None:
                yield {"setting": setting, "task": task.label, **_row(task, entry)}


def _row(task: Task, entry: Entry) -> dict[str, Any]:
    one = entry.found
    return {
        "network": task.network,
        "data": task.data,
        "score": one.score,
        "mean": one.mean,
        "sd": one.spread,
        "n": len(one.values),
        "diverged": one.diverged,
        "unscored": one.unscored,
        "unfinished": one.unfinished,
        "mark": entry.mark,
        "seeds": [run.config.seed for run in one.finished],
        "values": list(one.values),
    }


def to_json(found: Findings) -> str:
    """All of it as JSON: cells, tests, what was tried, machines, and how many runs are missing.

    Args:
        found: What to write.

    Example:
        >>> from rankwise.study.findings import findings
        >>> import json
        >>> json.loads(to_json(findings([])))["cells"]
        []
    """
    content = {
        "title": found.title,
        "about": found.about,
        "cells": list(_rows(found)),
        "reference": found.reference,
        "paired": [_lead(lead) for lead in found.leads],
        "tried": [_tried(one) for one in found.tried],
        "machines": list(found.machines),
        "runs": {"asked": found.asked, "missing": found.missing},
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _lead(lead: Lead) -> dict[str, Any]:
    return {
        "task": lead.task.label,
        "first": lead.first.setting,
        "second": lead.second.setting,
        **asdict(lead.test),
        "holm": lead.adjusted,
        "told_apart": lead.told_apart,
    }


def _tried(found: Tried) -> dict[str, Any]:
    return {
        **found.labels._asdict(),
        "score": found.score,
        "candidates": [asdict(one) for one in found.candidates],
    }
