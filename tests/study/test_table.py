"""The paper's table: settings by tasks, what is best, and what is within a standard deviation."""

import statistics

import pytest
from msgspec.structs import replace

from rankwise.lab import ConfigError, load_runs
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.records import LayerColumns
from rankwise.study import format_layers, format_trials, group_trials
from rankwise.study.table import Labels, build_table, setting_name
from tests.lab.runs import LAYERS, epoch, written


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
    table = build_table(load_runs(tmp_path))
    assert [task.label for task in table.tasks] == ["resnet20 cifar10", "vgg16 cifar10"]
    assert table.settings == ("rmsgd", "sgd")
    found = table.entries["sgd", table.tasks[1]].trials
    assert found.mean == pytest.approx(0.71)
    assert found.spread == pytest.approx(0.02 / 2**0.5)
    assert len(found.runs) == len(found.finished) == 2


def test_the_best_is_marked_and_those_within_the_larger_deviation(tmp_path):
    trials(tmp_path, [0.78, 0.80, 0.82], optimizer="rmsgd")  # 0.80 ± 0.02
    trials(tmp_path, [0.785, 0.785, 0.785], optimizer="sgd")  # within the best's
    trials(tmp_path, [0.71, 0.75, 0.79], optimizer="adam")  # 0.75 ± 0.04: within neither
    trials(tmp_path, [0.70, 0.76, 0.82], optimizer="adamw")  # 0.76 ± 0.06: within its own
    table = build_table(load_runs(tmp_path))
    found = marks(table, table.tasks[0])
    assert found == {"rmsgd": "best", "sgd": "close", "adam": "", "adamw": "close"}
    assert [entry.trials.setting for entry in table.column(table.tasks[0])] == [
        *("rmsgd", "sgd", "adamw", "adam"),
    ]


def test_single_trials_have_no_deviation_so_only_the_best_is_marked(tmp_path):
    trials(tmp_path, [0.800], optimizer="rmsgd")
    trials(tmp_path, [0.799], optimizer="sgd")
    table = build_table(load_runs(tmp_path))
    assert marks(table, table.tasks[0]) == {"rmsgd": "best", "sgd": ""}


def test_a_lone_setting_is_not_called_best(tmp_path):
    trials(tmp_path, [0.8, 0.9])
    table = build_table(load_runs(tmp_path))
    assert marks(table, table.tasks[0]) == {"rmsgd": ""}


@pytest.mark.parametrize(("score", "network"), [("perplexity", "lstm1"), ("frechet", "wgan")])
def test_less_is_better_for_perplexity_and_distance(tmp_path, score, network):
    trials(tmp_path, [90.0, 91.0], score=score, network=network, optimizer="sgd")
    trials(tmp_path, [70.0, 71.0], score=score, network=network, optimizer="adam")
    table = build_table(load_runs(tmp_path))
    assert table.tasks[0].score == score
    assert table.settings == ("adam", "sgd")
    assert marks(table, table.tasks[0]) == {"adam": "best", "sgd": ""}


