"""The studies that come with the project: all can be read, and the paper's have two scales."""

import pytest

from tests import ROOT

pytest.importorskip("lightning_fabric")

from rankwise.lab.defaults import resolve
from rankwise.study.gather import gather
from rankwise.study.grid import read_study

STUDIES = ROOT / "studies"
FILES = sorted(STUDIES.glob("*/*.toml"))
# Every table and figure of the paper.
PAPER = {
    "table_1a",
    "table_1b",
    "imagenet_batches",
    "pathology",
    "batch_sizes",
    "beta",
    "evolution",
    "epoch_times",
    "rates",
    "lstm",
    "wgan",
    "correlation",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_study_is_a_table_of_runs_that_can_be_asked_for(path):
    study = read_study(path)
    assert study.title
    assert gather(study, []).asked >= len(study.cells)  # rows and columns have names of their own
    sizes = {resolve(cell.config).epochs for cell in study.cells}
    assert path.parent.name == "paper" or max(filter(None, sizes)) <= 30


@pytest.mark.parametrize("scale", ["paper", "cpu"])
def test_every_table_and_figure_has_a_study_at_both_scales(scale):
    assert {path.stem for path in (STUDIES / scale).glob("*.toml")} >= PAPER


def test_records_are_of_studies_that_are_there():
    known = {path.stem for path in (STUDIES / "cpu").glob("*.toml")}
    assert {path.stem for path in (STUDIES / "records").glob("*.jsonl")} <= known
