from pathlib import Path

import pytest

pytest.importorskip("altair")

from rankwise.charts.style import get_dataset
from rankwise.lab import Config, Run
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Link
from rankwise.reports.watch.comparison import (
    DATASET,
    MOST_RUNS,
    list_charted_fields,
    make_comparison_page,
    make_comparison_rows,
    make_comparison_table,
    summarize_comparison,
)
from tests.lab.runs import record_of

BACK = Link("All runs", "/")


def record(epoch, accuracy=0.5, **changes):
    test = {"loss": 1 / epoch, "accuracy": accuracy}
    known = {"epoch": epoch, "train": {"loss": 2 / epoch}, "test": test, "quality": 0.1 * epoch}
    more = {"rates": [0.01, 0.02], "seconds": {"trained": 60.0 * epoch}}
    return record_of(**{**known, **more, **changes})


def run(*records, status="unfinished", **options):
    config = Config(**{"network": "resnet8", "epochs": 10, **options})
    return Run(Path("runs/x"), config, status, tuple(records))


def pictures(page):
    return {i.title: i for s in page.sections for i in s.items if isinstance(i, ChartPanel)}


def test_rows_hold_every_epoch_of_every_run():
    runs = {"a": run(record(1), record(2)), "b": run(record(1), optimizer="sgd")}
    rows = make_comparison_rows(runs)
    assert [(row["run"], row["name"], row["epoch"]) for row in rows] == [
        ("A rmsgd", "a", 1),
        ("A rmsgd", "a", 2),
        ("B sgd", "b", 1),
    ]
    assert rows[1] | {"run": "", "name": ""} == {
        "run": "",
        "name": "",
        "epoch": 2,
        "seconds": 120.0,
        "train_loss": 1.0,
        "test_loss": 0.5,
        "accuracy": 0.5,
        "perplexity": None,
        "frechet": None,
        "stable_rank_by_width": None,
        "quality": 0.2,
        "lowest": 0.01,
        "highest": 0.02,
    }


def test_what_a_record_lacks_is_a_gap():
    (row,) = make_comparison_rows(
        {"a": run(record(1, test={}, train={}, quality=None, rates=None))}
    )
    known = ("run", "name", "epoch", "seconds")
    assert {row[key] for key in row if key not in known} == {None}
    assert list_charted_fields([row]) == []


def test_the_verdict_names_the_best_and_warns_of_single_runs():
    runs = {"a": run(record(1, 0.7)), "b": run(record(1, 0.8))}
    first, second = summarize_comparison(runs)
    assert first == "B rmsgd has the best test accuracy after its last epoch: 80.00 %."
    assert "chance" in second


def test_a_single_run_is_not_the_best_of_anything():
    assert summarize_comparison({"a": run(record(1, 0.7))}) == (
        "Test accuracy is 70.00 % after the last epoch.",
    )


def test_of_a_perplexity_less_is_better():
    runs = {n: run(record(1, test={"perplexity": p})) for n, p in (("a", 90.0), ("b", 120.0))}
    assert summarize_comparison(runs)[0].startswith("A rmsgd has the best test perplexity")


def test_runs_that_are_equal_are_said_to_be():
    three = {name: run(record(1, value)) for name, value in (("a", 0.8), ("b", 0.7), ("c", 0.8))}
    assert summarize_comparison(three)[0] == (
        "A rmsgd and C rmsgd are equal, with the best test accuracy of all: 80.00 %."
    )
    three["b"] = run(record(1, 0.8))
    assert summarize_comparison(three)[0].startswith("A rmsgd, B rmsgd and C rmsgd are equal")


@pytest.mark.parametrize("other", [{"network": "vgg16"}, {"data": "cifar10"}], ids=str)
def test_runs_of_different_networks_or_data_are_not_ranked(other):
    runs = {"a": run(record(1, 0.7)), "b": run(record(1, 0.8), **other)}
    (said,) = summarize_comparison(runs)
    assert said.startswith("These runs can't be ranked")
    assert "best" not in said


