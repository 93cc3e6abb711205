"""Studies: a grid of runs, trained on all cores or on a cluster, and what came out of it."""

from rankwise.study.archive import pack, unpack
from rankwise.study.cluster import RayCrew
from rankwise.study.compare import Comparison, compare, comparison_table, layer_table
from rankwise.study.exchange import to_csv, to_json
from rankwise.study.findings import Findings, findings
from rankwise.study.grid import Study, read_study
from rankwise.study.latex import to_latex
from rankwise.study.local import LocalCrew
from rankwise.study.markdown import to_markdown
from rankwise.study.progress import StudyProgress, study_progress
from rankwise.study.run import StudyOutcome, run_study

__all__ = [
    "Comparison",
    "Findings",
    "LocalCrew",
    "RayCrew",
    "Study",
    "StudyOutcome",
    "StudyProgress",
    "compare",
    "comparison_table",
    "findings",
    "layer_table",
    "pack",
    "read_study",
    "run_study",
    "study_progress",
    "to_csv",
    "to_json",
    "to_latex",
    "to_markdown",
    "unpack",
]
