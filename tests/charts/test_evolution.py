"""Charts of layers over epochs: what they show, checked in what Vega makes of them."""

import math

import pytest
import vl_convert

from rankwise import ArgumentError
from rankwise.charts.evolution import (
    LayerValues,
    draw_heat_map,
    draw_rates,
    draw_trajectories,
    make_layer_rows,
)
from rankwise.charts.runs import draw_figure
from rankwise.charts.style import get_dataset

HOSTILE = "'</script><img src=x onerror=alert(1)>\"]; datum"


def rows(epochs=3, layers=("input", "middle", "output"), **metrics):
    values = {"stable_rank": 0.25, "condition": 0.5, "quality": 0.4, "rank": 3.0, "rate": 0.1}
    return [
        {"epoch": epoch, "layer": layer, "depth": depth, **values, **metrics}
        for epoch in range(1, epochs + 1)
        for depth, layer in enumerate(layers, start=1)
    ]


def compiled(chart):
    return vl_convert.vegalite_to_vega(chart.to_dict())


def scale(chart, name):
    return next(found for found in compiled(chart)["scales"] if found["name"] == name)


def picture(chart):
    return vl_convert.vegalite_to_svg(chart.to_dict())


DRAW = {
    "heat": lambda found: draw_heat_map(found, "quality"),
    "rates": draw_rates,
    "paths": draw_trajectories,
}


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_any_number_of_epochs_can_be_drawn(draw, epochs):
    assert "<svg" in picture(draw(rows(epochs)))


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_all_rows_are_in_one_named_data_set(draw):
    found = rows()
    chart = draw(found)
    assert (get_dataset(chart), chart.data.values) == ("layers", found)
    spec = chart.to_dict()
    assert len(spec["datasets"]) == 1
    assert all("data" not in part for part in spec["layer"])


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_a_layers_name_is_a_value_and_never_part_of_an_expression(draw):
    found = compiled(draw(rows(layers=(HOSTILE, "fc"))))
    del found["data"]
    for one in found["scales"]:
        if HOSTILE in one["domain"]:  # a list of values
            del one["domain"]
    assert "onerror" not in str(found)


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_a_chart_says_what_it_shows_to_those_who_cannot_see_it(draw):
    assert "3 layers" in draw(rows()).to_dict()["description"]


def test_layers_stand_in_network_order_whatever_the_order_of_rows():
    found = scale(draw_heat_map(reversed(rows(layers=("z", "a", "m"))), "quality"), "y")
    assert found["domain"] == ["z", "a", "m"]


def test_epochs_without_any_value_keep_their_column():
    found = [*rows(1), *({**row, "epoch": 2, "quality": None} for row in rows(1))]
    text = picture(draw_heat_map(found, "quality"))
    assert ">1</text>" in text
    assert ">2</text>" in text
    assert text.count('fill="#d8dce1"') == 2  # a grey column for each, the first one covered


def test_many_epochs_have_few_labels():
    text = picture(draw_heat_map(rows(250, layers=("fc",)), "quality"))
    shown = [epoch for epoch in range(1, 251) if f">{epoch}</text>" in text]
    assert shown == [1, 50, 100, 150, 200, 250]


def spread(values):
    return [{**row, "rate": values[row["depth"] - 1]} for row in rows()]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((0.03, 0.02, 0.01), "linear"),
        ((0.3, 0.02, 0.001), "log"),
        ((0.3, None, 0.001), "log"),
        ((0.3, 0.0, 0.001), "symlog"),
        ((None, None, None), "linear"),
    ],
    ids=str,
)
def test_rates_that_differ_by_orders_of_magnitude_are_logarithmic(rates, expected):
    assert scale(draw_heat_map(spread(rates), "rate"), "color")["type"] == expected
    assert scale(draw_rates(spread(rates)), "y")["type"] == expected


def test_an_unknown_metric_is_refused_with_those_that_are_known():
    with pytest.raises(ArgumentError, match=r"'qualty'\. Did you mean quality"):
        draw_heat_map(rows(), "qualty")


