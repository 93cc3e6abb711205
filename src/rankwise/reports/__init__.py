"""Reports: a checkpoint, several, a run or a study as one page; and a server that watches runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rankwise.charts  # noqa: F401 - says which extra is missing
from rankwise._lazy import import_lazily

if TYPE_CHECKING:
    from rankwise.reports.report import write_report
else:  # on first use: the watch server needs none of a study's statistics
    __getattr__, __dir__ = import_lazily(__name__, {".report": "write_report"})

__all__ = ["write_report"]
