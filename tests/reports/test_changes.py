"""The change of the weights on the page of two checkpoints."""

import pytest
import torch

import rankwise
from rankwise.adapters import measure_changes
from rankwise.reports.diff import make_diff_page
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Table
from rankwise.reports.report import build_page

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e.weight"


def plant(rows, columns, rank):
    return torch.randn(rows, rank) @ torch.randn(rank, columns)


@pytest.fixture
def sides():
    torch.manual_seed(0)
    base = {
        "a.weight": torch.randn(30, 54),
        "same.weight": torch.randn(30, 54),
        HOSTILE: torch.randn(30, 54),
        "a.bias": torch.zeros(30),
        "broken.weight": torch.ones(30, 54),
        "gone.weight": torch.ones(4, 4),
        "rounded.weight": torch.randn(20, 12),
    }
    tuned = {
        **base,
        "a.weight": base["a.weight"] + plant(30, 54, 2),
        HOSTILE: base[HOSTILE] + plant(30, 54, 3),
        "a.bias": torch.ones(30),
        "broken.weight": torch.full((30, 54), torch.nan),
        "rounded.weight": base["rounded.weight"].bfloat16(),
    }
    del tuned["gone.weight"]
    return base, tuned


def page_of(base, tuned):
    probes = rankwise.probe(base), rankwise.probe(tuned)
    return make_diff_page(*probes, ("base.pt", "tuned.pt"), measure_changes(base, tuned))


def section_of(page, title):
    return next(section for section in page.sections if section.title == title)


def items(section, kind):
    return [item for item in section.items if isinstance(item, kind)]


def test_the_page_leads_with_the_change(sides):
    page = page_of(*sides)
    assert page.summary[0].startswith("Warning: 1 tensor holds NaN or infinity: broken.weight")
    assert "3 of 5 tensors changed" in page.summary[1]
    facts = {fact.label: fact.value for fact in page.facts}
    assert facts["Tensors that changed"] == "3 of 5"
    assert facts["LoRA of these ranks"] == "1.68 kB"
    assert page.sections[0].title == "The change of the weights"
    said = " ".join(page.sections[0].items[0].paragraphs)
    assert "1 tensor is only in the base: gone.weight." in said


def test_layers_have_the_numbers_of_the_whole_page(sides):
    page = page_of(*sides)
    (table,) = items(section_of(page, "The change of the weights"), Table)
    names = {row[1].layer: row[0].text for row in table.rows}
    assert all(page.layers[int(number) - 1] == name for name, number in names.items())
    ranks = {row[1].layer: row[3].text for row in table.rows}
    assert (ranks["a.weight"], ranks["same.weight"]) == ("2", "–")
    panels = items(section_of(page, "The change of the weights"), ChartPanel)
    assert len(panels) == 3
    assert [row["layer"] for row in panels[0].chart.data.values] == list(names)


def test_what_was_not_compared_is_listed_with_the_reason(sides):
    (table,) = items(section_of(page_of(*sides), "Not compared"), Table)
    rows = {row[0].text: (row[2].text, row[3].text) for row in table.rows}
    assert rows["rounded.weight"] == ("rounding only", "float32 → bfloat16")
    assert rows["broken.weight"] == ("not finite", "the tuned network holds NaN or infinity")


def test_equal_networks_have_no_charts_of_the_change(sides):
    base, _ = sides
    page = page_of(base, dict(base))
    assert page.summary == ("Nothing changed: 7 tensors are the same.",)
    assert not items(section_of(page, "The change of the weights"), ChartPanel)


def test_experts_are_one_row():
    torch.manual_seed(0)
    base = {f"layers.0.experts.{i}.w1.weight": torch.randn(30, 20) for i in range(8)}
    tuned = {name: weight + plant(30, 20, 1) for name, weight in base.items()}
    page = page_of(base, tuned)
    (table,) = items(section_of(page, "The change of the weights"), Table)
    assert [row[1].layer for row in table.rows] == ["layers.0.experts.*.w1.weight ×8"]


def test_reports_of_two_files_have_the_change_and_of_saved_probes_do_not(sides, tmp_path):
    base, tuned = sides
    torch.save(base, tmp_path / "base.pt")
    torch.save(tuned, tmp_path / "tuned.pt")
    rankwise.probe(base).save(tmp_path / "base.json")
    titles = {
        first: [s.title for s in build_page([tmp_path / first, tmp_path / "tuned.pt"]).sections]
        for first in ("base.pt", "base.json")
    }
    assert "The change of the weights" in titles["base.pt"]
    assert "The change of the weights" not in titles["base.json"]
    torch.save({"other.weight": torch.eye(4)}, tmp_path / "other.pt")
    page = build_page([tmp_path / "base.pt", tmp_path / "other.pt"])
    assert page.sections[0].title == "The networks as a whole"


def test_hostile_names_are_text_in_a_browser(sides, visit):
    opened = visit(render_page(page_of(*sides)), width=390, scheme="dark")
    assert HOSTILE.replace("\u202e", "\\u202e") in opened.texts("[data-table=weight-changes] th")
    assert opened.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
