import html

import pytest
import torch
import vl_convert

import rankwise
from rankwise.charts.layers import METRICS, layer_figure, layer_rows, layers_figure
from rankwise.errors import ArgumentError

HOSTILE = ("<script>x</script>", "datum.x", "__proto__", "a\"b'c\n", "\u202ex")


def strong(rank=3):
    return torch.randn(30, rank) @ torch.randn(rank, 50) + 0.1 * torch.randn(30, 50)


@pytest.fixture
def found():
    # A convolution that is rank 1 in one unfolding, one layer of noise, one that holds structure.
    return rankwise.probe({"one": strong(1), "noise": torch.randn(30, 50), "holds": strong()})


def drawn(figure, chosen=""):
    """The figure as SVG, with a layer chosen."""
    specification = figure.to_dict()
    for param in specification["params"]:
        if param["name"] == "layer":
            param["value"] = chosen
    return vl_convert.vegalite_to_svg(specification)


def test_rows_are_the_probed_layers_in_network_order(found):
    rows = layer_rows(found, found.at_random())
    assert [(row["layer"], row["depth"], row["state"]) for row in rows] == [
        ("one", 1, "rank 1 lifts q"),
        ("noise", 2, "noise only"),
        ("holds", 3, "holds structure"),
    ]
    assert rows[2]["quality"] == found["holds"].quality
    assert rows[2]["random_quality"] == 0
    assert rows[2]["ranks"] == "3/30"


def test_rows_leave_out_what_was_not_probed():
    weights = {"b": torch.ones(3), "nan": torch.full((4, 4), torch.nan), "w": strong()}
    assert [(row["layer"], row["depth"]) for row in layer_rows(rankwise.probe(weights))] == [
        ("w", 1)
    ]


@pytest.mark.parametrize("metric", ["quality", "rank_fraction"])
def test_a_metric_is_drawn_with_all_states_in_the_legend(found, metric):
    svg = drawn(layer_figure(layer_rows(found, found.at_random()), metric))
    for label in ("holds structure", "rank 1 lifts q", "noise only", "random weights"):
        assert label in svg
    assert METRICS[metric][0] in html.unescape(svg)


def test_the_legend_names_only_what_there_is(found):
    rows = [row for row in layer_rows(found) if row["layer"] == "holds"]
    svg = drawn(layer_figure(rows, "quality"))
    assert "holds structure" in svg
    assert not any(label in svg for label in ("rank 1", "noise only", "random weights"))


def test_the_axis_of_q_is_made_for_layers_that_rank_one_does_not_lift(found):
    figure = layer_figure(layer_rows(found), "quality").to_dict()
    (scale,) = [
        layer["encoding"]["y"]["scale"] for layer in figure["layer"] if "y" in layer["encoding"]
    ]
    assert scale["domain"][1] == found["holds"].quality
    assert scale["clamp"]


def test_choosing_a_layer_changes_the_figure(found):
    figure = layer_figure(layer_rows(found), "quality")
    assert len({drawn(figure), drawn(figure, "holds"), drawn(figure, "noise")}) == 3
    assert drawn(figure, "holds").count('opacity="0.3"') == 2


def test_all_metrics_share_their_rows_in_a_stack(found):
    stack = layers_figure(layer_rows(found)).to_dict()
    assert len(stack["vconcat"]) == len(METRICS)
    assert len(stack["datasets"]) == 1
    assert not any("data" in chart for chart in stack["vconcat"])
    assert "rank n" in drawn(layers_figure(layer_rows(found)))


@pytest.mark.parametrize("count", [0, 1, 300])
def test_any_number_of_layers_is_drawn(found, count):
    row = layer_rows(found, found.at_random())[2]
    rows = [{**row, "layer": f"l{depth}", "depth": depth} for depth in range(1, count + 1)]
    assert "<svg" in drawn(layer_figure(rows, "stable_rank"))


def test_names_are_nothing_but_values():
    rows = layer_rows(rankwise.probe({name: strong() for name in HOSTILE}))
    assert [row["layer"] for row in rows] == [*HOSTILE[:3], "a\"b'c\\x0a", "\\u202ex"]
    figure = layer_figure(rows, "quality")
    specification = figure.to_dict()
    del specification["datasets"]
    assert not any(row["layer"] in str(specification) for row in rows if row["layer"] != "datum.x")
    assert "<script>" not in drawn(figure)


def test_an_unknown_metric_is_refused():
    with pytest.raises(ArgumentError, match="Expected one of quality"):
        layer_figure([], "loss")


def test_where_nothing_was_probed_there_is_a_sentence():
    with pytest.raises(rankwise.ArgumentError, match="No layer was probed"):
        rankwise.probe({"bias": torch.zeros(3)}).plot()
