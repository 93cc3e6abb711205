import pytest
import torch
from torch import nn

import rankwise
from rankwise.charts.style import get_dataset
from rankwise.reports.diff import make_diff_page, make_evolution_page
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Table, Text


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
    before, after, page = pair
    verdict = " ".join(page.summary)
    assert f"from {before.quality:.3f} to {after.quality:.3f}" in verdict
    assert "grew most in up" in verdict
    assert "fell most in down" in verdict
    assert "1 tensor only in the second: new" in verdict
    assert page.title == "old.pt → <new>\\u202e.pt"


def test_figures_and_table_hold_the_layers_of_both(pair):
    before, after, page = pair
    assert len(items(page, ChartPanel)) == 3
    changes, *one_sided = items(page, Table)
    rows = {row[0].layer: row for row in changes.rows}
    assert list(rows) == list(page.layers) == ["up", "down", "same"]
    gain = [column.title for column in changes.columns].index("Δs")
    assert rows["up"][gain].value == after["up"].stable_rank - before["up"].stable_rank
    assert {rows[name][gain].style for name in ("up", "down")} == {""}
    assert [table.rows[0][0].text for table in one_sided] == ["gone", "new"]


def test_a_q_that_rank_one_lifts_is_not_praised():
    *_, page = page_of(
        {"w": strong(3)},
        {"w": torch.outer(torch.ones(30), torch.ones(54)) + 0.1 * torch.randn(30, 54)},
    )
    (caution,) = [line for line in page.summary if "by definition, not by learning" in line]
    assert "1 layer of the second" in caution
    assert "0 of the first" in caution


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
    assert [row[1].value for row in table.rows] == [before.quality, after.quality]
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
    assert opened.tab.locator("canvas").count() == 3
    assert "<new>\\u202e.pt" in opened.text("h1")


@pytest.fixture
def probes():
    return [rankwise.probe({"a": strong(n), "b": strong(2), "c": torch.ones(3)}) for n in (2, 5, 9)]


def rows_of(page, name):
    figures = [picture.chart for picture in items(page, ChartPanel)]
    return next(figure.data.values for figure in figures if get_dataset(figure) == name)


def test_every_layer_has_a_cell_in_every_checkpoint(probes):
    page = make_evolution_page(probes, ("x", "y", "z"))
    rows = rows_of(page, "layers")
    assert [(row["epoch"], row["layer"], row["depth"]) for row in rows] == [
        (epoch, name, depth) for epoch in (1, 2, 3) for depth, name in enumerate("ab", start=1)
    ]
    assert [row["quality"] for row in rows if row["layer"] == "a"] == [
        probe["a"].quality for probe in probes
    ]
    assert [row["quality"] for row in rows_of(page, "quality")] == [p.quality for p in probes]
    assert page.layers == ("a", "b")


@pytest.mark.parametrize(
    ("labels", "epochs"),
    [
        (("e1.pt", "e5.pt", "e10.pt"), [1, 5, 10]),
        (("epoch2-resnet20", "epoch3-resnet20", "epoch7-resnet20"), [2, 3, 7]),
        (("e5.pt", "e1.pt", "e10.pt"), [1, 2, 3]),
        (("e5.pt", "last.pt", "e10.pt"), [1, 2, 3]),
        (("e1.pt", "e2.pt", "e" + "9" * 5000), [1, 2, 3]),
    ],
    ids=["numbers", "two numbers", "not in order", "one without", "absurd"],
)
def test_numbers_that_grow_are_epochs(probes, labels, epochs):
    rows = rows_of(make_evolution_page(probes, labels), "quality")
    assert [row["epoch"] for row in rows] == epochs


def test_the_verdict_speaks_of_first_last_and_best(probes):
    first, best, last = sorted(probes, key=lambda probe: probe.quality, reverse=True)[::-1]
    page = make_evolution_page([first, last, best], ("one", "two", "three"))
    verdict = " ".join(page.summary)
    assert f"rose from {first.quality:.3f} to {best.quality:.3f}" in verdict
    assert f"Q was highest in two ({last.quality:.3f})" in verdict


def test_first_and_last_stand_in_a_table(probes):
    page = make_evolution_page(probes, ("x", "y", "z"))
    (table,) = items(page, Table)
    assert [row[0].layer for row in table.rows] == ["a", "b"]
    assert (
        table.rows[0][[column.title for column in table.columns].index("s after")].value
        == probes[-1]["a"].stable_rank
    )


def test_layers_are_matched_across_a_prefix_and_gaps_stay_gaps(probes):
    wrapped = {"model.a": strong(), "model.b": torch.full((30, 54), torch.nan)}
    page = make_evolution_page([rankwise.probe(wrapped), *probes], "wxyz")
    first = [row for row in rows_of(page, "layers") if row["epoch"] == 1]
    assert [(row["layer"], row["quality"] is None) for row in first] == [("a", False), ("b", True)]


def test_an_evolution_of_networks_without_a_common_layer_compares_wholes(probes):
    page = make_evolution_page([*probes, rankwise.probe({"other": strong()})], "wxyz")
    assert page.summary[0].startswith("Layers are not compared one by one.")
    assert len(items(page, Table)[0].rows) == 4


def test_networks_without_layers_have_a_page_without_figures():
    page = make_evolution_page([rankwise.probe(nn.BatchNorm1d(3))] * 3, "xyz")
    assert items(page, ChartPanel) == []
    assert "No layer was probed on both sides." in page.summary


def test_labels_are_shown_as_text(probes, visit):
    page = make_evolution_page(probes, ("<script>hacked=1</script>", "b\u202e", "c"))
    opened = visit(render_page(page))
    assert "<script>hacked=1</script> … c" in opened.text("h1")
    assert opened.tab.evaluate("typeof hacked") == "undefined"
    assert opened.tab.locator("canvas").count() == 5
    assert any("2: b\\u202e" in words.paragraphs for words in items(page, Text))
