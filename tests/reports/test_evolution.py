"""The page of several checkpoints of one network."""

import pytest
import torch
from torch import nn

import rankwise
from rankwise.charts.style import get_dataset
from rankwise.reports.evolution import make_evolution_page
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Table, Text


def strong(rank=3):
    return torch.randn(30, rank) @ torch.randn(rank, 54) + 0.1 * torch.randn(30, 54)


def items(page, kind):
    return [item for section in page.sections for item in section.items if isinstance(item, kind)]


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
    figures = rows_of(page, "figures")
    assert [row["total_rank"] for row in figures] == [p.figures.total_rank for p in probes]
    assert [row["quality"] for row in figures] == [p.quality for p in probes]
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
    rows = rows_of(make_evolution_page(probes, labels), "figures")
    assert [row["epoch"] for row in rows] == epochs


def test_tiles_compare_the_last_with_the_first(probes):
    page = make_evolution_page(probes, ("one", "two", "three"))
    facts = {fact.label: (fact.value, fact.remark) for fact in page.facts}
    first, last = probes[0].figures, probes[-1].figures
    assert facts["Checkpoints"] == ("3", "")
    assert facts["Total rank"] == (f"{last.total_rank:g}", f"first: {first.total_rank:g}")
    assert page.summary[0] == "3 checkpoints, from one to three."
    assert not any("Q" in line.split() for line in (*page.summary, *facts))


def test_first_and_last_stand_in_a_table(probes):
    page = make_evolution_page(probes, ("x", "y", "z"))
    (table,) = items(page, Table)
    assert [row[1].layer for row in table.rows] == ["a", "b"]
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
    assert opened.tab.locator("canvas").count() == 7
    assert any("2: b\\u202e" in words.paragraphs for words in items(page, Text))