def test_small_distances_are_told_with_their_digits():
    runs = {n: run(record(1, test={"frechet": d})) for n, d in (("a", 0.0042), ("b", 0.5))}
    assert (
        "best test Fréchet distance after its last epoch: 0.004200."
        in summarize_comparison(runs)[0]
    )


def test_runs_of_different_kinds_are_not_ranked():
    runs = {"a": run(record(1)), "b": run(record(1, test={"perplexity": 90.0}))}
    assert "no test score in common" in summarize_comparison(runs)[0]
    assert summarize_comparison({"a": run(record(1, test={"accuracy": None}))}) == (
        "No run has a test score yet.",
    )


def test_the_table_tells_what_differs():
    runs = {
        "a": run(record(1, 0.9), record(2, 0.8), lr=0.1),
        "b": run(record(1), lr=0.2, seed=3, out="elsewhere"),
    }
    table = make_comparison_table(runs)
    rows = [
        dict(zip((column.title for column in table.columns), (c.text for c in r), strict=True))
        for r in table.rows
    ]
    assert [row["differs by"] for row in rows] == ["lr=0.1, seed=0", "lr=0.2, seed=3"]
    assert rows[0] | {"": "", "run": ""} == {
        "": "",
        "run": "",
        "epoch": "2 of 10",
        "test score": "80.00 %",
        "best epoch": "90.00 %",
        "rates": "0.01 – 0.02",
        "differs by": "lr=0.1, seed=0",
    }
    assert table.rows[0][1].link == "/run/a"


def list_differences(*runs):
    table = make_comparison_table(dict(zip("abc", runs, strict=False)))
    place = [column.title for column in table.columns].index("differs by")
    assert all(row[place].wraps for row in table.rows)
    return [row[place].text for row in table.rows]


def test_only_what_differs_among_runs_that_have_it_is_listed():
    sgd = run(optimizer="sgd", lr=0.2)
    slow, fast = (run(optimizer="rmsgd", beta=beta, lr=0.1) for beta in (0.9, 0.8))
    assert list_differences(slow, sgd) == ["lr=0.1", "lr=0.2"]
    assert list_differences(slow, fast, sgd) == ["lr=0.1, beta=0.9", "lr=0.1, beta=0.8", "lr=0.2"]
    assert list_differences(run(), run()) == ["–", "–"]


def test_there_is_a_chart_for_each_figure_that_a_run_has():
    page = make_comparison_page({"a": run(record(1)), "b": run()}, back=BACK, updates="")
    assert list(pictures(page)) == [
        "Test accuracy",
        "Test loss",
        "Training loss",
        "Learning rates",
        "The paper's Q",
        "Test accuracy against time",
    ]
    assert all(get_dataset(p.chart) == DATASET for p in pictures(page).values())


def test_runs_without_an_epoch_are_a_page_without_charts():
    page = make_comparison_page({"a": run()}, back=BACK, updates="")
    assert not pictures(page)


def test_as_many_runs_as_allowed_are_told_apart():
    runs = {f"run{i}": run(record(1), seed=i) for i in range(MOST_RUNS)}
    page = make_comparison_page(runs, back=BACK, updates="")
    layer = pictures(page)["Test loss"].chart.layer[0].to_dict()["encoding"]
    colours = layer["color"]["scale"]["range"]
    dashes = layer["strokeDash"]["scale"]["range"]
    looks = {(colour, tuple(dash)) for colour, dash in zip(colours, dashes, strict=True)}
    assert len(looks) == MOST_RUNS


def test_names_reach_the_charts_as_values_only():
    hostile = "'\"]</script><script>alert(1)</script>"
    page = make_comparison_page({hostile: run(record(1), optimizer=hostile)}, back=BACK, updates="")
    for picture in pictures(page).values():
        encodings = [layer.to_dict()["encoding"] for layer in picture.chart.layer]
        assert "alert" not in str([e[c].get("field") for e in encodings for c in ("x", "y")])
        assert "alert" not in str([layer.transform for layer in picture.chart.layer])
    assert "<script>alert" not in render_page(page)
