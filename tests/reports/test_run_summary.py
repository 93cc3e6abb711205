"""A run in words: how it ended or how far it is, and how its layers changed."""

import pytest
from msgspec.structs import replace

pytest.importorskip("altair")

from rankwise.charts.evolution import make_layer_rows
from rankwise.reports.run_summary import (
    describe_rank_one,
    format_time,
    list_run_facts,
    summarize_run,
)
from tests.lab.runs import LAYERS, epoch, grown, written


def words(folder):
    run = folder.read()
    return " ".join(summarize_run(run, make_layer_rows(run.layers())))


def facts(folder):
    run = folder.read()
    listed = list_run_facts(run, make_layer_rows(run.layers()))
    return {fact.label: fact.value for fact in listed}


def test_the_verdict_says_how_the_run_ended_and_what_it_reached(tmp_path):
    found = words(grown(tmp_path, seed=3))
    assert "resnet20 on digits, trained by rmsgd (rate 0.03, β 0.98, seed 3)" in found
    assert "It finished after 3 epochs." in found
    assert "Test accuracy is 80.00 % after epoch 3; the best was 90.00 % in epoch 2." in found
    assert "rose most in conv (+0.250)" in found
    assert "1 layer (fc) has NaN or Inf" in found
    assert "Rates are between 0.01 and 0.02" in found


def test_tiles_hold_the_figures_of_the_last_epoch(tmp_path):
    folder = grown(tmp_path, status=None)
    found = facts(folder)
    assert found["Test accuracy"] == "80.00 %"
    assert found["Total rank"] == "6"
    assert found["Stable rank S"] == f"{folder.read().stable_rank_by_width:.3f}"
    assert found["Epochs"] == "3 of 250"
    assert found["Time per epoch"] == "1 s"


def test_records_of_earlier_versions_have_no_stable_rank_by_width(tmp_path):
    old = replace(epoch(1), stable_rank_by_width=None)
    assert "Stable rank S" not in facts(written(tmp_path, [old]))


@pytest.mark.parametrize(
    ("score", "label"), [("perplexity", "perplexity"), ("frechet", "Fréchet distance")]
)
def test_a_score_that_should_fall_is_best_where_it_is_lowest(tmp_path, score, label):
    records = [epoch(n, score=score, value=v) for n, v in enumerate((90.0, 20.0, 30.0), 1)]
    found = words(written(tmp_path, records))
    assert f"Test {label} is 30.00 after epoch 3; the best was 20.00 in epoch 2." in found


def test_a_run_without_a_score_says_so(tmp_path):
    assert "It has no test score." in words(written(tmp_path, [replace(epoch(1), test={})]))


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([0.0, 0.0], "No direction stands out from noise in 2 of 2 layers (conv, fc)."),
        ([0.0, 2.0], "No direction stands out from noise in 1 of 2 layers (conv)."),
        ([2.0, 2.0], ""),
    ],
)
def test_layers_in_which_nothing_stands_out_are_named(tmp_path, ranks, sentence):
    layers = replace(LAYERS, stable_rank=[0.1, 0.1], quality=[0.4, 0.4], rank=ranks)
    found = words(written(tmp_path, [epoch(1)], layers=layers))
    assert sentence in found
    assert ("stands out" in found) is bool(sentence)


def test_a_layer_of_rank_one_is_not_taken_for_a_good_one(tmp_path):
    layers = replace(LAYERS, quality=[1.5707963267948966, 0.1], rank=[1.0, 2.0])
    run = written(tmp_path, [epoch(1)], layers=layers).read()
    rows = make_layer_rows(run.layers())
    assert describe_rank_one(rows) == "After the last epoch 1 layer (conv) has rank 1."
    assert "rank 1" not in " ".join(summarize_run(run, rows))


@pytest.mark.parametrize(
    ("optimizer", "rates", "status", "warned"),
    [
        ("rmsgd", [0.02, 0.03], "finished", True),
        ("rmsgd", [0.02, 0.001], "finished", False),
        ("rmsgd", [0.02, 0.03], None, False),
        ("sgd", [0.1, 0.1], "finished", False),
    ],
)
def test_rates_that_are_still_high_at_the_end_are_warned_of(
    tmp_path, optimizer, rates, status, warned
):
    layers = replace(LAYERS, rate=rates)
    folder = written(tmp_path, [epoch(1)], layers=layers, status=status, optimizer=optimizer)
    assert ("rates were still high at the end" in words(folder)) is warned


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.6549, "0.655 s"),
        (119, "119 s"),
        (150, "2.5 min"),
        (9000, "2.5 h"),
        (1234 * 3600, "1234 h"),
        (999.7 * 3600, "1000 h"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(seconds, text):
    assert format_time(seconds) == text
