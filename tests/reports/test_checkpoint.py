"""The page of a checkpoint, from its rows to what a browser shows."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import rankwise
from rankwise.charts.style import get_dataset
from rankwise.reports.checkpoint import (
    NO_FINDINGS,
    NO_SPECTRA,
    THINNED,
    make_checkpoint_page,
)
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, FoundLayer, Table, Text
from rankwise.weights.tensor import Status
from tests.probes.rows import probed, skipped

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
    """The page without findings, as of a saved probe."""
    found = rankwise.probe(target, **{"spectra": True, **options})
    return found, make_checkpoint_page(found, found.at_random(), source="model.pt")


def items(page, kind):
    return [item for section in page.sections for item in section.items if isinstance(item, kind)]


def words_of(page):
    return [text for item in items(page, Text) for text in item.paragraphs]


def titles(page):
    return [section.title for section in page.sections]


def test_without_findings_the_page_says_how_to_get_them(weights):
    _, page = page_of(weights)
    assert page.findings is None
    assert page.summary == (
        "No direction stands out from noise in 1 of 5 layers: noise.weight.",
        NO_FINDINGS,
    )
    assert "rankwise check FILE" in NO_FINDINGS


def test_tiles_hold_the_figures_of_the_whole_in_the_order_of_what_they_can_tell(weights):
    found, page = page_of({**weights, "small.weight": torch.randn(4, 60)})
    figures = found.figures
    assert {fact.label: (fact.value, fact.remark) for fact in page.facts} == {
        "Layers that differ from random": ("4 of 5", "1 too small to tell"),
        "Signal energy": (f"{100 * figures.signal_energy:.0f} %", "in directions above the noise"),
        "Stable rank S": (f"{figures.stable_rank_by_width:.3f}", "weighted by width"),
        "Total rank": (f"{figures.total_rank:g}", "directions above the noise"),
        "Parameters": (f"{figures.parameters:,}", ">99 % in probed layers"),
    }


def test_q_is_among_the_papers_figures_only(weights):
    found, page = page_of(weights)
    (paper,) = [s for s in page.sections if s.title == "The paper's figures"]
    assert titles(page).index("All layers") < titles(page).index(paper.title)
    said = " ".join(paper.items[0].paragraphs)
    assert f"Q = {found.quality:.3f}" in said
    assert "Don't choose a model by them" in said
    assert [item.title for item in paper.items[1:]] == ["Condition κ", "Quality q"]


def test_the_first_chart_shows_every_layer_and_each_says_how_to_read_it(weights):
    _, page = page_of(weights)
    pictures = items(page, ChartPanel)
    assert [picture.title for picture in pictures][:3] == [
        "Prominence",
        "Stable rank s",
        "Noise share",
    ]
    assert pictures[0].wide
    assert len(pictures) == 3 + 2 + 2  # the spectra of two unfoldings, the paper's two
    assert all(picture.caption for picture in pictures if get_dataset(picture.chart) == "layers")


@pytest.mark.parametrize(("order", "title"), [("network", "in network order"), ("name", "by name")])
def test_the_order_of_layers_is_only_claimed_where_it_is_known(weights, order, title):
    found = replace(rankwise.probe(weights), order=order)
    page = make_checkpoint_page(found, found.at_random(), source="model.pt")
    assert titles(page)[0] == f"Layers {title}"
    assert title in items(page, Table)[0].caption


def test_the_table_has_every_probed_layer_with_the_number_that_charts_show(weights):
    found, page = page_of(weights)
    table = items(page, Table)[0]
    assert [row[table.name_column].layer for row in table.rows] == list(page.layers)
    charted = {row["layer"]: row["depth"] for row in items(page, ChartPanel)[0].chart.data.values}
    assert {row[1].layer: int(row[0].text) for row in table.rows} == charted
    column = [column.title for column in table.columns].index("s")
    for row, layer in zip(table.rows, found.probed, strict=True):
        assert row[column].value == layer.stable_rank
        assert row[column].text == f"{layer.stable_rank:.3f}"
        assert all(0 <= cell.share <= 1 for cell in row if cell.share is not None)
        assert len(row) == len(table.columns)


def test_findings_come_first_and_lead_to_their_layers(weights):
    broken = {**weights, "zero.weight": torch.zeros(30, 54), "nan": torch.full((30, 54), torch.nan)}
    found = rankwise.check(broken)
    probe = found.probe
    page = make_checkpoint_page(probe, probe.at_random(), source="model.pt", findings=found)
    assert page.summary == ()
    assert page.findings.summary == found.summary()
    cards = {card.kind: card for card in page.findings.problems}
    number = page.layers.index("zero.weight") + 1
    assert cards["all-zero"].layers == (FoundLayer("zero.weight", number),)
    assert cards["not-finite"].layers == (FoundLayer("nan", None),)  # no chart shows it
    assert cards["all-zero"].advice
    rows = items(page, ChartPanel)[0].chart.data.values
    assert {row["layer"]: row["finding"] for row in rows}["zero.weight"] == "error"


def test_many_findings_of_one_kind_share_a_card(weights):
    found = rankwise.check({**weights, **{f"z{n}": torch.zeros(20, 30 + n) for n in range(9)}})
    page = make_checkpoint_page(found.probe, found.probe, source="model.pt", findings=found)
    (card,) = [card for card in page.findings.problems if card.kind == "all-zero"]
    assert [layer.name for layer in card.layers] == [f"z{n}" for n in range(9)]
    assert card.message.startswith("For example z0: ")


def test_a_browser_shows_findings_as_text_and_selects_their_layers(weights, visit):
    found = rankwise.check({**weights, HOSTILE: torch.zeros(30, 54)})
    page = make_checkpoint_page(found.probe, found.probe, source="model.pt", findings=found)
    opened = visit(render_page(page), width=390)
    first = opened.text(".findings li.error")
    assert "✖ error" in first
    assert "<script>hacked=1</script>" in first
    assert "What to check:" in first
    assert opened.tab.evaluate("typeof hacked") == "undefined"
    opened.tab.click(".findings li.error button")
    shown = "</script><script>hacked=1</script>\"'\\x0a\\u202e"
    assert opened.tab.input_value("[data-layers]") == shown
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_network_without_problems_gets_one_calm_line(visit):
    found = rankwise.check({"fc.weight": strong(40, 60)})
    page = make_checkpoint_page(found.probe, found.probe, source="model.pt", findings=found)
    opened = visit(render_page(page))
    assert opened.text(".findings .clean") == f"✓ {found.summary()}"
    assert opened.tab.locator(".findings li, .summary").count() == 0


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
        return THINNED.format(most=200, exact=66) in words_of(page)

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
    assert len(render_page(page)) < 5_000_000


def fields(layer):
    return {name: getattr(layer, name) for name in layer.__slots__}


def test_a_transformer_of_three_hundred_layers_has_a_page_of_a_few_megabytes(visit):
    layer = rankwise.probe({"w": strong(96, 128)}, spectra=True).layers[0]
    roles = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    names = [f"model.layers.{n}.{role}.weight" for n in range(43) for role in roles]
    many = tuple(rankwise.LayerMetrics(**{**fields(layer), "name": name}) for name in names)
    whole = rankwise.Probe("llama", many, order="name")
    html = render_page(make_checkpoint_page(whole, whole.at_random(), source="llama"))
    assert len(html) < 2_000_000
    opened = visit(html)
    assert opened.tab.locator("canvas").count() == 7


def test_on_a_phone_metrics_stand_beside_names_that_break_between_words(visit):
    _, page = page_of({f"encoder.layer.{n}.attention.output.dense.weight": strong() for n in "012"})
    opened = visit(render_page(page), width=390)
    row = opened.tab.locator("[data-table=layers] tbody tr").first
    stable_rank = row.locator("td").nth(1).bounding_box()
    assert stable_rank["x"] + stable_rank["width"] < 390
    lines = row.locator("th button").evaluate(
        """node => {
            const range = document.createRange();
            return [...node.childNodes].filter(one => one.nodeType === 3).map(one => {
                range.selectNodeContents(one);
                return range.getClientRects().length;
            });
        }"""
    )
    assert set(lines) == {1}  # no part between two dots is broken
    assert len(lines) == 7


def test_a_browser_shows_the_numbers_and_hostile_names_as_text(weights, visit):
    found, page = page_of(weights)
    opened = visit(render_page(page))
    assert opened.tab.locator("canvas").count() == 7
    assert f"{found.figures.stable_rank_by_width:.3f}" in opened.text(".facts")
    assert "<script>hacked=1</script>" in opened.text("table")
    assert opened.tab.evaluate("typeof hacked") == "undefined"


def test_choosing_a_layer_shows_its_spectrum(weights, visit):
    _, page = page_of(weights)
    opened = visit(render_page(page), width=390)
    spectrum = opened.tab.locator("canvas").nth(3)
    before = spectrum.screenshot()
    opened.tab.select_option("[data-layers]", "__proto__")
    opened.tab.wait_for_timeout(300)
    assert spectrum.screenshot() != before
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= 390


def experts(blocks, count, *, odd=()):
    """Rows of a network with experts that only their names show."""
    rows = [probed("embed.weight", rank=9.0)]
    for block in range(blocks):
        rows += [probed(f"layers.{block}.attn.{role}.weight", rank=5.0) for role in "qkvo"]
        for role in ("w1", "w2", "w3"):
            for i in range(count):
                name = f"layers.{block}.mlp.experts.{i}.{role}.weight"
                rows.append(probed(name, rank=15.0 if name in odd else 4.0 + i % 2))
    return rankwise.Probe("experts", tuple(rows))


def test_a_page_of_thousands_of_experts_is_small_and_shows_groups_and_outliers():
    odd = "layers.1.mlp.experts.3.w2.weight"
    page = make_checkpoint_page(experts(61, 256, odd=[odd]), source="model")
    assert len(render_page(page)) < 5_000_000
    table = items(page, Table)[0]
    names = [row[1].text for row in table.rows]
    assert len(names) == 1 + 61 * (4 + 3) + 1
    place = names.index("layers.1.mlp.experts.*.w2.weight ×256")
    assert names[place + 1] == odd
    assert table.rows[place][3].text == "4.5/16 (4 … 15)"
    text = items(page, Text)[0]
    assert "Marks: ≠ with experts unlike the others." in text.paragraphs[0]
    words = " ".join(text for item in items(page, Text) for text in item.paragraphs)
    assert f"Unlike their siblings: {odd} (rank 15, median 4.5)." in words


def test_a_map_shows_groups_by_their_medians_and_marks_outliers():
    odd = "layers.1.mlp.experts.3.w2.weight"
    page = make_checkpoint_page(experts(3, 8, odd=[odd]), source="model")
    rows = {row["layer"]: row for row in items(page, ChartPanel)[0].chart.data.values}
    assert odd not in rows
    marked = [name for name, row in rows.items() if row["has_outliers"]]
    assert marked == ["layers.1.mlp.experts.*.w2.weight ×8"]
    row = rows[marked[0]]
    assert (row["block"], row["role"]) == ("1", "mlp.experts.*.w2 ×8")
    assert row["depth"] == page.layers.index(marked[0]) + 1


def test_bars_show_outliers_beside_their_group():
    names = [f"experts.{i}.w1.weight" for i in range(8)]
    rows = [probed(name, rank=15.0 if i == 3 else 4.0) for i, name in enumerate(names)]
    page = make_checkpoint_page(rankwise.Probe("experts", tuple(rows)), source="model")
    charted = [row["layer"] for row in items(page, ChartPanel)[0].chart.data.values]
    assert charted == ["experts.*.w1.weight ×8", "experts.3.w1.weight"] == list(page.layers)


def test_the_spectrum_of_a_group_is_that_of_its_typical_expert(weights):
    experts = {f"experts.{i}.w1.weight": strong() for i in range(5)}
    found, page = page_of(experts)
    spectra = [item for item in items(page, ChartPanel) if get_dataset(item.chart) == "spectra"]
    shown = {row["layer"]: row for row in reversed(spectra[0].chart.data.values)}
    typical = sorted(found.layers, key=lambda layer: layer.stable_rank)[2]
    first = typical.modes[0].spectrum.values[0]
    assert shown["experts.*.w1.weight ×5"]["value"] == pytest.approx(first, rel=1e-4)
    assert "random" in shown["experts.*.w1.weight ×5"]


def test_a_finding_of_an_expert_marks_its_group():
    weights = {f"layers.0.experts.{i}.w1.weight": strong() for i in range(8)}
    weights["layers.0.experts.5.w1.weight"] = torch.zeros(30, 54)
    found = rankwise.check(weights)
    page = make_checkpoint_page(found.probe, source="model.pt", findings=found)
    rows = {row["layer"]: row for row in items(page, ChartPanel)[0].chart.data.values}
    assert rows["layers.0.experts.*.w1.weight ×8"]["finding"] == "error"


def test_of_very_many_layers_the_first_and_those_with_findings_are_shown():
    rows = [probed(f"w{i}") for i in range(100_000)]
    whole = rankwise.Probe("many", tuple(rows))
    finding = rankwise.check({"w": torch.zeros(8, 8)}).findings[0]
    broken = [replace(finding, layer=f"w{i}") for i in range(90_000, 90_300)]
    findings = rankwise.Findings("many", tuple(broken), whole)
    page = make_checkpoint_page(whole, source="many", findings=findings)
    assert len(page.layers) == 2000
    assert page.layers[1699:1701] == ("w1699", "w90000")
    said = " ".join(text for item in items(page, Text) for text in item.paragraphs)
    assert "98000 more layers would make the page too large" in said
    (card,) = page.findings.problems
    assert (len(card.layers), card.hidden) == (200, 100)
    assert "and 296 more" in render_page(page)
    assert len(render_page(page)) < 5_000_000


def test_what_could_not_be_read_is_in_the_summary_of_a_saved_probe():
    rows = (probed("a"), skipped("b", Status.UNREADABLE), skipped("c", Status.QUANTISED))
    page = make_checkpoint_page(rankwise.Probe("some", rows), source="p.json")
    assert page.summary[:2] == (
        "Warning: 1 layer could not be read: b.",
        "Warning: 1 quantised weight was not measured: c.",
    )
