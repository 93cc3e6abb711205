"""The charts of a study: they compile, share legends, and stay readable with many series."""

import json

import pytest
import vl_convert

from rankwise.charts.axes import choose_time_unit
from rankwise.charts.study import (
    draw_by_quality,
    draw_epoch_times,
    draw_networks,
    draw_score_by_option,
    draw_score_curves,
    draw_score_map,
)
from rankwise.charts.style import CATEGORIES, NAMED

HOSTILE = "sgd'] || \"</script>{{datum}}"


def names(count):
    return [HOSTILE, *(f"setting {number}" for number in range(1, count))][:count]


def curves(count, across="epoch", n=3):
    return [
        {"setting": name, across: x, "mean": y, "low": y - 0.01, "high": y + 0.01, "n": n}
        for name in names(count)
        for x, y in enumerate((0.1, 0.5, 0.7, 0.8, 0.85, 0.9), 1)
    ]


def points(count):
    return [
        {"setting": name, "optimizer": name, "seed": 0, "quality": q, "score": q, "gap": 1 - q}
        for number, name in enumerate(names(count))
        for q in (0.1 + 0.01 * number, 0.2)
    ]


def swept(count, values=(0.01, 0.1, 1.0)):
    return [
        {"series": name, "value": value, "mean": 0.5, "low": 0.4, "high": 0.6, "n": 2}
        for name in names(count)
        for value in values
    ]


CELLS = [
    {"across": a, "up": b, "mean": a, "spread": None, "n": 1, "share": a}
    for a in (0.1, 0.9)
    for b in (0.0, 1e-4)
]
TIMES = [
    {"setting": HOSTILE, "part": "step", "seconds": 1.0},
    {"setting": HOSTILE, "part": "probe", "seconds": 0.1},
    {"setting": HOSTILE, "part": "total", "seconds": 1.1, "low": 1.0, "high": 1.2},
]
CHARTS = {
    "by epoch": lambda count: draw_score_curves(curves(count), names(count)),
    "by time": lambda count: draw_score_curves(
        curves(count, "seconds"), names(count), across="seconds"
    ),
    "perplexity": lambda count: draw_score_curves(curves(count), names(count), score="perplexity"),
    "quality": lambda count: draw_by_quality(points(count), names(count)),
    "gap": lambda count: draw_by_quality(points(count), names(count), "gap"),
    "rates": lambda count: draw_score_by_option(swept(count), names(count), option="lr"),
    "map": lambda count: draw_score_map(CELLS, across="lr", up="weight_decay"),
    "times": lambda count: draw_epoch_times(TIMES, [HOSTILE]),
}


@pytest.mark.parametrize("count", [1, 3, NAMED + 3])
@pytest.mark.parametrize("chart", CHARTS)
def test_every_chart_is_one_named_data_set_that_vega_takes(chart, count):
    spec = CHARTS[chart](count).to_dict()
    data = spec["data"]
    assert data.get("name")
    assert all("data" not in layer for layer in spec["layer"])
    assert spec["description"]
    assert vl_convert.vegalite_to_vega(spec)["marks"]


@pytest.mark.parametrize("chart", CHARTS)
def test_names_from_files_are_values_and_never_part_of_an_expression(chart):
    vega = vl_convert.vegalite_to_vega(CHARTS[chart](NAMED + 3).to_dict())
    found = list(_strings(vega, ("expr", "signal", "update", "test", "field", "format")))
    assert found
    assert not [text for text in found if "</script>" in text]


def _strings(node, keys):
    if isinstance(node, dict):
        for key, value in node.items():
            if key in keys and isinstance(value, str):
                yield value
            yield from _strings(value, keys)
    if isinstance(node, list):
        for value in node:
            yield from _strings(value, keys)


def legends(chart):
    return vl_convert.vegalite_to_vega(chart.to_dict())["legends"]


@pytest.mark.parametrize("chart", ["by epoch", "quality", "rates"])
def test_colour_and_dash_or_shape_share_one_legend_of_a_fixed_number_of_columns(chart):
    (legend,) = legends(CHARTS[chart](9))
    assert legend.keys() & {"stroke", "fill"}
    assert legend.keys() & {"strokeDash", "shape"}
    assert isinstance(legend["columns"], int)


def test_a_second_round_of_colours_is_dashed():
    spec = draw_score_curves(curves(9), names(9)).to_dict()
    line = next(layer["encoding"] for layer in spec["layer"] if "strokeDash" in layer["encoding"])
    colours, dashes = line["color"]["scale"]["range"], line["strokeDash"]["scale"]["range"]
    assert colours == [*CATEGORIES, *CATEGORIES[:2]]
    looks = {json.dumps(look) for look in zip(colours, dashes, strict=True)}
    assert len(looks) == 9


@pytest.mark.parametrize("name", ["by epoch", "quality", "rates"])
def test_more_series_than_have_a_look_are_grey_and_not_in_the_legend(name):
    few, many = (CHARTS[name](count).to_dict() for count in (NAMED, NAMED + 3))
    assert len(many["layer"]) == len(few["layer"]) + 1
    grey = many["layer"][0]
    assert "color" not in grey["encoding"]
    text = json.dumps(many["layer"][1]["encoding"]["color"])
    assert "setting 13" in text
    assert "setting 14" not in text


def test_the_frame_is_set_by_what_comes_after_the_first_fifth():
    spec = draw_score_curves(curves(1), names(1)).to_dict()
    domains = [layer["encoding"]["y"].get("scale", {}).get("domain") for layer in spec["layer"]]
    assert [0.49, 0.91] in domains
    assert all(layer["mark"]["clip"] for layer in spec["layer"])


def test_an_option_with_a_zero_has_its_values_side_by_side():
    def kind(values):
        spec = draw_score_by_option(swept(1, values), names(1), option="weight_decay").to_dict()
        x = spec["layer"][0]["encoding"]["x"]
        return x["type"], x["scale"].get("type")

    assert kind((0.0, 1e-4)) == ("ordinal", None)
    assert kind((1e-3, 1e-4)) == ("quantitative", "log")


@pytest.mark.parametrize(("falling", "reverse"), [(False, False), (True, True)])
def test_the_best_cell_of_a_map_is_the_bright_one(falling, reverse):
    spec = draw_score_map(CELLS, across="lr", up="beta", lower_is_better=falling).to_dict()
    assert spec["layer"][0]["encoding"]["color"]["scale"]["reverse"] is reverse


@pytest.mark.parametrize(("seconds", "unit"), [(30.0, "s"), (120.0, "min"), (7200.0, "h")])
def test_times_are_shown_in_a_unit_that_suits_them(seconds, unit):
    assert choose_time_unit(seconds)[0] == unit
    rows = [{**row, "seconds": row["seconds"] * seconds / 6} for row in curves(1, "seconds")]
    spec = draw_score_curves(rows, names(1), across="seconds").to_dict()
    assert f"({unit})" in spec["layer"][0]["encoding"]["x"]["title"]


def test_networks_are_points_and_what_is_missing_is_left_out():
    rows = [
        {"network": HOSTILE, "group": HOSTILE, "rank_one": n / 10, "q": n / 5, "accuracy": 0.5 + n}
        for n in range(4)
    ]
    rows.append({"network": "a", "group": "a", "rank_one": 0.0, "q": None, "accuracy": 0.5})
    chart = draw_networks(rows, ("q", "Q"), ("accuracy", "test accuracy"))
    picture = vl_convert.vegalite_to_svg(chart.to_json())
    assert picture.count('aria-roledescription="point"') == 4
    assert "unfoldings of rank 1" in picture
    assert "test accuracy" in picture
