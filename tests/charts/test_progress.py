"""Figures of losses, scores and seconds."""

import pytest
import vl_convert

from rankwise import ArgumentError
from rankwise.charts.progress import progress_figure, time_figure


def rows(*values, score="loss"):
    return [
        {"epoch": e, "seconds": 2.0 * e, "set": part, "score": score, "value": value}
        for e, value in enumerate(values, start=1)
        for part in ("train", "test")
    ]


def encoding(figure):
    return figure.to_dict()["encoding"]


def scale(figure, name):
    found = vl_convert.vegalite_to_vega(figure.to_dict())["scales"]
    return next(one for one in found if one["name"] == name)


def picture(figure):
    return vl_convert.vegalite_to_svg(figure.to_dict())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_any_number_of_epochs_can_be_drawn(count):
    assert "<svg" in picture(progress_figure(rows(*[0.5] * count), "loss"))
    times = [{"epoch": e, "part": "step", "seconds": 1.0} for e in range(1, count + 1)]
    assert "<svg" in picture(time_figure(times))


def test_only_the_score_that_is_asked_for_is_shown():
    both = [*rows(0.5, 0.9, score="accuracy"), *rows(5.0, 9.0)]
    figure = progress_figure(both, "accuracy")
    assert figure.data.values == both  # all rows, so that figures of a page share them
    text = picture(figure)
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
    assert scale(progress_figure(rows(*values, score=score), score), "y")["type"] == expected


def test_scores_can_be_drawn_against_time():
    assert encoding(progress_figure(rows(1.0), "loss", across="seconds"))["x"]["field"] == "seconds"
    with pytest.raises(ArgumentError, match=r'"epoch" or "seconds", got \'minutes\''):
        progress_figure(rows(1.0), "loss", across="minutes")


def test_the_parts_of_the_time_are_stacked_and_keep_their_colours():
    found = [{"epoch": 1, "part": part, "seconds": 1.0} for part in ("save", "step")]
    figure = time_figure(found)
    assert scale(figure, "color")["domain"] == ["data", "step", "probe", "eval", "save"]
    assert scale(figure, "y")["domain"]["fields"] == ["seconds_start", "seconds_end"]  # a stack's
