"""Runs side by side, and the layers of one run."""

import statistics

import pytest
from msgspec.structs import replace

from rankwise.lab import load_runs
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.records import LayerColumns
from rankwise.study import compare, comparison_table, layer_table
from tests.lab.runs import LAYERS, epoch, written


def trials(out, values, *, score="accuracy", status="finished", **options):
    for seed, value in enumerate(values):
        ends = [epoch(1, score=score, value=0.2), epoch(2, score=score, value=value, trained=3.0)]
        written(out, ends, status=status, seed=seed, **options)


def test_trials_make_one_comparison_by_mean_and_deviation(tmp_path):
    values = [0.5, 0.75, 0.9]
    trials(tmp_path, values)
    (found,) = compare(load_runs(tmp_path))
    assert found.setting == "rmsgd"
    assert (found.score, sorted(found.values), found.diverged) == ("accuracy", values, 0)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.spread == pytest.approx(statistics.stdev(values))
    assert found.quality == (0.4,) * 3
    assert found.seconds == (1.5,) * 3
    head, row = comparison_table([found]).splitlines()
    assert head.split() == ["setting", "n", "test", "accuracy", "best", "epoch", "Q", "s/epoch"]
    assert row.split()[:6] == ["rmsgd", "3", "71.67", "±", "20.21", "%"]
    assert "0.400 ± 0.000" in row


def test_a_single_trial_has_no_deviation(tmp_path):
    trials(tmp_path, [0.5])
    (found,) = compare(load_runs(tmp_path))
    assert (found.mean, found.spread) == (0.5, None)
    assert "±" not in comparison_table([found])


def test_the_best_epoch_is_told_beside_the_last(tmp_path):
    written(tmp_path, [epoch(1, value=0.75), epoch(2, value=0.5)])
    (found,) = compare(load_runs(tmp_path))
    assert (found.values, found.best) == ((0.5,), (0.75,))


def test_diverged_trials_are_counted_and_not_averaged(tmp_path):
    trials(tmp_path, [0.5, 0.7])
    lost = epoch(1, value=0.1, loss=None, quality=None)
    written(tmp_path, [lost], status="diverged", seed=7)
    (found,) = compare(load_runs(tmp_path))
    assert (sorted(found.values), found.diverged) == ([0.5, 0.7], 1)
    assert "2 (1 diverged)" in comparison_table([found])


def test_a_setting_of_which_all_diverged_comes_last(tmp_path):
    written(tmp_path, [epoch(1, value=0.9)], status="diverged", optimizer="adam")
    trials(tmp_path, [0.1], optimizer="sgd")
    found = compare(load_runs(tmp_path))
    assert [c.setting for c in found] == ["sgd", "adam"]
    assert (found[1].mean, found[1].spread, found[1].diverged) == (None, None, 1)
    assert comparison_table(found).splitlines()[2].split() == [
        *("adam", "0", "(1", "diverged)"),
        *("–" * 4),
    ]


def test_a_run_that_ends_without_a_score_is_counted_apart(tmp_path):
    # A perplexity may be beyond all numbers while its loss is not.
    options = {"network": "lstm1", "optimizer": "sgd"}
    trials(tmp_path, [100.0, float("inf")], score="perplexity", **options)
    (found,) = compare(load_runs(tmp_path))
    assert (found.values, found.diverged, found.unscored) == ((100.0,), 0, 1)
    assert "1 (1 without a score)" in comparison_table([found])


def test_a_run_that_lost_its_last_record_has_no_score_and_is_counted(tmp_path):
    for seed, value in enumerate((0.5, 0.7)):
        folder = written(tmp_path, [epoch(1, value=0.9), epoch(2, value=value)], seed=seed)
    path = folder.path / "epochs.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    (found,) = compare(load_runs(tmp_path))
    assert (found.values, found.unscored) == ((0.5,), 1)


def test_runs_that_go_on_still_are_left_out(tmp_path):
    trials(tmp_path, [0.5])
    written(tmp_path, [epoch(1, value=0.9)], status=None, seed=5)
    (found,) = compare(load_runs(tmp_path))
    assert (found.values, found.diverged) == ((0.5,), 0)
    assert comparison_table([]) == "No run is over yet."


