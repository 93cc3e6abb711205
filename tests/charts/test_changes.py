"""Charts of layers before and after."""

import html

import pytest
import torch
import vl_convert

import rankwise
from rankwise.charts.changes import draw_diff
from rankwise.errors import ArgumentError


def strong(rank=3):
    return torch.randn(30, rank) @ torch.randn(rank, 50) + 0.1 * torch.randn(30, 50)


@pytest.fixture
def diff():
    same = strong(3)
    before = rankwise.probe({"up": strong(2), "down": strong(6), "same": same, "bad": strong(2)})
    after = {
        "up": strong(6),
        "down": strong(2),
        "same": same,
        "bad": torch.full((30, 50), torch.nan),
    }
    return before.diff(rankwise.probe(after))


def test_rows_are_the_layers_probed_on_both_sides(diff):
    rows = diff.plot().data.values
    assert [(row["layer"], row["depth"], row["stable_rank_change"]) for row in rows] == [
        ("up", 1, "up"),
        ("down", 2, "down"),
        ("same", 3, "same"),
    ]
    assert rows[0]["quality_before"] == diff.changes[0].before.quality
    assert rows[0]["quality_after"] == diff.changes[0].after.quality


@pytest.mark.parametrize("metric", ["stable_rank", "condition"])
def test_up_and_down_are_told_by_colour_and_by_shape_and_mean_the_same_for_all_metrics(
    diff, metric
):
    encoding = diff.plot(metric).to_dict()["layer"][-1]["encoding"]
    colours, shapes = (encoding[channel]["scale"] for channel in ("color", "shape"))
    looks = zip(colours["domain"], colours["range"], shapes["range"], strict=True)
    assert list(looks) == [
        ("up", "#0072b2", "triangle-right"),
        ("down", "#c98500", "triangle-left"),
        ("same", "#8a8a8a", "circle"),
    ]
    for change, row in zip(diff.changes, diff.plot().data.values, strict=False):
        gain = getattr(change, metric)
        assert row[f"{metric}_delta"] == gain
        assert row[f"{metric}_change"] == ("up" if gain > 0 else "down" if gain < 0 else "same")


def test_a_transformer_is_a_map_of_differences():
    names = [f"h.{n}.{role}.weight" for n in range(3) for role in ("q", "k", "v", "o")]
    before = rankwise.probe({name: strong(2) for name in names})
    after = rankwise.probe({name: strong(6) for name in names})
    svg = html.unescape(vl_convert.vegalite_to_svg(before.diff(after).plot().to_dict()))
    assert svg.count(">↑</text>") == 12
    assert "change of stable rank s" in svg


def test_a_diff_draws_itself(diff):
    svg = vl_convert.vegalite_to_svg(diff.plot().to_dict())
    assert "stable rank s" in svg
    assert svg.count('aria-roledescription="point"') == 3
    assert all(f">{label}</text>" in svg for label in ("1 up", "2 down", "3 same"))


def test_nothing_in_common_is_drawn_as_nothing():
    assert "<svg" in vl_convert.vegalite_to_svg(draw_diff([], [], "quality").to_dict())


def test_an_unknown_metric_of_a_diff_is_refused(diff):
    with pytest.raises(ArgumentError, match="one of: prominence"):
        diff.plot("loss")
