"""Reports: a checkpoint, several, a run or a study as one page; and a server that watches runs."""

from rankwise.reports.report import write_report

__all__ = ["write_report"]
