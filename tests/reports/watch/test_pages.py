import time

import pytest
from msgspec.structs import replace

pytest.importorskip("altair")

from rankwise.lab import Config
from rankwise.reports.page import Table
from rankwise.reports.watch.folder import RunSummary
from rankwise.reports.watch.pages import (
    WatchPages,
    list_state_facts,
    make_list_table,
    summarize_list,
)
from tests.lab.runs import epoch

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)


def summary(name="a", state="running", last=None, ago=0.0, **options):
    config = Config(network="resnet8", **{"epochs": 10, **options})
    return RunSummary(name, state, config, last, NOW - ago, 0)


def broken(name="b"):
    return RunSummary(name, "unreadable", None, None, NOW, 0, "Its records can't be read: no JSON.")


def cells(found):
    table = make_list_table([found])
    return dict(zip((column.title for column in table.columns), table.rows[0], strict=True))


def test_a_row_tells_where_a_run_stands():
    last = epoch(3, value=0.98765)
    row = cells(summary(last=last, ago=130))
    assert {head: cell.text for head, cell in row.items()} == {
        "run": "a",
        "state": "running",
        "epoch": "3 of 10",
        "test score": "98.77 %",
        "loss": "1",
        "changed": "2 minutes ago",
        "network": "resnet8",
        "data": "digits",
        "optimizer": "rmsgd",
    }
    assert (row["epoch"].value, row["test score"].value, row["loss"].value) == (3, 0.98765, 1.0)
    assert row["changed"].value == NOW - 130


def test_scores_other_than_accuracy_are_named():
    last = epoch(1, score="perplexity", value=161.234)
    assert cells(summary(last=last))["test score"].text == "perplexity 161.2"


def test_a_run_without_epochs_has_dashes():
    row = cells(summary())
    assert (row["epoch"].text, row["test score"].text, row["loss"].text) == ("0 of 10", "–", "–")


def test_a_run_with_a_budget_tells_it():
    assert cells(summary(epochs=None, budget="10m"))["epoch"].text == "0 in 10m"


def test_figures_that_were_no_numbers_are_dashes():
    last = epoch(1, value=None, loss=None)
    row = cells(summary(last=last))
    assert (row["test score"].text, row["loss"].text) == ("–", "–")


def test_a_loss_is_that_of_the_test_where_there_is_one():
    last = replace(epoch(1, loss=2.0), test={"accuracy": 0.5, "loss": 3.0})
    assert cells(summary(last=last))["loss"].text == "3"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (59, "just now"),
        (60, "1 minute ago"),
        (7200, "2 hours ago"),
        (90_000, "1 day ago"),
    ],
)
def test_ages_are_told_in_words(seconds, text):
    assert cells(summary(ago=seconds))["changed"].text == text


def test_a_run_that_cannot_be_read_tells_why():
    row = make_list_table([broken()]).rows[0]
    assert "Its records can't be read: no JSON." in [cell.text for cell in row]
    assert len(row) == len(make_list_table([summary()]).rows[0])


def test_the_verdict_counts_what_goes_on_and_what_went_wrong():
    runs = [summary(), summary(state="finished"), summary(state="diverged"), broken()]
    assert summarize_list(runs) == (
        "4 runs, 1 in progress.",
        "Check those that failed: 1 diverged, 1 unreadable.",
    )
    assert summarize_list([summary(state="finished")]) == ("1 run, none in progress.",)
    assert [(fact.label, fact.value) for fact in list_state_facts(runs)] == [
        ("running", "1"),
        ("finished", "1"),
        ("diverged", "1"),
        ("unreadable", "1"),
    ]


def test_an_empty_folder_says_how_to_fill_it(tmp_path):
    page = WatchPages(tmp_path).make_list()
    (item,) = page.sections[0].items
    assert not isinstance(item, Table)
    assert "appears here" in item.paragraphs[0]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("a b", "/run/a%20b"),
        ("../x", "/run/..%2Fx"),
        ('<img src=x onerror="y">', "/run/%3Cimg%20src%3Dx%20onerror%3D%22y%22%3E"),
        ("a?b#c%2f", "/run/a%3Fb%23c%252f"),
        ("ä\n", "/run/%C3%A4%0A"),
    ],
)
def test_nothing_in_a_name_leads_elsewhere(name, address):
    assert make_list_table([summary(name)]).rows[0][0].link == address