def chosen(chart, layer):
    spec = chart.to_dict()
    next(param for param in spec["params"] if param["name"] == "layer")["value"] = layer
    return vl_convert.vegalite_to_svg(spec)


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_the_chosen_layer_is_marked(draw):
    chart = draw(rows())
    assert chosen(chart, "middle") != chosen(chart, "output") != chosen(chart, "")


def test_a_path_goes_from_a_ring_in_the_first_epoch_to_a_dot_in_the_last_known():
    found = [
        {**row, "stable_rank": s, "condition": 1 - (s or 0)}
        for row, s in zip(rows(4, layers=("fc",)), (0.0, 0.3, 0.2, None), strict=True)
    ]
    vega = compiled(draw_trajectories(found))
    ops = [t["ops"] for data in vega["data"] for t in data.get("transform", []) if "ops" in t]
    assert sorted(op for found in ops for op in found) == ["argmax", "argmin"]


def test_steps_are_called_what_they_are():
    drawn = draw_figure(
        [{"epoch": 1, "quality": 0.1}], "quality", title="Q", step="checkpoint"
    ).to_dict()
    assert drawn["encoding"]["x"]["title"] == "checkpoint"
    cells = draw_heat_map(rows(), "quality", step="checkpoint").to_dict()["layer"][1]
    assert cells["encoding"]["x"]["title"] == "checkpoint"


def test_every_row_of_a_heat_map_has_its_layers_number_and_name():
    text = picture(draw_heat_map(rows(2, layers=[f"block{n}.conv" for n in range(120)]), "rate"))
    assert all(f">{n + 1} block{n}.conv</text>" in text for n in range(120))


@pytest.mark.parametrize("epochs", [2, 2000])
def test_a_cells_tooltip_has_titles_and_few_digits_however_many_cells_there_are(epochs):
    cells = draw_heat_map(rows(epochs), "quality").to_dict()["layer"][1]
    titles = [field["title"] for field in cells["encoding"]["tooltip"]]
    assert titles == ["#", "layer", "epoch", "quality q"]
    assert cells["encoding"]["tooltip"][-1]["format"] == ".3f"


def test_few_lines_of_rates_are_named_in_the_legend():
    assert all(f">{name}</text>" in picture(draw_rates(rows())) for name in ("input", "output"))


def test_of_many_lines_the_highest_the_lowest_and_the_chosen_one_are_named():
    names = [f"l{n}" for n in range(30)]
    found = [{**row, "rate": 0.1 / row["depth"]} for row in rows(layers=names)]
    chart = draw_rates(found)
    assert [f">{n + 1} l{n}</text>" in chosen(chart, "") for n in (0, 15, 29)] == [
        True,
        False,
        True,
    ]
    assert ">16 l15</text>" in chosen(chart, "l15")


def test_nothing_but_zeros_is_the_dark_end_of_the_scale():
    found = draw_heat_map(rows(quality=0.0), "quality").to_dict()["layer"][1]
    assert found["encoding"]["color"]["scale"]["domain"] == [0, 1]


def layer(epoch, name, **metrics):
    return LayerValues(epoch, name, **{"stable_rank": 0.25, "rate": 0.1, **metrics})


def test_layers_are_counted_anew_in_every_epoch():
    rows = make_layer_rows([layer(e, n) for e in (1, 2) for n in ("conv", "fc")])
    assert [(row["epoch"], row["layer"], row["depth"]) for row in rows] == [
        (1, "conv", 1),
        (1, "fc", 2),
        (2, "conv", 1),
        (2, "fc", 2),
    ]
    assert set(rows[0]) == {
        *("epoch", "layer", "depth", "stable_rank", "condition", "quality", "rank", "rate")
    }


def test_layer_rows_of_new_epochs_are_the_last_rows_of_all():
    records = [layer(e, n) for e in (1, 2, 3) for n in ("conv", "fc")]
    assert make_layer_rows(records[4:]) == make_layer_rows(records)[4:]


@pytest.mark.parametrize("value", [math.nan, math.inf, None], ids=repr)
def test_a_rate_that_is_no_number_is_a_gap(value):
    assert make_layer_rows([layer(1, "fc", rate=value)])[0]["rate"] is None
