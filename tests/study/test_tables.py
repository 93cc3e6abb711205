"""The paper's table: settings by tasks, what is best, and what is within a standard deviation."""

import pytest

from rankwise.lab import ConfigError, load_runs
from rankwise.study.columns import Labels, trials_name
from rankwise.study.tables import study_table
from tests.lab.runs import epoch, written


def trials(out, values, *, score="accuracy", status="finished", first=0, **options):
    for seed, value in enumerate(values, first):
        written(out, [epoch(1, score=score, value=value)], status=status, seed=seed, **options)


def marks(table, task):
    found = {setting: table.entries.get((setting, task)) for setting in table.settings}
    return {setting: entry.mark for setting, entry in found.items() if entry}


def test_rows_are_settings_and_columns_networks_with_data(tmp_path):
    for network, base in (("resnet20", 0.5), ("vgg16", 0.7)):
        for optimizer, gain in (("rmsgd", 0.1), ("sgd", 0.0)):
            values = [base + gain, base + gain + 0.02]
            trials(tmp_path, values, network=network, data="cifar10", optimizer=optimizer)
    table = study_table(load_runs(tmp_path))
    assert [task.label for task in table.tasks] == ["resnet20 cifar10", "vgg16 cifar10"]
    assert table.settings == ("rmsgd", "sgd")
    found = table.entries["sgd", table.tasks[1]].found
    assert found.mean == pytest.approx(0.71)
    assert found.spread == pytest.approx(0.02 / 2**0.5)
    assert len(found.runs) == len(found.finished) == 2


def test_the_best_is_marked_and_those_within_the_larger_deviation(tmp_path):
    trials(tmp_path, [0.78, 0.80, 0.82], optimizer="rmsgd")  # 0.80 ± 0.02
    trials(tmp_path, [0.785, 0.785, 0.785], optimizer="sgd")  # within the best's
    trials(tmp_path, [0.71, 0.75, 0.79], optimizer="adam")  # 0.75 ± 0.04: within neither
    trials(tmp_path, [0.70, 0.76, 0.82], optimizer="adamw")  # 0.76 ± 0.06: within its own
    table = study_table(load_runs(tmp_path))
    found = marks(table, table.tasks[0])
    assert found == {"rmsgd": "best", "sgd": "close", "adam": "", "adamw": "close"}
    assert [entry.found.setting for entry in table.column(table.tasks[0])] == [
        *("rmsgd", "sgd", "adamw", "adam"),
    ]


def test_single_trials_have_no_deviation_so_only_the_best_is_marked(tmp_path):
    trials(tmp_path, [0.800], optimizer="rmsgd")
    trials(tmp_path, [0.799], optimizer="sgd")
    table = study_table(load_runs(tmp_path))
    assert marks(table, table.tasks[0]) == {"rmsgd": "best", "sgd": ""}


def test_a_lone_setting_is_not_called_best(tmp_path):
    trials(tmp_path, [0.8, 0.9])
    table = study_table(load_runs(tmp_path))
    assert marks(table, table.tasks[0]) == {"rmsgd": ""}


@pytest.mark.parametrize(("score", "network"), [("perplexity", "lstm1"), ("frechet", "wgan")])
def test_less_is_better_for_perplexity_and_distance(tmp_path, score, network):
    trials(tmp_path, [90.0, 91.0], score=score, network=network, optimizer="sgd")
    trials(tmp_path, [70.0, 71.0], score=score, network=network, optimizer="adam")
    table = study_table(load_runs(tmp_path))
    assert table.tasks[0].score == score
    assert table.settings == ("adam", "sgd")
    assert marks(table, table.tasks[0]) == {"adam": "best", "sgd": ""}


def test_batch_sizes_and_cutout_make_columns_where_they_vary(tmp_path):
    for size in (32, 128):
        trials(tmp_path, [0.5], optimizer="sgd", batch_size=size)
    trials(tmp_path, [0.5], optimizer="sgd", network="vgg16", batch_size=64)
    trials(tmp_path, [0.5], optimizer="sgd", network="vgg19", cutout=True)
    trials(tmp_path, [0.5], optimizer="sgd", network="vgg19", cutout=False)
    assert [task.label for task in study_table(load_runs(tmp_path)).tasks] == [
        "resnet20 digits batch_size=32",
        "resnet20 digits batch_size=128",
        "vgg16 digits",
        "vgg19 digits cutout=False",
        "vgg19 digits cutout=True",
    ]


def test_settings_are_named_by_what_varies_for_their_optimizer_within_a_column(tmp_path):
    for beta in (0.8, 0.95):
        trials(tmp_path, [0.5], optimizer="rmsgd", beta=beta)
    trials(tmp_path, [0.4], optimizer="sgd")
    # An LSTM's rate is another one; that does not make sgd two settings.
    trials(tmp_path, [99.0], score="perplexity", network="lstm1", optimizer="sgd")
    table = study_table(load_runs(tmp_path))
    assert set(table.settings) == {"rmsgd beta=0.8", "rmsgd beta=0.95", "sgd"}
    assert {task for setting, task in table.entries if setting == "sgd"} == set(table.tasks)


