import html

import pytest
import torch
import vl_convert

import rankwise
from rankwise.charts.axes import METRICS
from rankwise.charts.layers import (
    LAYER_METRICS,
    describe_marks,
    draw_all_metrics,
    draw_layers,
    make_labels,
)
from rankwise.errors import ArgumentError
from rankwise.probes.chart_rows import make_rows

HOSTILE = ("<script>x</script>", "datum.x", "__proto__", "a\"b'c\n", "\u202ex")


def strong(rank=3):
    return torch.randn(30, rank) @ torch.randn(rank, 50) + 0.1 * torch.randn(30, 50)


@pytest.fixture
def found():
    weights = {"one": strong(1), "noise": torch.randn(30, 50), "holds": strong()}
    return rankwise.probe({**weights, "small": torch.randn(4, 50)})


@pytest.fixture
def transformer():
    roles = ("attn.q", "attn.k", "attn.v", "mlp.up")
    weights = {f"h.{n}.{role}.weight": strong() for n in range(3) for role in roles}
    weights["h.1.mlp.up.weight"] = torch.randn(30, 50)
    return rankwise.probe({"embed.weight": strong(), **weights, "head.weight": strong()})


def drawn(chart, chosen=""):
    """The chart as SVG, with a layer chosen."""
    specification = chart.to_dict()
    for param in specification["params"]:
        if param["name"] == "layer":
            param["value"] = chosen
    return vl_convert.vegalite_to_svg(specification)


def test_rows_are_the_probed_layers_with_numbers_and_verdicts(found):
    rows = make_rows(found, found.at_random(), {"holds": "error"})
    assert [(row["layer"], row["depth"], row["state"], row["finding"]) for row in rows] == [
        ("one", 1, "differs from random", ""),
        ("noise", 2, "no direction stands out", ""),
        ("holds", 3, "differs from random", "error"),
        ("small", 4, "too small to tell", ""),
    ]
    assert [row["rank_one"] for row in rows][:3] == [True, False, False]
    assert rows[2]["quality"] == found["holds"].quality
    assert rows[2]["random_quality"] == 0
    assert rows[2]["ranks"] == "3/30"


def test_every_verdict_has_a_state():
    layer = rankwise.probe({"w": strong()}).layers[0]
    for verdict in (*rankwise.Verdict, None):
        fields = {name: getattr(layer, name) for name in layer.__slots__}
        (row,) = make_rows([rankwise.LayerMetrics(**{**fields, "verdict": verdict})])
        assert row["state"] == ("not compared with random" if verdict is None else verdict.value)


def test_rows_leave_out_what_was_not_probed():
    weights = {"b": torch.ones(3), "nan": torch.full((4, 4), torch.nan), "w": strong()}
    assert [(row["layer"], row["depth"]) for row in make_rows(rankwise.probe(weights))] == [
        ("w", 1)
    ]


@pytest.mark.parametrize("metric", LAYER_METRICS)
def test_every_layer_stands_beside_its_bar_by_number_and_name(found, metric):
    svg = html.unescape(drawn(draw_layers(make_rows(found, found.at_random()), metric)))
    for label in ("1 one", "2 noise", "3 holds", "4 small", "differs from random"):
        assert f">{label}</text>" in svg
    assert METRICS[metric][0] in svg


@pytest.mark.parametrize("metric", LAYER_METRICS)
def test_every_layer_of_a_transformer_has_a_cell_that_names_lead_to(transformer, metric):
    svg = html.unescape(drawn(draw_layers(make_rows(transformer), metric)))
    for label in ("0", "1", "2", "attn.q", "attn.k", "attn.v", "mlp.up"):
        assert f">{label}</text>" in svg
    for outside in ("embed.weight", "head.weight", "#1", "#14"):
        assert f">{outside}</text>" in svg
    assert ">○</text>" in svg  # the layer in which no direction stands out


def test_layers_with_findings_are_marked_in_bars_and_in_maps(found, transformer):
    bars = drawn(draw_layers(make_rows(found, (), {"holds": "error"}), "stable_rank"))
    assert bars.count(">✖</text>") == 1
    severities = {"h.1.mlp.up.weight": "warning"}
    rows = make_rows(transformer, (), severities)
    cells = drawn(draw_layers(rows, "stable_rank"))
    assert cells.count(">▲</text>") == 1
    assert ">○</text>" not in cells  # the finding is more urgent
    assert describe_marks(rows) == "Marks: ▲ warning, ○ no direction stands out."


