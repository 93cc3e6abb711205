import pytest
import torch
import vl_convert

import rankwise
from rankwise.charts.changes import change_figure, change_rows
from rankwise.errors import ArgumentError


def strong(rank):
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
    rows = change_rows(diff.changes)
    assert [(row["layer"], row["depth"], row["stable_rank_way"]) for row in rows] == [
        ("up", 1, "better"),
        ("down", 2, "worse"),
        ("same", 3, "same"),
    ]
    assert rows[0]["quality_before"] == diff.changes[0].before.quality
    assert rows[0]["quality_after"] == diff.changes[0].after.quality


def test_lower_is_better_for_condition_and_noise(diff):
    for change, row in zip(diff.changes, change_rows(diff.changes), strict=False):
        assert (row["condition_way"] == "better") == (change.condition < 0)
        assert (row["condition_way"] == "worse") == (change.condition > 0)


@pytest.mark.parametrize(("metric", "better"), [("stable_rank", "up"), ("condition", "down")])
def test_better_and_worse_are_told_by_colour_and_by_shape(diff, metric, better):
    figure = change_figure(change_rows(diff.changes), metric).to_dict()
    encoding = figure["layer"][-1]["encoding"]
    looks = [encoding[channel]["scale"] for channel in ("color", "shape")]
    assert all(scale["domain"] == ["better", "worse", "same"] for scale in looks)
    assert len(set(looks[0]["range"])) == len(set(looks[1]["range"])) == 3
    assert looks[1]["range"][0] == f"triangle-{better}"


def test_a_diff_draws_itself(diff):
    svg = vl_convert.vegalite_to_svg(diff.plot().to_dict())
    assert "stable rank s" in svg
    assert svg.count('aria-roledescription="point"') == 3


def test_nothing_in_common_is_drawn_as_nothing():
    assert "<svg" in vl_convert.vegalite_to_svg(change_figure([], "quality").to_dict())


def test_an_unknown_metric_is_refused(diff):
    with pytest.raises(ArgumentError, match="Expected one of quality"):
        diff.plot("loss")
