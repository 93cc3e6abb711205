"""Reports: a checkpoint, several, a run or a study as one page; and a page to watch runs live."""

from rankwise.reports.write import write_report

__all__ = ["write_report"]