def test_batch_sizes_and_cutout_make_columns_where_they_vary(tmp_path):
    for size in (32, 128):
        trials(tmp_path, [0.5], optimizer="sgd", batch_size=size)
    trials(tmp_path, [0.5], optimizer="sgd", network="vgg16", batch_size=64)
    trials(tmp_path, [0.5], optimizer="sgd", network="vgg19", cutout=True)
    trials(tmp_path, [0.5], optimizer="sgd", network="vgg19", cutout=False)
    assert [task.label for task in build_table(load_runs(tmp_path)).tasks] == [
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
    table = build_table(load_runs(tmp_path))
    assert set(table.settings) == {"rmsgd beta=0.8", "rmsgd beta=0.95", "sgd"}
    assert {task for setting, task in table.entries if setting == "sgd"} == set(table.tasks)


def test_unfinished_and_diverged_trials_are_counted_and_not_averaged(tmp_path):
    trials(tmp_path, [0.5, 0.7])
    trials(tmp_path, [0.9], status=None, first=5)
    trials(tmp_path, [0.1], status="diverged", first=6)
    table = build_table(load_runs(tmp_path))
    found = table.entries["rmsgd", table.tasks[0]].trials
    assert (found.mean, found.unfinished, found.diverged) == (pytest.approx(0.6), 1, 1)
    assert (len(found.finished), len(found.runs)) == (2, 4)


def test_settings_without_a_score_come_last(tmp_path):
    trials(tmp_path, [0.9], optimizer="adam", status="diverged")
    trials(tmp_path, [0.1], optimizer="sgd")
    assert build_table(load_runs(tmp_path)).settings == ("sgd", "adam")


def labelled(out, *, names=None, **values):
    """A table of runs by optimizer, whose rate differs from network to network."""
    for network, rate in (("resnet20", 0.1), ("vgg16", 0.3)):
        for optimizer, value in values.items():
            trials(out, [value], network=network, optimizer=optimizer, lr=rate)
    runs = load_runs(out)
    made = {
        Labels(f"{run.config.optimizer}, tuned", f"Net {run.config.network}"): setting_name(
            run.config
        )
        for run in runs
    }
    return build_table(runs, made if names is None else names)


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
    names = {Labels(row, "task"): setting_name(runs[0].config) for row in ("tuned", "as given")}
    table = build_table(runs, names)
    assert set(table.settings) == {"tuned", "as given"}
    assert {entry.mark for entry in table.entries.values()} == {"best"}


def test_columns_come_in_the_studys_order(tmp_path):
    for network in ("resnet20", "vgg16"):
        trials(tmp_path, [0.5], network=network, optimizer="sgd")
    runs = sorted(load_runs(tmp_path), key=lambda run: run.config.network, reverse=True)
    names = {Labels("sgd", run.config.network): setting_name(run.config) for run in runs}
    assert [task.label for task in build_table(runs, names).tasks] == ["vgg16", "resnet20"]


def test_tasks_of_one_network_and_data_are_told_apart_by_their_names(tmp_path):
    for size in (32, 128):
        trials(tmp_path, [0.5], optimizer="sgd", batch_size=size)
    runs = load_runs(tmp_path)
    names = {Labels("sgd", f"B{run.config.batch_size}"): setting_name(run.config) for run in runs}
    assert {task.rest for task in build_table(runs, names).tasks} == {"B32", "B128"}


def test_settings_whose_names_are_the_same_are_refused(tmp_path):
    for rate in (0.1, 0.1 + 1e-15):  # which are written alike
        trials(tmp_path, [0.5], optimizer="sgd", lr=rate)
    with pytest.raises(ConfigError, match=r"share the row 'sgd lr=0.1'.*\(lr\)"):
        build_table(load_runs(tmp_path))


def test_runs_scored_by_validation_are_no_trials(tmp_path):
    trials(tmp_path, [0.5, 0.6], optimizer="sgd", train_size=100)
    trials(tmp_path, [0.9], optimizer="sgd", train_size=100, validate=True)
    table = build_table(load_runs(tmp_path))
    assert table.settings == ("sgd",)
    assert table.entries["sgd", table.tasks[0]].trials.values == (0.5, 0.6)


def test_training_sizes_make_columns(tmp_path):
    for size in (100, 200):
        trials(tmp_path, [0.5], optimizer="sgd", train_size=size)
    labels = [task.rest for task in build_table(load_runs(tmp_path)).tasks]
    assert labels == ["train_size=100", "train_size=200"]


def test_another_score_can_be_asked_for_and_sorts_its_own_way(tmp_path):
    for optimizer, accuracy, loss in (("sgd", 0.9, 2.0), ("adam", 0.8, 1.0)):
        records = [epoch(1, value=0.1), epoch(2, value=accuracy)]
        records[0].test["loss"], records[1].test["loss"] = 0.5, loss
        written(tmp_path, records, optimizer=optimizer)
    table = build_table(load_runs(tmp_path), score="loss")
    assert table.tasks[0].score == "loss"
    assert table.settings == ("adam", "sgd")
    assert marks(table, table.tasks[0]) == {"adam": "best", "sgd": ""}
    found = table.entries["sgd", table.tasks[0]].trials
    assert (found.values, found.best) == ((2.0,), (0.5,))


def two_epochs(out, values, *, score="accuracy", status="finished", **options):
    for seed, value in enumerate(values):
        ends = [epoch(1, score=score, value=0.2), epoch(2, score=score, value=value, trained=3.0)]
        written(out, ends, status=status, seed=seed, **options)


def test_trials_make_one_comparison_by_mean_and_deviation(tmp_path):
    values = [0.5, 0.75, 0.9]
    two_epochs(tmp_path, values)
    (found,) = group_trials(load_runs(tmp_path))
    assert found.setting == "rmsgd"
    assert (found.score, sorted(found.values), found.diverged) == ("accuracy", values, 0)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.spread == pytest.approx(statistics.stdev(values))
    assert found.stable_rank_by_width == (0.1,) * 3
    assert found.seconds == (1.5,) * 3
    head, row = format_trials([found]).splitlines()
    assert head.split() == ["setting", "n", "test", "accuracy", "best", "epoch", "S", "s/epoch"]
    assert row.split()[:6] == ["rmsgd", "3", "71.67", "±", "20.21", "%"]
    assert "0.100 ± 0.000" in row


def test_a_single_trial_has_no_deviation(tmp_path):
    two_epochs(tmp_path, [0.5])
    (found,) = group_trials(load_runs(tmp_path))
    assert (found.mean, found.spread) == (0.5, None)
    assert "±" not in format_trials([found])


def test_the_best_epoch_is_told_beside_the_last(tmp_path):
    written(tmp_path, [epoch(1, value=0.75), epoch(2, value=0.5)])
    (found,) = group_trials(load_runs(tmp_path))
    assert (found.values, found.best) == ((0.5,), (0.75,))


def test_diverged_trials_are_counted_and_not_averaged(tmp_path):
    two_epochs(tmp_path, [0.5, 0.7])
    lost = epoch(1, value=0.1, loss=None, quality=None)
    written(tmp_path, [lost], status="diverged", seed=7)
    (found,) = group_trials(load_runs(tmp_path))
    assert (sorted(found.values), found.diverged) == ([0.5, 0.7], 1)
    assert "2 (1 diverged)" in format_trials([found])


def test_a_setting_of_which_all_diverged_comes_last(tmp_path):
    written(tmp_path, [epoch(1, value=0.9)], status="diverged", optimizer="adam")
    two_epochs(tmp_path, [0.1], optimizer="sgd")
    found = group_trials(load_runs(tmp_path))
    assert [c.setting for c in found] == ["sgd", "adam"]
    assert (found[1].mean, found[1].spread, found[1].diverged) == (None, None, 1)
    assert format_trials(found).splitlines()[2].split() == [
        *("adam", "0", "(1", "diverged)"),
        *("–" * 4),
    ]


def test_a_run_that_ends_without_a_score_is_counted_apart(tmp_path):
    # A perplexity may be beyond all numbers while its loss is not.
    options = {"network": "lstm1", "optimizer": "sgd"}
    two_epochs(tmp_path, [100.0, float("inf")], score="perplexity", **options)
    (found,) = group_trials(load_runs(tmp_path))
    assert (found.values, found.diverged, found.unscored) == ((100.0,), 0, 1)
    assert "1 (1 without a score)" in format_trials([found])


def test_a_run_that_lost_its_last_record_has_no_score_and_is_counted(tmp_path):
    for seed, value in enumerate((0.5, 0.7)):
        folder = written(tmp_path, [epoch(1, value=0.9), epoch(2, value=value)], seed=seed)
    path = folder.path / "epochs.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    (found,) = group_trials(load_runs(tmp_path))
    assert (found.values, found.unscored) == ((0.5,), 1)


def test_runs_that_go_on_still_are_left_out(tmp_path):
    two_epochs(tmp_path, [0.5])
    written(tmp_path, [epoch(1, value=0.9)], status=None, seed=5)
    (found,) = group_trials(load_runs(tmp_path))
    assert (found.values, found.diverged) == ((0.5,), 0)
    assert format_trials([]) == "No run has finished yet."


def test_more_is_better_but_for_perplexity_and_distance(tmp_path):
    two_epochs(tmp_path / "images", [0.5], optimizer="sgd")
    two_epochs(tmp_path / "images", [0.75], optimizer="adam")
    assert [c.setting for c in group_trials(load_runs(tmp_path / "images"))] == ["adam", "sgd"]
    for score, network in (("perplexity", "lstm1"), ("frechet", "wgan")):
        two_epochs(tmp_path / score, [90.0], score=score, network=network, optimizer="sgd")
        two_epochs(tmp_path / score, [70.0], score=score, network=network, optimizer="adam")
        found = group_trials(load_runs(tmp_path / score))
        assert [(c.setting, c.score) for c in found] == [("adam", score), ("sgd", score)]
        assert "%" not in format_trials(found)
        assert found[0].best == (0.2,)


def test_settings_are_named_by_what_tells_them_apart(tmp_path):
    two_epochs(tmp_path, [0.5], optimizer="sgd")
    two_epochs(tmp_path, [0.6], optimizer="sgd", lr=0.01, cutout=True)
    two_epochs(tmp_path, [0.7], optimizer="adam")
    # The rates of sgd differ; that of adam is told with them, its momentum is not.
    assert {c.setting for c in group_trials(load_runs(tmp_path))} == {
        "sgd lr=0.1 cutout=False",
        "sgd lr=0.01 cutout=True",
        "adam lr=0.0003 cutout=False",
    }


def test_network_and_data_are_told_wherever_they_differ(tmp_path):
    two_epochs(tmp_path, [0.5], optimizer="sgd", network="resnet20")
    two_epochs(tmp_path, [0.6], optimizer="adam", network="resnet32")
    assert {c.setting for c in group_trials(load_runs(tmp_path))} == {
        "sgd network=resnet20",
        "adam network=resnet32",
    }


def test_scores_of_two_kinds_do_not_share_a_name(tmp_path):
    two_epochs(tmp_path, [0.5, 0.6], optimizer="sgd")
    two_epochs(tmp_path, [90.0], score="perplexity", network="lstm1", optimizer="sgd")
    head = format_trials(group_trials(load_runs(tmp_path))).splitlines()[0]
    assert "test score" in head
    assert "accuracy" not in head


def test_a_comparison_fits_a_terminal(tmp_path):
    for optimizer in ("sgd-nesterov", "rmsgd"):
        two_epochs(tmp_path, [0.99, 0.98, 0.5], optimizer=optimizer)
    lines = format_trials(group_trials(load_runs(tmp_path))).splitlines()
    assert max(map(len, lines)) <= 80


def test_the_layer_table_shows_the_last_epoch_and_the_highest_rate(tmp_path):
    folder = written(tmp_path, [epoch(1)], status=None)
    folder.add(epoch(2), replace(LAYERS, rate=[0.05, None], rank=[5.0, None]))
    folder.end("finished")
    head, conv, fc = format_layers(folder.read()).splitlines()
    assert head.split() == ["layer", "rank", "s", "κ", "q", "rate", "highest"]
    assert conv.split() == ["conv", "5.0", "0.250", "0.500", "0.400", "0.0500", "0.1000"]
    assert fc.split() == ["fc", "–", "–", "–", "–", "–", "0.2000"]


def test_the_layer_table_of_a_run_that_has_just_begun_is_a_head(tmp_path):
    assert len(format_layers(written(tmp_path, [], status=None).read()).splitlines()) == 1


def test_the_layer_table_fits_a_terminal(tmp_path):
    network = build_network("resnet56", NetworkSpec(10, 3, 32))
    names = [name for name, weight in network.named_parameters() if weight.ndim > 1]
    names = [name.removesuffix(".weight") for name in names]
    names.append("transformer.encoder.layers.11.attention.self.query_key_value")
    half = [0.5] * len(names)
    ranks, rates = [1234.5] * len(names), [12.3456789] * len(names)
    columns = LayerColumns(names, half, half, half, ranks, rates)
    lines = format_layers(written(tmp_path, [epoch(1)], layers=columns).read()).splitlines()
    assert len(lines) == len(names) + 1
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= 80
    assert "…" in lines[-1]
    assert len({line[:28] for line in lines}) == len(lines)


def test_what_only_says_where_a_run_was_makes_no_setting_of_its_own(tmp_path):
    two_epochs(tmp_path / "a", [0.5], workers=1)
    written(tmp_path / "b", [epoch(1)], workers=2, seed=9)
    runs = [*load_runs(tmp_path / "a"), *load_runs(tmp_path / "b")]
    assert len(group_trials(runs)) == 1
