"""Charts of the change of the weights."""

import pytest
import vl_convert

from rankwise.charts.weight_changes import CHANGE_METRICS, draw_weight_changes
from rankwise.errors import ArgumentError


def make_row(number, name, **values):
    row = {"change": 0.1, "change_rank": 4, "low_rank_share": 0.9, "adapter_parameters": 80}
    return {"layer": name, "depth": number, "shape": "8×12", **row, **values}


BARS = [
    make_row(1, "<script>\u202e"),
    make_row(2, "same.weight", change=0.0, change_rank=0, low_rank_share=None),
    make_row(3, "from-zero.weight", change=None),
]
NAMES = [f"h.{i}.{role}.weight" for i in range(3) for role in ("q", "k", "v", "o")]
MAP = [make_row(number, name) for number, name in enumerate(NAMES, 1)]


@pytest.mark.parametrize("metric", CHANGE_METRICS)
@pytest.mark.parametrize("rows", [BARS, MAP, []], ids=["bars", "map", "nothing"])
def test_charts_are_drawn_with_a_row_for_each_layer(metric, rows):
    chart = draw_weight_changes(rows, metric)
    assert [row["layer"] for row in chart.data.values] == [row["layer"] for row in rows]
    assert "<svg" in vl_convert.vegalite_to_svg(chart.to_dict())


def test_shares_are_drawn_from_0_to_1():
    x = draw_weight_changes(BARS, "low_rank_share").to_dict()["layer"][-1]["encoding"]["x"]
    assert x["scale"]["domain"] == [0, 1]


def test_other_metrics_are_refused():
    with pytest.raises(ArgumentError, match="low_rank_share"):
        draw_weight_changes(BARS, "quality")
