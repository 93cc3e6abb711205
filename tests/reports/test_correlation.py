"""The page of a ranking: verdict first, a scatter for each score shown, and all coefficients."""

import numpy as np
import pytest

from rankwise.reports.correlation import make_correlation_page
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Table
from rankwise.study.zoo.networks import read_table
from rankwise.study.zoo.ranking import rank_networks
from rankwise.study.zoo.scores import SCORES
from rankwise.study.zoo.verdict import describe_ranking

HOSTILE = "<script>alert(1)</script>"


def weights(number):
    random = np.random.default_rng(number)
    signal = random.normal(size=(12, 3)) @ random.normal(size=(3, 30))
    return {
        "a.weight": number * signal + random.normal(size=(12, 30)),
        "b.weight": random.normal(size=(8, 20)),
    }


@pytest.fixture
def found(tmp_path):
    lines = ["file,accuracy,train_accuracy,family"]
    for number in range(12):
        np.savez(tmp_path / f"{number}.npz", **weights(number))
        family, train = (HOSTILE, "0.9") if number < 6 else ("plain", "")
        lines.append(f"{number}.npz,{0.5 + number / 40},{train},{family}")
    lines.append(f"{HOSTILE}.npz,0.5,,plain")
    (tmp_path / "index.csv").write_text("\n".join(lines))
    return rank_networks(read_table(tmp_path / "index.csv"), resamples=20)


@pytest.fixture
def page(found):
    return make_correlation_page(found, title="Ranked")


def items(section, kind):
    return [item for item in section.items if isinstance(item, kind)]


def test_the_verdict_comes_first_and_tiles_count(page, found):
    assert page.summary == describe_ranking(found)
    facts = {fact.label: (fact.value, fact.remark) for fact in page.facts}
    assert facts["Networks"] == ("12", "1 left out")
    assert facts["Families"][0] == "2"
    assert facts["Significant"][0] == f"0 of {found.tests} tests"


def test_each_family_has_a_scatter_a_score_and_target(page):
    hostile, plain = page.sections[:2]
    scores = ("Q", "Log parameters", "Mean log ‖W‖F")
    titles = [f"{score} and test accuracy" for score in scores]
    assert [one.title for one in items(plain, ChartPanel)] == titles
    gaps = [f"{score} and generalisation gap" for score in scores]
    assert [one.title for one in items(hostile, ChartPanel)] == [*titles, *gaps]
    points = items(plain, ChartPanel)[0].chart.data.values
    assert [point["network"] for point in points] == [f"{n}.npz" for n in range(6, 12)]


def test_tables_hold_all_scores_and_mark_the_strongest(page, found):
    table = items(page.sections[1], Table)[0]
    assert [row[0].text for row in table.rows] == [score.label for score in SCORES.values()]
    marked = [row for row in table.rows if row[4].style == "best"]
    values = [one.srocc.value for one in found.families[1].accuracy if one.srocc.value is not None]
    assert len(marked) == 1
    assert abs(marked[0][4].value) == max(map(abs, values))
    layers = items(page.sections[1], Table)[-1]
    assert [row[0].text for row in layers.rows] == ["a.weight", "b.weight"]


def test_what_was_left_out_has_a_table_and_the_method_is_told(page, found):
    left_out, method = page.sections[-2:]
    ((name, reason),) = items(left_out, Table)[0].rows
    assert (name.text, reason.text) == (f"{HOSTILE}.npz", "there is no such file")
    words = " ".join(method.items[0].paragraphs)
    assert "checkpoint: file" in words
    assert "199 shuffles" in words
    assert "Seed 0" in words


def test_names_from_the_table_are_only_ever_text(page):
    html = render_page(page)
    assert HOSTILE not in html
    assert "&lt;script&gt;alert(1)" in html


def test_the_page_draws_in_a_browser(visit, page):
    opened = visit(render_page(page))
    assert opened.tab.locator(".chart canvas, .chart svg").count() >= 6
    assert opened.text("h1") == "Ranked"
