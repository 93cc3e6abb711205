"""The page of a checkpoint, from its rows to what a browser shows."""

import pytest
import torch
from torch import nn

import rankwise
from rankwise.charts.style import get_dataset
from rankwise.reports.checkpoint import NO_SPECTRA, THINNED, make_checkpoint_page
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Table, Text

HOSTILE = "</script><script>hacked=1</script>\"'\n\u202e"


def strong(rows=30, columns=54, rank=3):
    return torch.randn(rows, rank) @ torch.randn(rank, columns) + 0.1 * torch.randn(rows, columns)


@pytest.fixture
def weights():
    return {
        "conv.weight": strong(18, 90).view(18, 10, 3, 3),
        "conv.bias": torch.zeros(18),
        "fc.weight": strong(rank=4),
        "noise.weight": torch.randn(30, 54),
        HOSTILE: strong(),
        "__proto__": strong(rank=2),
    }


def page_of(target, **options):
    found = rankwise.probe(target, **{"spectra": True, **options})
    return found, make_checkpoint_page(found, found.at_random(), source="model.pt")


def items(page, kind):
    return [item for section in page.sections for item in section.items if isinstance(item, kind)]


def titles(page):
    return [section.title for section in page.sections]


def test_the_verdict_comes_in_words_and_says_what_q_is_not_for(weights):
    found, page = page_of(weights)
    verdict = " ".join(page.summary)
    assert "no direction stands out in 1: noise.weight" in verdict
    assert "4 of 5 layers have a higher rank than random weights" in verdict
    assert f"Q = {found.quality:.3f}" in verdict
    assert "don't choose a model by it" in verdict
    highest = max(found.probed, key=lambda layer: layer.quality)
    assert f"highest q is {highest.quality:.3f} ({highest.name})" in verdict


def test_tiles_hold_the_figures_of_the_whole(weights):
    found, page = page_of(weights)
    facts = {fact.label: fact.value for fact in page.facts}
    assert facts["Network quality Q"] == f"{found.quality:.3f}"
    assert facts["Layers probed"] == "5"
    assert facts["Parameters"] == f"{found.parameters:,}"


def test_every_metric_has_a_figure_and_says_how_to_read_it(weights):
    _, page = page_of(weights)
    pictures = items(page, ChartPanel)
    assert len(pictures) == 5 + 2  # the two unfoldings' spectra
    assert all(picture.caption for picture in pictures[:5])
    names = {get_dataset(picture.chart) for picture in pictures}
    assert names == {"layers", "spectra"}


def test_the_table_has_every_probed_layer_with_its_numbers(weights):
    found, page = page_of(weights)
    table = items(page, Table)[0]
    assert [row[0].layer for row in table.rows] == list(page.layers)
    column = [column.title for column in table.columns].index("s")
    for row, layer in zip(table.rows, found.probed, strict=True):
        assert row[column].value == layer.stable_rank
        assert row[column].text == f"{layer.stable_rank:.3f}"
        assert all(0 <= cell.share <= 1 for cell in row if cell.share is not None)
        assert len(row) == len(table.columns)


def test_names_are_the_same_everywhere_and_safe_to_show(weights):
    _, page = page_of(weights)
    shown = "</script><script>hacked=1</script>\"'\\x0a\\u202e"
    assert shown in page.layers
    rows = items(page, ChartPanel)[0].chart.data.values
    assert [row["layer"] for row in rows] == list(page.layers)


def test_what_was_skipped_is_told_with_the_reason():
    _, page = page_of({"w": strong(), "b": torch.zeros(3), "bad": torch.full((4, 4), torch.nan)})
    assert page.summary[0] == "Warning: 1 layer holds NaN or Inf: bad."
    skipped = items(page, Table)[-1]
    assert [[cell.text for cell in row] for row in skipped.rows] == [
        ["bad", "4×4", "not finite", "it holds NaN or infinity"],
        ["b", "3", "vector", "1-D: biases and norm scales are not probed"],
    ]


def test_without_spectra_the_page_says_how_to_get_them(weights):
    _, page = page_of(weights, spectra=False)
    told = [line for words in items(page, Text) for line in words.paragraphs]
    assert NO_SPECTRA in told
    assert len(items(page, ChartPanel)) == 5


def test_thinning_is_told_only_where_values_are_left_out(weights):
    def told(page):
        return any(THINNED in words.paragraphs for words in items(page, Text))

    assert not told(page_of(weights)[1])
    assert told(page_of({"w": strong(400, 500)})[1])


def test_caveats_and_notes_of_layers_are_told():
    _, page = page_of({"w": torch.outer(torch.ones(8), torch.ones(9)) + torch.eye(8, 9)})
    (words,) = [s.items[0] for s in page.sections if s.title == "Notes"]
    assert words.paragraphs[0].startswith("w: rank 1: κ = 0")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (nn.Identity(), "The model holds no tensors."),
        (nn.BatchNorm1d(3), "No layer was probed."),
    ],
    ids=["empty", "vectors"],
)
def test_networks_without_layers_have_a_page_too(target, words):
    _, page = page_of(target)
    assert words in page.summary
    assert items(page, ChartPanel) == []
    assert page.layers == ()
    assert words in render_page(page)


def test_many_layers_fit_on_a_page():
    found = rankwise.probe({"w": strong(8, 12, 2)})
    (layer,) = found.layers
    many = tuple(rankwise.LayerMetrics(**{**fields(layer), "name": f"w{i}"}) for i in range(2000))
    whole = rankwise.Probe("many", many)
    page = make_checkpoint_page(whole, whole.at_random(), source="many")
    assert len(items(page, Table)[0].rows) == 2000
    assert all(picture.wide for picture in items(page, ChartPanel))
    assert len(render_page(page)) < 8_000_000


def fields(layer):
    return {name: getattr(layer, name) for name in layer.__slots__}


def test_a_browser_shows_the_numbers_and_hostile_names_as_text(weights, visit):
    found, page = page_of(weights)
    opened = visit(render_page(page))
    assert opened.tab.locator("canvas").count() == 7
    assert f"{found.quality:.3f}" in opened.text("main")
    assert "<script>hacked=1</script>" in opened.text("table")
    assert opened.tab.evaluate("typeof hacked") == "undefined"


def test_choosing_a_layer_shows_its_spectrum(weights, visit):
    _, page = page_of(weights)
    opened = visit(render_page(page), width=390)
    spectrum = opened.tab.locator("canvas").nth(5)
    before = spectrum.screenshot()
    opened.tab.select_option("[data-layers]", "__proto__")
    opened.tab.wait_for_timeout(300)
    assert spectrum.screenshot() != before
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 390
