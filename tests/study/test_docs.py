"""docs/study.md says what the code does."""

import json
import re

import pytest

from rankwise.lab.config import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.size_space import sample_networks
from rankwise.study.grid import read_study
from rankwise.study.results import collect_results
from tests import ROOT

pytest.importorskip("lightning_fabric")

PAGE = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")


def test_the_study_is_understood(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "study.toml").write_text(block, encoding="utf-8")
    study = read_study(tmp_path / "study.toml")
    assert len(study.points) == 2 * 2 * 3
    assert {c.data for point in study.points for c in point.candidates} == {"cifar10"}


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
    assert collect_results([], study).expected >= len(study.points)  # labels are unique
    sizes = {resolve(point.config).epochs for point in study.points}
    assert path.parent.name == "paper" or max(filter(None, sizes)) <= 30


def test_the_study_of_the_size_space_trains_the_sample_that_it_names():
    study = read_study(STUDIES / "cpu" / "nats.toml")
    assert "sample_networks(64, seed=0)" in study.about
    trained = {}
    for point in study.points:
        trained.setdefault(point.config.epochs, []).append(point.config.network)
    assert trained == dict.fromkeys((2, 15), sample_networks(64, seed=0))


@pytest.mark.parametrize("scale", ["paper", "cpu"])
def test_every_table_and_figure_has_a_study_at_both_scales(scale):
    assert {path.stem for path in (STUDIES / scale).glob("*.toml")} >= PAPER


def test_records_are_of_studies_that_are_there():
    known = {path.stem for path in (STUDIES / "cpu").glob("*.toml")}
    assert {path.stem for path in (STUDIES / "records").glob("*.jsonl")} <= known


@pytest.mark.parametrize(
    "path", sorted(STUDIES.glob("records/*.jsonl")), ids=lambda path: path.stem
)
def test_recorded_runs_have_the_names_that_their_options_give(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [record for line in lines if "config" in (record := json.loads(line))]
    assert records
    for record in records:
        config = Config(**record["config"])
        assert config.name == resolve(config).name == record["name"]
