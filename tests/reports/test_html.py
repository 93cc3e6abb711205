"""The page itself: escaped, self-contained, sortable, linked, in the reader's colours."""

import altair as alt
import pytest

from rankwise.charts.style import DEEP, IS_SELECTED_OR_NONE, NEAR, finish_chart, start_chart
from rankwise.reports.html import (
    read_asset,
    render_page,
    render_served_page,
    render_table_rows,
)
from rankwise.reports.packing import pack_rows
from rankwise.reports.page import Cell, ChartPanel, Fact, Page, Section, Table, Text, make_columns

HOSTILE = "</script><script>hacked=1</script><img src=x onerror=hacked=1>\"'{{7*7}}\u202e__proto__"
NAMES = ("stem.conv", HOSTILE, "classifier")


def rows():
    return [
        {"layer": name, "depth": depth, "epoch": epoch, "rate": 0.1 * depth * 0.9**epoch}
        for depth, name in enumerate(NAMES, 1)
        for epoch in range(1, 6)
    ]


def figure(name="layers", found=None):
    drawn = start_chart(name).mark_line(strokeWidth=8)
    encoded = drawn.encode(
        x="epoch:Q",
        y="rate:Q",
        detail="layer:N",
        color=alt.Color("depth:Q", scale=alt.Scale(range=[NEAR, DEEP])),
        opacity=alt.condition(IS_SELECTED_OR_NONE, alt.value(1), alt.value(0.2)),
        tooltip=["layer:N"],
    )
    return finish_chart(encoded, rows() if found is None else found, "The rates of three layers")


def table(**options):
    cells = tuple(
        (Cell(name, layer=name), Cell(f"{value:.1f}" if value else "–", value=value, share=0.5))
        for name, value in zip(NAMES, (2.0, None, 10.0), strict=True)
    )
    return Table(make_columns(("layer", "rate")), cells, "All layers", has_filter=True, **options)


def page(**options):
    sections = (
        Section(
            "Rates", (ChartPanel("First", figure(), "Read me."), ChartPanel("Second", figure()))
        ),
        Section("Table", (Text(("folded",), collapsed_under="How to read"), table(name="layers"))),
    )
    return Page(
        title=f"A run of {HOSTILE}",
        summary=("It learned.", HOSTILE),
        facts=(Fact("Q", "0.5", HOSTILE),),
        layers=NAMES,
        source=HOSTILE,
        sections=sections,
        **options,
    )


def test_nothing_hostile_is_left_in_the_text_of_the_page():
    html = render_served_page(page()).decode()
    assert "<script>hacked" not in html
    assert "<img" not in html
    assert "{{7*7}}" in html  # text, not a template


def test_rows_that_figures_share_are_stored_once():
    assert render_page(page()).count("0.0729") == 1  # the third layer's rate has other digits


def test_figures_with_other_rows_under_the_same_name_are_refused():
    both = (ChartPanel("a", figure()), ChartPanel("b", figure(found=rows()[:3])))
    with pytest.raises(ValueError, match="different rows called 'layers'"):
        render_page(Page(title="", summary=(), sections=(Section("", both),)))


def test_what_is_not_finite_becomes_a_gap():
    columns = pack_rows([{"a": float("nan")}, {"a": float("inf")}, {"a": 1.0}, {}])["columns"]
    assert columns == [[None, None, 1.0, None]]


def test_a_served_page_loads_its_parts_from_the_server():
    html = render_served_page(page()).decode()
    assert 'src="/vega.js"' in html
    assert len(html) < 20_000
    for name in ("page.css", "page.js", "vega.js"):
        content, kind = read_asset(name)
        assert content
        assert kind.startswith("text/")
    with pytest.raises(KeyError):
        read_asset("../html.py")


def test_rows_for_an_open_page_are_escaped_as_well():
    html = render_table_rows(table(compare_address="/compare"))
    assert html.count("<tr") == 3
    assert "<img" not in html


