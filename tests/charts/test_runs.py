"""Charts of losses, scores, figures and seconds, and the rows they are made of."""

from types import SimpleNamespace

import pytest
import vl_convert

from rankwise import ArgumentError
from rankwise.charts.runs import (
    draw_progress,
    draw_quality,
    draw_time,
    make_figure_rows,
    make_score_rows,
    make_time_rows,
)


def rows(*values, score="loss"):
    return [
        {"epoch": e, "seconds": 2.0 * e, "set": part, "score": score, "value": value}
        for e, value in enumerate(values, start=1)
        for part in ("train", "test")
    ]


def encoding(chart):
    return chart.to_dict()["encoding"]


def scale(chart, name):
    found = vl_convert.vegalite_to_vega(chart.to_dict())["scales"]
    return next(one for one in found if one["name"] == name)


def picture(chart):
    return vl_convert.vegalite_to_svg(chart.to_dict())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_any_number_of_epochs_can_be_drawn(count):
    assert "<svg" in picture(draw_progress(rows(*[0.5] * count), "loss"))
    times = [{"epoch": e, "part": "step", "seconds": 1.0} for e in range(1, count + 1)]
    assert "<svg" in picture(draw_time(times))


def test_only_the_score_that_is_asked_for_is_shown():
    both = [*rows(0.5, 0.9, score="accuracy"), *rows(5.0, 9.0)]
    chart = draw_progress(both, "accuracy")
    assert chart.data.values == both  # all rows, so that charts of a page share them
    text = picture(chart)
    assert "90%" in text
    assert "900%" not in text


@pytest.mark.parametrize(
    ("values", "score", "expected"),
    [
        ((2.3, 0.1), "loss", "linear"),
        ((2.3, 0.01), "loss", "log"),
        ((2.3, 0.0), "loss", "linear"),
        ((5000.0, 20.0), "perplexity", "log"),
        ((0.99, 0.001), "accuracy", "linear"),
    ],
    ids=str,
)
def test_a_loss_is_drawn_on_a_linear_scale_unless_its_range_is_huge(values, score, expected):
    assert scale(draw_progress(rows(*values, score=score), score), "y")["type"] == expected


def test_scores_can_be_drawn_against_time():
    assert encoding(draw_progress(rows(1.0), "loss", across="seconds"))["x"]["field"] == "seconds"
    with pytest.raises(ArgumentError, match=r'"epoch" or "seconds", got \'minutes\''):
        draw_progress(rows(1.0), "loss", across="minutes")


def test_the_parts_of_the_time_are_stacked_and_keep_their_colours():
    found = [{"epoch": 1, "part": part, "seconds": 1.0} for part in ("save", "step")]
    chart = draw_time(found)
    assert scale(chart, "color")["domain"] == ["data", "step", "probe", "eval", "save"]
    assert scale(chart, "y")["domain"]["fields"] == ["seconds_start", "seconds_end"]  # a stack's


def test_two_epochs_are_labelled_once_each():
    found = [{"epoch": epoch, "quality": 0.1 * epoch} for epoch in (1, 2)]
    svg = vl_convert.vegalite_to_svg(draw_quality(found).to_dict())
    assert svg.count(">1</text>") == svg.count(">2</text>") == 1


def record(epoch, **more):
    seconds = {"data": 0.1, "step": 0.9, "probe": 0.2, "eval": 0.3, "save": 0.4}
    known = {
        "epoch": epoch,
        "train": {"loss": 1.0 / epoch, "accuracy": 0.5},
        "test": {"loss": 2.0 / epoch, "accuracy": None},
        "quality": 0.1 * epoch,
        "stable_rank_by_width": 0.2,
        "seconds": SimpleNamespace(**seconds, trained=1.2 * epoch),
    }
    return SimpleNamespace(**{**known, **more})


def test_losses_and_scores_are_a_row_each_and_gaps_are_left_out():
    rows = make_score_rows([record(2)])
    assert [(row["set"], row["score"], row["value"]) for row in rows] == [
        ("train", "loss", 0.5),
        ("train", "accuracy", 0.5),
        ("test", "loss", 1.0),
    ]
    assert all((row["epoch"], row["seconds"]) == (2, 2.4) for row in rows)


def test_figures_are_those_of_the_layers_with_values():
    layers = [{"epoch": e, "rank": rank} for e, rank in ((1, 2.0), (1, 1.5), (2, None))]
    records = [record(1), record(2, quality=None, stable_rank_by_width=None)]
    assert make_figure_rows(records, layers) == [
        {"epoch": 1, "stable_rank_by_width": 0.2, "total_rank": 3.5, "quality": 0.1},
        {"epoch": 2, "stable_rank_by_width": None, "total_rank": None, "quality": None},
    ]


def test_the_training_time_so_far_is_no_part_of_an_epoch():
    rows = make_time_rows([record(3)])
    assert [(row["part"], row["seconds"]) for row in rows] == [
        ("data", 0.1),
        ("step", 0.9),
        ("probe", 0.2),
        ("eval", 0.3),
        ("save", 0.4),
    ]


@pytest.mark.parametrize("make", [make_score_rows, make_figure_rows, make_time_rows])
def test_rows_of_new_epochs_are_the_last_rows_of_all(make):
    records = [record(epoch) for epoch in (1, 2, 3)]
    fresh = make(records[2:])
    assert fresh == make(records)[-len(fresh) :]
