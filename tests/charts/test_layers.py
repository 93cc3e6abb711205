import html

import pytest
import torch
import vl_convert

import rankwise
from rankwise.charts.axes import METRICS
from rankwise.charts.layers import LAYER_METRICS, draw_all_metrics, draw_diff, draw_layers
from rankwise.errors import ArgumentError
from rankwise.probes.chart_rows import make_rows

HOSTILE = ("<script>x</script>", "datum.x", "__proto__", "a\"b'c\n", "\u202ex")


def strong(rank=3):
    return torch.randn(30, rank) @ torch.randn(rank, 50) + 0.1 * torch.randn(30, 50)


@pytest.fixture
def found():
    # A convolution that is rank 1 in one unfolding, one layer of noise, one that holds structure.
    return rankwise.probe({"one": strong(1), "noise": torch.randn(30, 50), "holds": strong()})


def drawn(chart, chosen=""):
    """The chart as SVG, with a layer chosen."""
    specification = chart.to_dict()
    for param in specification["params"]:
        if param["name"] == "layer":
            param["value"] = chosen
    return vl_convert.vegalite_to_svg(specification)


def test_rows_are_the_probed_layers_in_network_order(found):
    rows = make_rows(found, found.at_random())
    assert [(row["layer"], row["depth"], row["state"]) for row in rows] == [
        ("one", 1, "rank 1 (inflated q)"),
        ("noise", 2, "noise only"),
        ("holds", 3, "has structure"),
    ]
    assert rows[2]["quality"] == found["holds"].quality
    assert rows[2]["random_quality"] == 0
    assert rows[2]["ranks"] == "3/30"


def test_rows_leave_out_what_was_not_probed():
    weights = {"b": torch.ones(3), "nan": torch.full((4, 4), torch.nan), "w": strong()}
    assert [(row["layer"], row["depth"]) for row in make_rows(rankwise.probe(weights))] == [
        ("w", 1)
    ]


@pytest.mark.parametrize("metric", ["quality", "rank_fraction"])
def test_a_metric_is_drawn_with_all_states_in_the_legend(found, metric):
    svg = drawn(draw_layers(make_rows(found, found.at_random()), metric))
    for label in ("has structure", "rank 1 (inflated q)", "noise only", "random weights"):
        assert label in svg
    assert METRICS[metric][0] in html.unescape(svg)


def test_the_legend_names_only_what_there_is(found):
    rows = [row for row in make_rows(found) if row["layer"] == "holds"]
    svg = drawn(draw_layers(rows, "quality"))
    assert "has structure" in svg
    assert not any(label in svg for label in ("rank 1", "noise only", "random weights"))


def test_the_axis_of_q_is_made_for_layers_that_rank_one_does_not_lift(found):
    chart = draw_layers(make_rows(found), "quality").to_dict()
    (scale,) = [
        layer["encoding"]["y"]["scale"] for layer in chart["layer"] if "y" in layer["encoding"]
    ]
    assert scale["domain"][1] == found["holds"].quality
    assert scale["clamp"]


def test_choosing_a_layer_changes_the_chart(found):
    chart = draw_layers(make_rows(found), "quality")
    assert len({drawn(chart), drawn(chart, "holds"), drawn(chart, "noise")}) == 3
    assert drawn(chart, "holds").count('opacity="0.3"') == 2


def test_all_metrics_share_their_rows_in_a_stack(found):
    stack = draw_all_metrics(make_rows(found)).to_dict()
    assert len(stack["vconcat"]) == len(LAYER_METRICS)
    assert len(stack["datasets"]) == 1
    assert not any("data" in chart for chart in stack["vconcat"])
    assert "rank n" in drawn(draw_all_metrics(make_rows(found)))


@pytest.mark.parametrize("count", [0, 1, 300])
def test_any_number_of_layers_is_drawn(found, count):
    row = make_rows(found, found.at_random())[2]
    rows = [{**row, "layer": f"l{depth}", "depth": depth} for depth in range(1, count + 1)]
    assert "<svg" in drawn(draw_layers(rows, "stable_rank"))


def test_names_are_nothing_but_values():
    rows = make_rows(rankwise.probe({name: strong() for name in HOSTILE}))
    assert [row["layer"] for row in rows] == [*HOSTILE[:3], "a\"b'c\\x0a", "\\u202ex"]
    chart = draw_layers(rows, "quality")
    specification = chart.to_dict()
    del specification["datasets"]
    assert not any(row["layer"] in str(specification) for row in rows if row["layer"] != "datum.x")
    assert "<script>" not in drawn(chart)


def test_an_unknown_metric_is_refused():
    with pytest.raises(ArgumentError, match="one of quality"):
        draw_layers([], "loss")


def test_where_nothing_was_probed_there_is_a_sentence():
    with pytest.raises(rankwise.ArgumentError, match="No layer was probed"):
        rankwise.probe({"bias": torch.zeros(3)}).plot()


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
        ("up", 1, "better"),
        ("down", 2, "worse"),
        ("same", 3, "same"),
    ]
    assert rows[0]["quality_before"] == diff.changes[0].before.quality
    assert rows[0]["quality_after"] == diff.changes[0].after.quality


def test_lower_is_better_for_condition_and_noise(diff):
    for change, row in zip(diff.changes, diff.plot().data.values, strict=False):
        assert (row["condition_change"] == "better") == (change.condition < 0)
        assert (row["condition_change"] == "worse") == (change.condition > 0)


@pytest.mark.parametrize(("metric", "better"), [("stable_rank", "up"), ("condition", "down")])
def test_better_and_worse_are_told_by_colour_and_by_shape(diff, metric, better):
    chart = diff.plot(metric).to_dict()
    encoding = chart["layer"][-1]["encoding"]
    looks = [encoding[channel]["scale"] for channel in ("color", "shape")]
    assert all(scale["domain"] == ["better", "worse", "same"] for scale in looks)
    assert len(set(looks[0]["range"])) == len(set(looks[1]["range"])) == 3
    assert looks[1]["range"][0] == f"triangle-{better}"


def test_a_diff_draws_itself(diff):
    svg = vl_convert.vegalite_to_svg(diff.plot().to_dict())
    assert "stable rank s" in svg
    assert svg.count('aria-roledescription="point"') == 3


def test_nothing_in_common_is_drawn_as_nothing():
    assert "<svg" in vl_convert.vegalite_to_svg(draw_diff([], [], "quality").to_dict())


def test_an_unknown_metric_of_a_diff_is_refused(diff):
    with pytest.raises(ArgumentError, match="one of quality"):
        diff.plot("loss")