def test_a_hostile_page_runs_nothing_and_asks_for_nothing(visit):
    opened = visit(render_page(page()))
    assert opened.tab.evaluate("typeof hacked") == "undefined"
    assert opened.text("h1") == f"A run of {HOSTILE}"
    assert opened.text("tbody tr:nth-child(2) th") == HOSTILE
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert opened.tab.locator("canvas").count() == 2


def test_scripts_that_are_put_into_the_page_are_refused(visit):
    opened = visit(render_page(page()))
    opened.tab.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'hacked = 1';"
        " document.body.append(s); }"
    )
    assert opened.tab.evaluate("typeof hacked") == "undefined"
    assert any("Content Security Policy" in text for text in opened.complaints)
    opened.complaints.clear()


def test_heads_sort_and_what_has_no_value_comes_last(visit):
    opened = visit(render_page(page()))
    opened.tab.click("th >> text=rate")
    assert opened.texts("tbody td") == ["10.0", "2.0", "–"]
    assert opened.tab.get_attribute("thead th:nth-child(2)", "aria-sort") == "descending"
    opened.tab.click("th >> text=rate")
    assert opened.texts("tbody td") == ["2.0", "10.0", "–"]
    opened.tab.focus("thead th:nth-child(1) button")
    opened.tab.keyboard.press("Enter")
    assert opened.texts("tbody th")[1:] == ["classifier", "stem.conv"]
    assert opened.tab.get_attribute("thead th:nth-child(2)", "aria-sort") is None


def test_a_filter_hides_rows_and_counts_them(visit):
    opened = visit(render_page(page()))
    opened.tab.fill("[data-filter]", "CLASS")
    assert opened.tab.locator("tbody tr:visible").count() == 1
    assert opened.text("[data-count]") == "1 of 3 rows"


def test_a_chosen_layer_is_marked_in_tables_lists_and_figures(visit):
    opened = visit(render_page(page()))
    before = opened.tab.locator("canvas").last.screenshot()
    opened.tab.click("tbody tr:nth-child(2) button")
    assert opened.tab.get_attribute("tr.selected", "data-layer") == HOSTILE
    assert opened.tab.input_value("[data-layers]") == HOSTILE
    opened.tab.wait_for_timeout(300)
    assert opened.tab.locator("canvas").last.screenshot() != before
    opened.tab.select_option("[data-layers]", "")
    assert opened.tab.locator("tr.selected").count() == 0


def test_a_click_in_one_figure_chooses_the_layer(visit):
    opened = visit(render_page(page()))
    box = opened.tab.locator("canvas").first.bounding_box()
    # The uppermost line's left end lies in the corner of the axes.
    for x in range(40, 120, 8):
        opened.tab.mouse.click(box["x"] + x, box["y"] + 24)
        if opened.tab.input_value("[data-layers]"):
            break
    assert opened.tab.input_value("[data-layers]") == "classifier"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_its_window(visit, width):
    opened = visit(render_page(page()), width=width)
    assert opened.tab.evaluate("document.documentElement.scrollWidth") == width


def test_figures_follow_the_reader_from_light_to_dark_and_onto_paper(visit):
    opened = visit(render_page(page()))
    light = opened.tab.locator("canvas").first.screenshot()
    opened.tab.emulate_media(color_scheme="dark")
    opened.tab.wait_for_timeout(200)
    dark = opened.tab.locator("canvas").first.screenshot()
    assert dark != light
    opened.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.tab.locator("canvas").first.screenshot() != dark
    assert opened.tab.get_attribute("details.text", "open") is not None
    opened.tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.tab.locator("canvas").first.screenshot() == dark


def test_every_figure_has_a_text_for_those_who_cannot_see_it(visit):
    opened = visit(render_page(page()))
    charts = opened.tab.locator("[role=graphics-document]")
    labels = [node.get_attribute("aria-label") for node in charts.all()]
    assert labels == ["The rates of three layers"] * 2


def test_without_scripts_words_and_tables_are_there(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(render_page(page()), encoding="utf-8")
    tab = browser.new_page(java_script_enabled=False)
    tab.goto(file.as_uri())
    assert tab.locator("body noscript").count() == 1
    assert tab.locator("tbody tr").count() == 3
    tab.close()
