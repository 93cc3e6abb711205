import pytest
import torch
import vl_convert

import rankwise
from rankwise.charts import spectrum
from rankwise.charts.spectrum import draw_spectrum, list_sides, make_spectrum_rows
from rankwise.probes.chart_rows import make_spectra


def strong(rows=30, columns=54, rank=3):
    return torch.randn(rows, rank) @ torch.randn(rank, columns) + 0.1 * torch.randn(rows, columns)


@pytest.fixture
def found():
    weights = {"fc": strong(rank=2), "conv": strong(rows=18, columns=90).view(18, 10, 3, 3)}
    return rankwise.probe(weights, spectra=True)


def drawn(chart, chosen=""):
    specification = chart.to_dict()
    for param in specification["params"]:
        if param["name"] == "layer":
            param["value"] = chosen
    return vl_convert.vegalite_to_svg(specification)


def spectrum_rows(found, random=(), **options):
    return make_spectrum_rows(make_spectra(found, random), **options)


def rows_of(rows, layer, side):
    return [row for row in rows if (row["layer"], row["side"]) == (layer, side)]


def test_rows_hold_every_value_and_what_became_of_it(found):
    rows = rows_of(spectrum_rows(found, found.at_random()), "fc", "output")
    kept = found["fc"].modes[0].spectrum
    assert [row["value"] for row in rows] == pytest.approx(kept.values, rel=1e-4)
    assert [row["shrunk"] for row in rows if "shrunk" in row] == pytest.approx(kept.kept, rel=1e-4)
    assert [row["part"] for row in rows].count("kept") == 2
    assert rows[0]["threshold"] == pytest.approx(kept.threshold, rel=1e-4)
    at_random = found.at_random()["fc"].modes[0].spectrum.values
    assert [row["random"] for row in rows] == pytest.approx(at_random, rel=1e-4)


def test_both_unfoldings_of_a_convolution_have_their_rows(found):
    rows = spectrum_rows(found)
    assert len(rows_of(rows, "conv", "output")) == 18
    assert len(rows_of(rows, "conv", "input")) == 10
    assert not rows_of(rows, "fc", "input")
    assert list_sides(rows) == ["output", "input"]


def test_the_layer_of_highest_rank_stands_where_none_is_chosen(found):
    rows = spectrum_rows(found)
    assert {row["layer"] for row in rows if row.get("default")} == {"conv"}
    assert drawn(draw_spectrum(rows)) == drawn(draw_spectrum(rows), "conv")


def test_the_chosen_layer_is_the_one_that_is_drawn(found):
    chart = draw_spectrum(spectrum_rows(found, found.at_random()))
    marks = 'aria-roledescription="point"'
    assert drawn(chart, "fc").count(marks) == 30 + 2
    assert drawn(chart, "conv").count(marks) == 18 + 3
    assert "noise threshold" in drawn(chart, "fc")
    assert "random weights" in drawn(chart, "fc")


def test_a_side_that_the_chosen_layer_has_not_says_so(found):
    words = "This layer has the other unfolding only."
    chart = draw_spectrum(spectrum_rows(found), "input")
    assert words in drawn(chart, "fc")
    assert words not in drawn(chart, "conv")


def test_long_spectra_are_thinned_but_not_at_the_ends_nor_at_the_cut():
    found = rankwise.probe({"w": strong(rows=700, columns=900, rank=20)}, spectra=True)
    rank = int(found["w"].rank)
    places = [row["index"] for row in spectrum_rows(found, most=60)]
    assert len(places) <= 60
    assert {1, 700, rank - 1, rank, rank + 1, rank + 2} <= set(places)
    assert places == sorted(set(places))


def test_rows_of_very_many_layers_stay_bounded(monkeypatch):
    monkeypatch.setattr(spectrum, "MOST_ROWS", 300)
    found = rankwise.probe({f"w{i}": strong() for i in range(20)}, spectra=True)
    assert len(spectrum_rows(found)) <= 300
    assert {row["layer"] for row in spectrum_rows(found)} == {f"w{i}" for i in range(20)}


def test_zeros_are_left_out_of_a_logarithmic_axis():
    weight = torch.zeros(6, 9)
    weight[:2] = torch.eye(2, 9)
    found = rankwise.probe({"dead": weight, "zero": torch.zeros(4, 5)}, spectra=True)
    rows = spectrum_rows(found)
    assert [row["layer"] for row in rows if "value" in row] == ["dead", "dead"]
    for chosen in ("dead", "zero"):
        assert "<svg" in drawn(draw_spectrum(rows), chosen)


def test_without_spectra_there_are_no_rows_and_still_a_chart():
    rows = spectrum_rows(rankwise.probe({"w": strong()}))
    assert rows == []
    assert "<svg" in drawn(draw_spectrum(rows))


def test_a_chart_names_the_layer_it_shows(found):
    chart = draw_spectrum(spectrum_rows(found))
    assert ">1  fc</text>" in drawn(chart, "fc")
    assert ">2  conv</text>" in drawn(chart)
    assert ">fc</text>" in drawn(found.plot_spectrum("fc"))


def test_no_text_is_drawn_over_the_values(found):
    chart = draw_spectrum(spectrum_rows(found)).to_dict()
    texts = [mark for mark in chart["layer"] if mark["mark"]["type"] == "text"]
    places = [mark["encoding"]["y"]["value"] for mark in texts if "text" in mark["encoding"]]
    assert places == [-10]  # above the frame
