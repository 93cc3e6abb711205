"""Pages of networks with hundreds of layers: small, folded, and still complete."""

import pytest
import torch

import rankwise
from rankwise.charts.style import get_dataset
from rankwise.reports.checkpoint import THINNED, make_checkpoint_page
from rankwise.reports.diff import make_diff_page
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Table, Text
from tests.reports.networks import TWELVE, make_experts, make_layer, make_llama, make_resnet


def items(page, kind):
    return [item for section in page.sections for item in section.items if isinstance(item, kind)]


def page_of(probe, **options):
    return make_checkpoint_page(probe, source="model", **options)


def rows_of(page, dataset):
    charts = (panel.chart for panel in items(page, ChartPanel))
    return next(chart.data.values for chart in charts if get_dataset(chart) == dataset)


def list_lines(page):
    """The names of the groups of the table, and how many rows each has."""
    return {
        group.cells[1].text: group.count for group in items(page, Table)[0].groups if group.cells
    }


@pytest.fixture(scope="module")
def large():
    return make_llama(80, roles=TWELVE, length=4096)


def test_a_thousand_layers_of_four_thousand_values_make_a_page_below_five_megabytes(large):
    page = page_of(large)
    assert len(render_page(page).encode()) < 5_000_000
    spectra = rows_of(page, "spectra")
    assert len(spectra) <= 120_000
    assert len({row["layer"] for row in spectra}) == len(large.layers) == 962
    assert len(rows_of(page, "layers")) == 962
    words = [text for item in items(page, Text) for text in item.paragraphs]
    assert THINNED.format(most=124, exact=41) in words


def test_the_largest_kept_values_of_a_thinned_spectrum_are_all_there(large):
    name = large.layers[5].name
    spectrum = large.layers[5].modes[0].spectrum
    rows = [row for row in rows_of(page_of(large), "spectra") if row["layer"] == name]
    assert [row["value"] for row in rows[:41]] == pytest.approx(spectrum.values[:41], rel=1e-4)
    assert [row["index"] for row in rows][-1] == 4096


def test_every_layer_is_once_in_the_table_and_below_its_block(large):
    page = page_of(large)
    table = items(page, Table)[0]
    assert [row[1].layer for row in table.rows] == [layer.name for layer in large.layers]
    assert list_lines(page) == {f"model.layers.{n}": 12 for n in range(80)}
    assert sum(group.count for group in table.groups) == len(table.rows)


def test_the_line_of_a_block_has_medians_the_sum_of_parameters_and_findings():
    layers = [make_layer(f"h.{n}.{role}.weight", seed=n) for n in range(30) for role in "qkvo"]
    layers[0] = make_layer("h.0.q.weight", rank=0)
    probe = rankwise.Probe("model", tuple(layers))
    weights = {layer.name: torch.randn(64, 64) for layer in layers}
    weights["h.0.q.weight"] = torch.zeros(64, 64)
    table = items(page_of(probe, findings=rankwise.check(weights)), Table)[0]
    cells = [cell.text for cell in table.groups[0].cells]
    assert cells[:4] == ["1–4", "h.0 ✖ 1", f"{layers[1].stable_rank:.3f}", "4 layers"]
    assert cells[7] == "3 of 4 differ"
    assert cells[-1] == "16,384"
    assert len(cells) == len(table.columns)


@pytest.mark.parametrize(
    ("blocks", "has_groups"), [(13, False), (15, True)], ids=["93 layers", "107 layers"]
)
def test_only_tables_of_many_layers_collapse(blocks, has_groups):
    page = page_of(make_llama(blocks))
    assert bool(items(page, Table)[0].groups) is has_groups


def test_a_block_that_the_order_interrupts_is_one_group_and_numbers_stay():
    names = [f"h.{n}.{role}.weight" for role in "qkvo" for n in range(30)]
    probe = rankwise.Probe("model", tuple(make_layer(name) for name in names))
    page = page_of(probe)
    table = items(page, Table)[0]
    assert list_lines(page) == {f"h.{n}": 4 for n in range(30)}
    assert [row[0].text for row in table.rows[:5]] == ["1", "31", "61", "91", "2"]
    assert page.layers[30] == table.rows[1][1].layer


def test_experts_are_groups_within_the_groups_of_blocks():
    page = page_of(make_experts(16, 128))
    lines = list_lines(page)
    outliers = [row for row in items(page, Table)[0].rows if row[1].layer[-1] == "t"]
    assert list(lines) == [f"model.layers.{n}" for n in range(16)]
    assert sum(lines.values()) == len(page.layers) == 16 * 3 + len(outliers)
    assert len(render_page(page)) < 5_000_000


def test_other_networks_collapse_by_the_fifty_and_have_maps_read_like_text():
    layers = tuple(make_layer(f"dense.layer{n}") for n in range(120))
    page = page_of(rankwise.Probe("dense", layers))
    assert list_lines(page) == {
        "layers 1 to 50": 50,
        "layers 51 to 100": 50,
        "layers 101 to 120": 20,
    }
    rows = rows_of(page, "layers")
    assert [(row["row"], row["column"]) for row in rows[49:51]] == [(0, 49), (1, 0)]