def test_more_is_better_but_for_perplexity_and_distance(tmp_path):
    trials(tmp_path / "images", [0.5], optimizer="sgd")
    trials(tmp_path / "images", [0.75], optimizer="adam")
    assert [c.setting for c in compare(load_runs(tmp_path / "images"))] == ["adam", "sgd"]
    for score, network in (("perplexity", "lstm1"), ("frechet", "wgan")):
        trials(tmp_path / score, [90.0], score=score, network=network, optimizer="sgd")
        trials(tmp_path / score, [70.0], score=score, network=network, optimizer="adam")
        found = compare(load_runs(tmp_path / score))
        assert [(c.setting, c.score) for c in found] == [("adam", score), ("sgd", score)]
        assert "%" not in comparison_table(found)
        assert found[0].best == (0.2,)


def test_settings_are_named_by_what_tells_them_apart(tmp_path):
    trials(tmp_path, [0.5], optimizer="sgd")
    trials(tmp_path, [0.6], optimizer="sgd", lr=0.01, cutout=True)
    trials(tmp_path, [0.7], optimizer="adam")
    # The rates of sgd differ; that of adam is told with them, its momentum is not.
    assert {c.setting for c in compare(load_runs(tmp_path))} == {
        "sgd lr=0.1 cutout=False",
        "sgd lr=0.01 cutout=True",
        "adam lr=0.0003 cutout=False",
    }


def test_network_and_data_are_told_wherever_they_differ(tmp_path):
    trials(tmp_path, [0.5], optimizer="sgd", network="resnet20")
    trials(tmp_path, [0.6], optimizer="adam", network="resnet32")
    assert {c.setting for c in compare(load_runs(tmp_path))} == {
        "sgd network=resnet20",
        "adam network=resnet32",
    }


def test_scores_of_two_kinds_do_not_share_a_name(tmp_path):
    trials(tmp_path, [0.5, 0.6], optimizer="sgd")
    trials(tmp_path, [90.0], score="perplexity", network="lstm1", optimizer="sgd")
    head = comparison_table(compare(load_runs(tmp_path))).splitlines()[0]
    assert "test score" in head
    assert "accuracy" not in head


def test_a_comparison_fits_a_terminal(tmp_path):
    for optimizer in ("stable-rank-sgd", "rmsgd"):
        trials(tmp_path, [0.99, 0.98, 0.5], optimizer=optimizer)
    lines = comparison_table(compare(load_runs(tmp_path))).splitlines()
    assert max(map(len, lines)) <= 80


def test_the_layer_table_shows_the_last_epoch_and_the_highest_rate(tmp_path):
    folder = written(tmp_path, [epoch(1)], status=None)
    folder.add(epoch(2), replace(LAYERS, rate=[0.05, None], rank=[5.0, None]))
    folder.end("finished")
    head, conv, fc = layer_table(folder.read()).splitlines()
    assert head.split() == ["layer", "rank", "s", "κ", "q", "rate", "highest"]
    assert conv.split() == ["conv", "5.0", "0.250", "0.500", "0.400", "0.0500", "0.1000"]
    assert fc.split() == ["fc", "–", "–", "–", "–", "–", "0.2000"]


def test_the_layer_table_of_a_run_that_has_just_begun_is_a_head(tmp_path):
    assert len(layer_table(written(tmp_path, [], status=None).read()).splitlines()) == 1


def test_the_layer_table_fits_a_terminal(tmp_path):
    network = build_network("resnet56", NetworkSpec(10, 3, 32))
    names = [name for name, weight in network.named_parameters() if weight.ndim > 1]
    names = [name.removesuffix(".weight") for name in names]
    names.append("transformer.encoder.layers.11.attention.self.query_key_value")
    half = [0.5] * len(names)
    ranks, rates = [1234.5] * len(names), [12.3456789] * len(names)
    columns = LayerColumns(names, half, half, half, ranks, rates)
    lines = layer_table(written(tmp_path, [epoch(1)], layers=columns).read()).splitlines()
    assert len(lines) == len(names) + 1
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= 80
    assert lines[-1].startswith("…")
    assert len({line[:28] for line in lines}) == len(lines)


def test_what_only_says_where_a_run_was_makes_no_setting_of_its_own(tmp_path):
    trials(tmp_path / "a", [0.5], workers=1)
    written(tmp_path / "b", [epoch(1)], workers=2, seed=9)
    runs = [*load_runs(tmp_path / "a"), *load_runs(tmp_path / "b")]
    assert len(compare(runs)) == 1