def test_unfinished_and_diverged_trials_are_counted_and_not_averaged(tmp_path):
    trials(tmp_path, [0.5, 0.7])
    trials(tmp_path, [0.9], status=None, first=5)
    trials(tmp_path, [0.1], status="diverged", first=6)
    table = study_table(load_runs(tmp_path))
    found = table.entries["rmsgd", table.tasks[0]].found
    assert (found.mean, found.unfinished, found.diverged) == (pytest.approx(0.6), 1, 1)
    assert (len(found.finished), len(found.runs)) == (2, 4)


def test_settings_without_a_score_come_last(tmp_path):
    trials(tmp_path, [0.9], optimizer="adam", status="diverged")
    trials(tmp_path, [0.1], optimizer="sgd")
    assert study_table(load_runs(tmp_path)).settings == ("sgd", "adam")


def labelled(out, *, names=None, **values):
    """A table of runs by optimizer, whose rate differs from network to network."""
    for network, rate in (("resnet20", 0.1), ("vgg16", 0.3)):
        for optimizer, value in values.items():
            trials(out, [value], network=network, optimizer=optimizer, lr=rate)
    runs = load_runs(out)
    made = {
        Labels(f"{run.config.optimizer}, tuned", f"Net {run.config.network}"): trials_name(
            run.config
        )
        for run in runs
    }
    return study_table(runs, made if names is None else names)


def test_a_study_names_its_rows_and_columns(tmp_path):
    table = labelled(tmp_path, sgd=0.6, adam=0.5)
    assert table.settings == ("sgd, tuned", "adam, tuned")
    assert [task.label for task in table.tasks] == ["Net resnet20", "Net vgg16"]
    assert table.tasks[1].network == "vgg16"
    assert len(table.entries) == 4
    assert marks(table, table.tasks[0]) == {"sgd, tuned": "best", "adam, tuned": ""}


def test_runs_that_a_study_does_not_name_are_left_out(tmp_path):
    assert labelled(tmp_path, names={}, sgd=0.6).entries == {}


def test_two_rows_may_share_their_runs(tmp_path):
    trials(tmp_path, [0.5, 0.6], optimizer="sgd")
    runs = load_runs(tmp_path)
    names = {Labels(row, "task"): trials_name(runs[0].config) for row in ("tuned", "as given")}
    table = study_table(runs, names)
    assert set(table.settings) == {"tuned", "as given"}
    assert {entry.mark for entry in table.entries.values()} == {"best"}


def test_columns_come_in_the_studys_order(tmp_path):
    for network in ("resnet20", "vgg16"):
        trials(tmp_path, [0.5], network=network, optimizer="sgd")
    runs = sorted(load_runs(tmp_path), key=lambda run: run.config.network, reverse=True)
    names = {Labels("sgd", run.config.network): trials_name(run.config) for run in runs}
    assert [task.label for task in study_table(runs, names).tasks] == ["vgg16", "resnet20"]


def test_tasks_of_one_network_and_data_are_told_apart_by_their_names(tmp_path):
    for size in (32, 128):
        trials(tmp_path, [0.5], optimizer="sgd", batch_size=size)
    runs = load_runs(tmp_path)
    names = {Labels("sgd", f"B{run.config.batch_size}"): trials_name(run.config) for run in runs}
    assert {task.rest for task in study_table(runs, names).tasks} == {"B32", "B128"}


def test_settings_whose_names_are_the_same_are_refused(tmp_path):
    for rate in (0.1, 0.1 + 1e-15):  # which are written alike
        trials(tmp_path, [0.5], optimizer="sgd", lr=rate)
    with pytest.raises(ConfigError, match=r"share the row 'sgd lr=0.1'.*\(lr\)"):
        study_table(load_runs(tmp_path))


def test_runs_scored_by_validation_are_no_trials(tmp_path):
    trials(tmp_path, [0.5, 0.6], optimizer="sgd", train_size=100)
    trials(tmp_path, [0.9], optimizer="sgd", train_size=100, validate=True)
    table = study_table(load_runs(tmp_path))
    assert table.settings == ("sgd",)
    assert table.entries["sgd", table.tasks[0]].found.values == (0.5, 0.6)


def test_training_sizes_make_columns(tmp_path):
    for size in (100, 200):
        trials(tmp_path, [0.5], optimizer="sgd", train_size=size)
    labels = [task.rest for task in study_table(load_runs(tmp_path)).tasks]
    assert labels == ["train_size=100", "train_size=200"]


def test_another_score_can_be_asked_for_and_sorts_its_own_way(tmp_path):
    for optimizer, accuracy, loss in (("sgd", 0.9, 2.0), ("adam", 0.8, 1.0)):
        records = [epoch(1, value=0.1), epoch(2, value=accuracy)]
        records[0].test["loss"], records[1].test["loss"] = 0.5, loss
        written(tmp_path, records, optimizer=optimizer)
    table = study_table(load_runs(tmp_path), score="loss")
    assert table.tasks[0].score == "loss"
    assert table.settings == ("adam", "sgd")
    assert marks(table, table.tasks[0]) == {"adam": "best", "sgd": ""}
    found = table.entries["sgd", table.tasks[0]].found
    assert (found.values, found.best) == ((2.0,), (0.5,))
