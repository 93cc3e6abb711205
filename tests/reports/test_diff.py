import pytest
import torch
from torch import nn

import rankwise
from rankwise.reports.diff import make_diff_page
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Table


def strong(rank=3):
    return torch.randn(30, rank) @ torch.randn(rank, 54) + 0.1 * torch.randn(30, 54)


def page_of(before, after):
    probes = rankwise.probe(before), rankwise.probe(after)
    return *probes, make_diff_page(*probes, ("old.pt", "<new>\u202e.pt"))


def items(page, kind):
    return [item for section in page.sections for item in section.items if isinstance(item, kind)]


@pytest.fixture
def pair():
    same = strong()
    before = {
        "up": strong(2),
        "down": strong(8),
        "same": same,
        "gone": strong(),
        "b": torch.ones(3),
    }
    after = {"up": strong(8), "down": strong(2), "same": same, "new": strong(), "b": torch.ones(3)}
    return page_of(before, after)


def test_the_verdict_says_what_rose_and_what_fell(pair):
    *_, page = pair
    verdict = " ".join(page.summary)
    assert "rose most in up" in verdict
    assert "fell most in down" in verdict
    assert "1 tensor only in the second: new" in verdict
    assert page.title == "old.pt → <new>\\u202e.pt"


def test_figures_and_table_hold_the_layers_of_both(pair):
    before, after, page = pair
    assert len(items(page, ChartPanel)) == 5
    changes, *one_sided = items(page, Table)
    rows = {row[1].layer: row for row in changes.rows}
    assert list(rows) == list(page.layers) == ["up", "down", "same"]
    assert [row[0].text for row in changes.rows] == ["1", "2", "3"]
    gain = [column.title for column in changes.columns].index("Δs")
    assert rows["up"][gain].value == after["up"].stable_rank - before["up"].stable_rank
    assert rows["up"][gain].text.startswith("+")
    assert rows["down"][gain].text.startswith("−")
    assert {row[gain].style for row in changes.rows} == {""}  # neither is good or bad
    assert [table.rows[0][0].text for table in one_sided] == ["gone", "new"]


def test_tiles_hold_the_figures_of_the_whole_with_those_before(pair):
    before, after, page = pair
    facts = {fact.label: (fact.value, fact.remark) for fact in page.facts}
    old, new = before.figures, after.figures
    assert facts["Stable rank S"] == (
        f"{new.stable_rank_by_width:.3f}",
        f"before: {old.stable_rank_by_width:.3f}",
    )
    assert facts["Total rank"] == (f"{new.total_rank:g}", f"before: {old.total_rank:g}")
    assert not any("Q" in label.split() for label in facts)


def test_q_is_among_the_papers_figures_only(pair):
    before, after, page = pair
    paper = page.sections[-1]
    assert paper.title == "The paper's figures"
    said = " ".join(paper.items[0].paragraphs)
    assert f"Q before: {before.quality:.3f}; after: {after.quality:.3f}." in said
    assert " Q " not in " ".join(page.summary)


def test_broken_layers_come_first():
    *_, page = page_of({"w": strong()}, {"w": torch.full((30, 54), torch.nan)})
    assert page.summary[0].startswith("Warning: w was probed and is not finite")
    assert items(page, ChartPanel) == []
    assert "Warning: w was" in render_page(page)


def test_networks_without_a_common_layer_are_compared_as_wholes():
    before, after, page = page_of({"a": strong()}, {"b": strong()})
    assert "have no layer" in page.summary[0]
    (table,) = items(page, Table)
    assert [row[0].text for row in table.rows] == ["old.pt", "<new>\\u202e.pt"]
    titles = [column.title for column in table.columns]
    ranks = [row[titles.index("S")].value for row in table.rows]
    assert ranks == [probe.figures.stable_rank_by_width for probe in (before, after)]
    assert titles[-1] == "Q (the paper's)"
    assert page.layers == ()


def test_another_p_is_named_as_the_reason():
    one, two = rankwise.probe({"a": strong()}, p=1), rankwise.probe({"a": strong()})
    page = make_diff_page(one, two, ("one", "two"))
    assert "p = 1, the other with p = 2" in page.summary[0]


def test_networks_without_layers_have_a_page_too():
    *_, page = page_of(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    assert "No layer was probed on both sides." in page.summary


def test_a_browser_draws_it(pair, visit):
    *_, page = pair
    opened = visit(render_page(page))
    assert opened.tab.locator("canvas").count() == 5
    assert "<new>\\u202e.pt" in opened.text("h1")


def test_experts_are_one_row_of_table_and_charts():
    before = {f"layers.0.experts.{i}.w1.weight": strong(2) for i in range(6)}
    _, _, page = page_of(before, {name: strong(5) for name in before})
    (table, *_) = items(page, Table)
    assert [row[1].text for row in table.rows] == ["layers.0.experts.*.w1.weight ×6"]
    charted = [row["layer"] for row in items(page, ChartPanel)[0].chart.data.values]
    assert charted == list(page.layers) == ["layers.0.experts.*.w1.weight ×6"]
