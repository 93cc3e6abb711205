"""Studies: a grid of runs, trained on all cores or on a cluster, and its results.

Names are imported when they are first used, so that a table does not wait for what training needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise._lazy import import_lazily

if TYPE_CHECKING:
    from rankwise.study.archive import pack, unpack
    from rankwise.study.export import to_csv, to_json, to_latex, to_markdown
    from rankwise.study.grid import GridPoint, Study, read_study
    from rankwise.study.local import LocalRunner
    from rankwise.study.progress import StudyProgress, read_progress
    from rankwise.study.ray_cluster import RayRunner
    from rankwise.study.results import StudyResults, collect_results
    from rankwise.study.runner import StudyOutcome, run_study
    from rankwise.study.summary import format_layers, format_trials
    from rankwise.study.table import StudyTable, Trials, build_table, group_trials
else:  # type checkers would take every name for defined
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            ".archive": "pack unpack",
            ".export": "to_csv to_json to_latex to_markdown",
            ".grid": "GridPoint Study read_study",
            ".local": "LocalRunner",
            ".progress": "StudyProgress read_progress",
            ".ray_cluster": "RayRunner",
            ".results": "StudyResults collect_results",
            ".runner": "StudyOutcome run_study",
            ".summary": "format_layers format_trials",
            ".table": "StudyTable Trials build_table group_trials",
        },
    )

__all__ = [
    "GridPoint",
    "LocalRunner",
    "RayRunner",
    "Study",
    "StudyOutcome",
    "StudyProgress",
    "StudyResults",
    "StudyTable",
    "Trials",
    "build_table",
    "collect_results",
    "format_layers",
    "format_trials",
    "group_trials",
    "pack",
    "read_progress",
    "read_study",
    "run_study",
    "to_csv",
    "to_json",
    "to_latex",
    "to_markdown",
    "unpack",
]