def test_a_damaged_layer_does_not_set_the_colours_of_all_others(transformer):
    rows = make_rows(transformer)
    rows[3] = {**rows[3], "prominence": 50.0}
    chart = draw_layers(rows, "prominence").to_dict()
    (cells,) = [layer for layer in chart["layer"] if "scale" in layer["encoding"].get("color", {})]
    assert cells["encoding"]["color"]["scale"]["domain"][1] < 10


def test_a_layer_without_a_value_is_a_grey_cell(transformer):
    rows = make_rows(transformer)
    rows[3] = {**rows[3], "prominence": None}
    assert drawn(draw_layers(rows, "prominence")).count('fill="#d8dce1"') == len(rows)


def test_ticks_that_differ_have_labels_that_differ():
    row = make_rows(rankwise.probe({"w": strong()}))[0]
    svg = drawn(draw_layers([{**row, "stable_rank": 0.12}], "stable_rank"))
    ticks = [f"0.{number:02d}".rstrip("0") for number in range(2, 13, 2)]
    assert all(svg.count(f">{tick}</text>") == 1 for tick in ticks)


def test_the_axis_of_q_is_made_for_layers_that_rank_one_does_not_lift(found):
    chart = draw_layers(make_rows(found), "quality").to_dict()
    scales = [
        layer["encoding"]["x"]["scale"] for layer in chart["layer"] if "x" in layer["encoding"]
    ]
    plain = [layer.quality for layer in found.probed if not layer.has_inflated_quality]
    assert {scale["domain"][1] for scale in scales} == {max(plain)}
    assert all(scale["clamp"] for scale in scales)


def test_choosing_a_layer_changes_the_chart(found):
    chart = draw_layers(make_rows(found), "quality")
    assert len({drawn(chart), drawn(chart, "holds"), drawn(chart, "noise")}) == 3
    assert drawn(chart, "holds").count('opacity="0.3"') == 3


def test_all_metrics_share_rows_and_names_in_one_picture(found, transformer):
    row = draw_all_metrics(make_rows(found)).to_dict()
    assert len(row["hconcat"]) == len(LAYER_METRICS)
    assert len(row["datasets"]) == 1
    assert not any("data" in chart for chart in row["hconcat"])
    assert drawn(draw_all_metrics(make_rows(found))).count(">3 holds</text>") == 1
    maps = drawn(draw_all_metrics(make_rows(transformer)))
    assert maps.count(">attn.k</text>") == len(LAYER_METRICS)


@pytest.mark.parametrize("count", [0, 1, 100, 101, 3000])
def test_any_number_of_layers_is_drawn(found, count):
    row = make_rows(found, found.at_random())[2]
    rows = [{**row, "layer": f"l{depth}", "depth": depth} for depth in range(1, count + 1)]
    chart = draw_layers(rows, "stable_rank")
    assert chart.height <= 12_000
    svg = drawn(chart)
    if count <= 100:
        assert all(f">{depth} l{depth}</text>" in svg for depth in range(1, count + 1))
    else:  # a map that is read like text
        assert len(chart.data.values) == count
        assert all(f">from #{depth}</text>" in svg for depth in range(1, min(count, 301), 50))


def test_labels_drop_the_ending_that_all_share_and_stay_different():
    assert make_labels(["a.weight", "b.weight"]) == ["1 a", "2 b"]
    assert make_labels(["a.weight", "b"]) == ["1 a.weight", "2 b"]
    long = [f"{'encoder.' * 10}{n}.dense.weight" for n in range(3)]
    labels = [label.partition(" ")[2] for label in make_labels(long)]
    assert len(set(labels)) == 3
    assert all(len(label) <= 40 for label in labels)


def test_names_are_nothing_but_values():
    rows = make_rows(rankwise.probe({name: strong() for name in HOSTILE}))
    assert [row["layer"] for row in rows] == [*HOSTILE[:3], "a\"b'c\\x0a", "\\u202ex"]
    chart = draw_layers(rows, "quality")
    specification = chart.to_dict()
    del specification["datasets"]
    assert not any(row["layer"] in str(specification) for row in rows if row["layer"] != "datum.x")
    assert "<script>" not in drawn(chart)


def test_an_unknown_metric_is_refused():
    with pytest.raises(ArgumentError, match="one of: prominence"):
        draw_layers([], "loss")


def test_where_nothing_was_probed_there_is_a_sentence():
    with pytest.raises(rankwise.ArgumentError, match="No layer was probed"):
        rankwise.probe({"bias": torch.zeros(3)}).plot()
