"""A study's runs among others, its rows and columns, and what is missing."""

import pytest

from rankwise.lab import ConfigError, load_runs
from rankwise.study.results import collect_results, select_runs
from rankwise.study.summary import describe_comparison
from tests.study.small_study import TOML, filled, marked, study_in, written


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    study = study_in(tmp_path_factory.mktemp("study"))
    return collect_results(filled(study, marked), study)


def test_methods_are_rows_and_tasks_columns(found):
    assert set(found.table.settings) == {"RMSGD", "SGD, cosine"}
    assert [task.label for task in found.table.tasks] == ["cifar10", "cifar100"]
    assert (found.title, found.about, found.missing) == ("Two methods", "On two tasks.", 0)
    assert all(len(entry.trials.values) == 3 for entry in found.table.entries.values())


def test_the_trials_of_a_tuned_point_are_those_with_the_chosen_rate(tmp_path):
    study = study_in(tmp_path)
    own = collect_results(filled(study, best=0.01), study)
    trials = [run for run in own.runs if not run.config.validate]
    assert {run.config.lr for run in trials if run.config.optimizer == "rmsgd"} == {0.01}
    assert [one.labels.setting for one in own.tuning] == ["RMSGD", "RMSGD"]
    assert own.tuning[0].best.options == {"lr": 0.01}
    assert [one.score for one in own.tuning[0].candidates] == [0.7, 0.5]


def test_as_long_as_a_candidate_runs_nothing_is_chosen_and_its_trials_are_missing(tmp_path):
    study = study_in(tmp_path)
    point = study.points[0]
    written(point.candidates[0], 0.9)
    written(point.candidates[1], 0.5, status=None)
    found = collect_results(load_runs(tmp_path / "runs"), study)
    assert found.tuning[0].best is None
    assert [one.status for one in found.tuning[0].candidates] == ["finished", "unfinished"]
    assert (found.expected, found.missing) == (2 * (2 + 3 + 3), 2 * (2 + 3 + 3) - 1)
    assert found.table.entries == {}


def test_runs_of_others_and_more_seeds_are_left_out(tmp_path):
    study = study_in(tmp_path)
    sgd = next(point for point in study.points if point.labels["method"] == "SGD, cosine")
    written(sgd.config.with_(seed=7), 0.9)
    written(sgd.config.with_(momentum=0.5), 0.9)
    assert select_runs(study, load_runs(tmp_path / "runs")) == ()


def test_an_axis_of_optimizers_and_batch_sizes_is_one_of_rows(tmp_path):
    text = """
[[method]]
optimizer = "sgd"
batch_size = 32
[[method]]
optimizer = "adam"
batch_size = 64
"""
    table = collect_results(filled(study := study_in(tmp_path, text)), study).table
    assert set(table.settings) == {"sgd batch_size=32", "adam batch_size=64"}
    assert [task.label for task in table.tasks] == ["resnet20 digits"]


def test_a_list_of_rates_makes_rows_and_one_of_batch_sizes_columns(tmp_path):
    text = '[options]\noptimizer = "sgd"\nlr = [0.1, 0.2]\nbatch_size = [32, 64]\n'
    table = collect_results(filled(study := study_in(tmp_path, text)), study).table
    assert set(table.settings) == {"lr=0.1", "lr=0.2"}
    assert [task.label for task in table.tasks] == ["batch_size=32", "batch_size=64"]


def test_an_unknown_score_is_refused_with_those_there_are(tmp_path):
    study = study_in(tmp_path)
    with pytest.raises(ConfigError, match=r"'beauty'.*accuracy"):
        collect_results(filled(study), study, score="beauty")


def test_without_a_study_all_runs_count_and_tuning_stays_out(tmp_path):
    found = collect_results(filled(study_in(tmp_path)))
    assert (len(found.runs), found.missing) == (16, 0)
    assert sum(len(entry.trials.values) for entry in found.table.entries.values()) == 12
    assert TOML.count("[[method]]") == len(found.table.settings)


def test_the_best_of_each_task_meets_its_runner_up(found):
    names = [
        (lead.task.label, lead.first.setting, lead.second.setting) for lead in found.comparisons
    ]
    assert names == [("cifar10", "RMSGD", "SGD, cosine"), ("cifar100", "RMSGD", "SGD, cosine")]


def test_equal_differences_are_not_tested_and_others_are_in_a_sentence(found):
    first, second = (describe_comparison(one) for one in found.comparisons)
    assert "cifar10: RMSGD 71.23 against SGD, cosine 61.23: +10.00 points over 3 seeds" in first
    assert "no t-test: all 3 differences are equal" in first
    assert "+0.07 points [−0.31, 0.45]" in second
    assert second.endswith("over 3 seeds: p = 0.53: no significant difference.")


def clear(labels, seed):
    return marked(labels, seed) + (0.001 * seed if labels["method"] == "RMSGD" else 0.0)


def test_chances_are_adjusted_over_all_tests_that_were_made(tmp_path):
    study = study_in(tmp_path)
    leads = collect_results(filled(study, clear), study).comparisons
    assert [lead.tests for lead in leads] == [2, 2]
    assert leads[0].adjusted == pytest.approx(2 * leads[0].test.p)
    assert leads[1].adjusted == pytest.approx(leads[1].test.p)
    assert [lead.is_significant for lead in leads] == [True, False]
    assert describe_comparison(leads[0]).endswith("(Holm: < 0.001): significant.")


def test_all_can_be_compared_with_one(tmp_path):
    study = study_in(tmp_path)
    found = collect_results(filled(study, clear), study, reference="RMSGD")
    assert {lead.second.setting for lead in found.comparisons} == {"RMSGD"}
    assert found.comparisons[0].test.difference == pytest.approx(-0.101)
    assert "−10.10 points" in describe_comparison(found.comparisons[0])


def test_an_unknown_row_is_refused_with_those_there_are(tmp_path):
    study = study_in(tmp_path)
    with pytest.raises(ConfigError, match=r"got 'SAM'.*'SGD, cosine'"):
        collect_results(filled(study), study, reference="SAM")


def test_differences_of_perplexities_keep_their_size(tmp_path):
    text = '[options]\nepochs = 2\nnetwork = "lstm1"\ndata = "ptb"\noptimizer = ["sgd", "adam"]\n'
    study = study_in(tmp_path, text)
    for point in study.points:
        value = 5.25 if point.config.optimizer == "sgd" else 5.2812345
        written(point.config, value, score="perplexity")
    (comparison,) = collect_results(load_runs(tmp_path / "runs"), study).comparisons
    assert "sgd 5.25 against adam 5.281: −0.03123 over 1 seed" in describe_comparison(comparison)
