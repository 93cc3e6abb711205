"""Studies: a grid of runs, trained on all cores or on a cluster, and what came out of it."""

from rankwise.lab.study.archive import pack, unpack
from rankwise.lab.study.cluster import RayCrew
from rankwise.lab.study.exchange import to_csv, to_json
from rankwise.lab.study.findings import Findings, findings
from rankwise.lab.study.grid import Study, read_study
from rankwise.lab.study.latex import to_latex
from rankwise.lab.study.local import LocalCrew
from rankwise.lab.study.markdown import to_markdown
from rankwise.lab.study.progress import StudyProgress, study_progress
from rankwise.lab.study.run import StudyOutcome, run_study

__all__ = [
    "Findings",
    "LocalCrew",
    "RayCrew",
    "Study",
    "StudyOutcome",
    "StudyProgress",
    "findings",
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