def test_a_click_in_a_map_opens_the_layers_block_and_leads_to_its_row(visit):
    opened = visit(render_page(page_of(make_llama(30))))
    tab = opened.tab
    assert tab.locator("tr[data-layer]:visible").count() == 2  # the embedding and the head
    assert tab.locator("tr.group:visible").count() == 30
    height = tab.evaluate("document.documentElement.scrollHeight")
    tab.locator("canvas").first.scroll_into_view_if_needed()
    box = tab.locator("canvas").first.bounding_box()
    tab.mouse.click(box["x"] + box["width"] - 12, box["y"] + 60)
    name = tab.input_value("[data-layers]")
    assert name.startswith("model.layers.29.self_attn.")
    row = tab.locator("tr.selected")
    assert row.get_attribute("data-layer") == name
    assert tab.locator("tr[data-layer]:visible").count() == 2 + 7
    assert tab.evaluate("document.documentElement.scrollHeight") == height  # nothing moves
    tab.click("[data-reveal]")
    assert tab.evaluate("document.activeElement.dataset.select") == name
    frame, inner = tab.locator(".scroll").first.bounding_box(), row.bounding_box()
    assert frame["y"] < inner["y"] < frame["y"] + frame["height"]
    assert 0 < inner["y"] < 900


def test_the_spectrum_in_a_browser_is_that_of_the_selected_layer(visit):
    opened = visit(render_page(page_of(make_llama(30))))
    spectrum = opened.tab.locator("canvas").nth(4)
    before = spectrum.screenshot()
    seen = {before}
    for name in ("model.layers.3.mlp.up_proj.weight", "lm_head.weight"):
        opened.tab.select_option("[data-layers]", name)
        opened.tab.wait_for_timeout(200)
        seen.add(spectrum.screenshot())
    opened.tab.click("[data-select='']")
    opened.tab.wait_for_timeout(200)
    assert len(seen) == 3
    assert spectrum.screenshot() == before


def test_groups_open_by_hand_by_filter_and_all_at_once(visit):
    opened = visit(render_page(page_of(make_llama(30))))
    tab = opened.tab
    rows, lines = tab.locator("tr[data-layer]:visible"), tab.locator("tr.group:visible")
    first = tab.locator("[data-fold]").first
    first.focus()
    tab.keyboard.press("Enter")
    assert first.get_attribute("aria-expanded") == "true"
    assert rows.count() == 2 + 7
    tab.fill("[data-filter]", "layers.12.mlp")
    assert (rows.count(), lines.count()) == (3, 1)
    assert opened.text("[data-count]") == "3 of 212 rows"
    tab.fill("[data-filter]", "")
    assert (rows.count(), lines.count()) == (2 + 7, 30)
    tab.click("[data-unfold]")
    assert (rows.count(), opened.text("[data-unfold]")) == (212, "Collapse all")
    tab.click("[data-unfold]")
    assert rows.count() == 2


def test_sorting_goes_through_all_layers_and_leads_back_to_groups(visit):
    opened = visit(render_page(page_of(make_llama(30))))
    tab = opened.tab
    names = "[data-table=layers] tr:visible > th[scope=row]"
    before = opened.texts(names)
    tab.click("[data-table=layers] thead th >> text=noise")
    assert tab.locator("tr[data-layer]:visible").count() == 212
    assert tab.locator("tr.group:visible").count() == 0
    values = tab.locator("tr[data-layer] td:nth-child(6)").evaluate_all(
        "cells => cells.map((cell) => Number(cell.dataset.value))"
    )
    assert values == sorted(values, reverse=True)
    tab.click("[data-regroup]")
    assert opened.texts(names) == before
    assert tab.locator("[data-regroup]").is_hidden()


def test_without_scripts_every_row_is_there(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(render_page(page_of(make_llama(20))), encoding="utf-8")
    tab = browser.new_page(java_script_enabled=False)
    tab.goto(file.as_uri())
    assert tab.locator("tr[data-layer]:visible").count() == 2 + 20 * 7
    tab.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("network", [make_llama(40), make_resnet()], ids=["llama", "resnet"])
def test_a_wide_map_scrolls_by_itself_and_the_page_does_not(visit, width, network):
    opened = visit(render_page(page_of(network)), width=width)
    assert opened.tab.evaluate("document.documentElement.scrollWidth") == width
    inner, outer = opened.tab.locator(".pan").first.evaluate("p => [p.scrollWidth, p.clientWidth]")
    assert (inner > outer) is (width == 390)


def test_the_page_of_what_changed_in_a_large_network_has_wide_maps_too(visit):
    before, after = make_llama(40), make_llama(40)
    html = render_page(make_diff_page(before, after, ("a", "b")))
    assert len(html) < 5_000_000
    opened = visit(html, width=390)
    assert opened.tab.evaluate("document.documentElement.scrollWidth") == 390
