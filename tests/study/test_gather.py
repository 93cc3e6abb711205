"""A study's runs among others, its rows and columns, and what is missing."""

import pytest

from rankwise.lab import ConfigError, load_runs
from rankwise.study.findings import findings
from rankwise.study.gather import gather
from tests.study.small_study import TOML, filled, marked, study_in, written


def test_methods_are_rows_and_tasks_columns(tmp_path):
    study = study_in(tmp_path)
    found = findings(filled(study, marked), study)
    assert set(found.table.settings) == {"RMSGD", "SGD, cosine"}
    assert [task.label for task in found.table.tasks] == ["cifar10", "cifar100"]
    assert (found.title, found.about, found.missing) == ("Two methods", "On two tasks.", 0)
    assert all(len(entry.found.values) == 3 for entry in found.table.entries.values())


def test_the_trials_of_a_tuned_cell_are_those_with_the_chosen_rate(tmp_path):
    study = study_in(tmp_path)
    own = gather(study, filled(study, best=0.01))
    assert {run.config.lr for run in own.trials if run.config.optimizer == "rmsgd"} == {0.01}
    assert [one.labels.setting for one in own.tried] == ["RMSGD", "RMSGD"]
    assert own.tried[0].chosen.options == {"lr": 0.01}
    assert [one.score for one in own.tried[0].candidates] == [0.7, 0.5]


def test_as_long_as_a_candidate_runs_nothing_is_chosen_and_its_trials_are_missing(tmp_path):
    study = study_in(tmp_path)
    cell = study.cells[0]
    written(cell.candidates[0], 0.9)
    written(cell.candidates[1], 0.5, status=None)
    found = findings(load_runs(tmp_path / "runs"), study)
    assert found.tried[0].chosen is None
    assert [one.status for one in found.tried[0].candidates] == ["finished", "unfinished"]
    assert (found.asked, found.missing) == (2 * (2 + 3 + 3), 2 * (2 + 3 + 3) - 1)
    assert found.table.entries == {}


def test_runs_of_others_and_more_seeds_are_left_out(tmp_path):
    study = study_in(tmp_path)
    sgd = next(cell for cell in study.cells if cell.labels["method"] == "SGD, cosine")
    written(sgd.config.with_(seed=7), 0.9)
    written(sgd.config.with_(momentum=0.5), 0.9)
    assert gather(study, load_runs(tmp_path / "runs")).runs == ()


def test_an_axis_of_optimizers_and_batch_sizes_is_one_of_rows(tmp_path):
    text = """
[[method]]
optimizer = "sgd"
batch_size = 32
[[method]]
optimizer = "adam"
batch_size = 64
"""
    labels = list(gather(study_in(tmp_path, text), []).names)
    assert [one.setting for one in labels] == ["sgd batch_size=32", "adam batch_size=64"]
    assert {one.task for one in labels} == {"resnet20 digits"}


def test_a_list_of_rates_makes_rows_and_one_of_batch_sizes_columns(tmp_path):
    text = '[options]\noptimizer = "sgd"\nlr = [0.1, 0.2]\nbatch_size = [32, 64]\n'
    labels = gather(study_in(tmp_path, text), []).names
    assert {one.setting for one in labels} == {"lr=0.1", "lr=0.2"}
    assert {one.task for one in labels} == {"batch_size=32", "batch_size=64"}


def test_an_unknown_score_is_refused_with_those_there_are(tmp_path):
    study = study_in(tmp_path)
    with pytest.raises(ConfigError, match="accuracy; got beauty"):
        findings(filled(study), study, score="beauty")


def test_without_a_study_all_runs_count_and_tuning_stays_out(tmp_path):
    found = findings(filled(study_in(tmp_path)))
    assert (len(found.runs), found.missing) == (16, 0)
    assert sum(len(entry.found.values) for entry in found.table.entries.values()) == 12
    assert TOML.count("[[method]]") == len(found.table.settings)
