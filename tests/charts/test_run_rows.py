"""Records of a run become rows of figures, the newest epochs alone as well as all of them."""

import math

import pytest

from rankwise.charts.run_rows import epoch_rows, layer_rows, quality_rows, time_rows


def record(epoch, **more):
    return {
        "epoch": epoch,
        "train": {"loss": 1.0 / epoch, "accuracy": 0.5},
        "test": {"loss": 2.0 / epoch, "accuracy": None},
        "quality": 0.1 * epoch,
        "seconds": {"data": 0.1, "step": 0.9, "probe": 0.2, "trained": 1.2 * epoch},
        **more,
    }


def layer(epoch, name, **metrics):
    return {"epoch": epoch, "name": name, "stable_rank": 0.25, "rate": 0.1, **metrics}


def test_layers_are_counted_anew_in_every_epoch():
    rows = layer_rows([layer(e, n) for e in (1, 2) for n in ("conv", "fc")])
    assert [(row["epoch"], row["layer"], row["depth"]) for row in rows] == [
        (1, "conv", 1),
        (1, "fc", 2),
        (2, "conv", 1),
        (2, "fc", 2),
    ]
    assert set(rows[0]) == {
        *("epoch", "layer", "depth", "stable_rank", "condition", "quality", "rank", "rate")
    }


def test_losses_and_scores_are_a_row_each_and_gaps_are_left_out():
    rows = epoch_rows([record(2)])
    assert [(row["set"], row["score"], row["value"]) for row in rows] == [
        ("train", "loss", 0.5),
        ("train", "accuracy", 0.5),
        ("test", "loss", 1.0),
    ]
    assert all((row["epoch"], row["seconds"]) == (2, 2.4) for row in rows)


def test_an_epoch_without_quality_has_no_row():
    rows = quality_rows([record(1), record(2, quality=None), record(3)])
    assert [row["epoch"] for row in rows] == [1, 3]


def test_the_training_time_so_far_is_no_part_of_an_epoch():
    rows = time_rows([record(3)])
    assert [(row["part"], row["seconds"]) for row in rows] == [
        ("data", 0.1),
        ("step", 0.9),
        ("probe", 0.2),
    ]


@pytest.mark.parametrize("make", [epoch_rows, quality_rows, time_rows])
def test_rows_of_new_epochs_are_the_last_rows_of_all(make):
    records = [record(epoch) for epoch in (1, 2, 3)]
    fresh = make(records[2:])
    assert fresh == make(records)[-len(fresh) :]


def test_layer_rows_of_new_epochs_are_the_last_rows_of_all():
    records = [layer(e, n) for e in (1, 2, 3) for n in ("conv", "fc")]
    assert layer_rows(records[4:]) == layer_rows(records)[4:]


@pytest.mark.parametrize("value", [math.nan, math.inf, None], ids=repr)
def test_a_rate_that_is_no_number_is_a_gap(value):
    assert layer_rows([layer(1, "fc", rate=value)])[0]["rate"] is None
