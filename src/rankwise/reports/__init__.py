"""Reports: a checkpoint, several, a run or a study as one page; and a server that watches runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rankwise.charts  # noqa: F401 - says which extra is missing

if TYPE_CHECKING:
    from rankwise.reports.report import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> object:
    """Import on first use: the watch server needs none of a study's statistics."""
    if name != "write_report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rankwise.reports.report import write_report  # noqa: PLC0415

    return write_report
