"""A run's page says in words, tiles, figures and tables what its records hold."""

import json

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

pytest.importorskip("altair")
pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

from rankwise.charts.style import get_dataset
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Link, Table
from rankwise.reports.run import make_run_page, make_run_update
from tests.lab.runs import GROWN, LAYERS, epoch, grown, written


def words(page):
    return " ".join(page.summary)


def pictures(page):
    return {i.title: i for s in page.sections for i in s.items if isinstance(i, ChartPanel)}


def table(page):
    return next(i for s in page.sections for i in s.items if isinstance(i, Table))


def test_a_run_of_no_epoch_yet_has_a_page(tmp_path):
    page = make_run_page(written(tmp_path, [], status=None).read())
    assert "No epoch has finished yet." in words(page)
    assert pictures(page) == {}
    assert "<h1>" in render_page(page)


def test_a_run_of_one_epoch_claims_no_change(tmp_path):
    page = make_run_page(grown(tmp_path, 1, status=None).read())
    assert "epoch 1 of 250" in words(page)
    assert "rose" not in words(page)
    assert "best" not in words(page)
    assert "<h1>" in render_page(page)


def test_a_run_that_diverged_says_when(tmp_path):
    records = [epoch(1), replace(epoch(2, value=None, loss=None), quality=None)]
    page = make_run_page(written(tmp_path, records, status="diverged").read())
    assert "Warning: it diverged in epoch 2" in words(page)
    assert "Test accuracy is 50.00 % after epoch 1" in words(page)
    assert "<h1>" in render_page(page)


def test_a_run_without_the_records_of_its_layers_has_a_page(tmp_path):
    folder = grown(tmp_path)
    (folder.path / "layers.jsonl").unlink()
    page = make_run_page(folder.read())
    stable_rank = "Stable rank S, weighted by width"
    assert set(pictures(page)) == {"Loss", "Accuracy", stable_rank, "Where the time went", "Q"}
    assert page.layers == ()


def test_the_table_has_every_layer_at_the_last_epoch_with_its_highest_rate(tmp_path):
    found = table(make_run_page(grown(tmp_path).read()))
    conv, fc = found.rows
    texts = [cell.text for cell in conv]
    assert texts == ["1", "conv", "0.500", "6", "0.01", "0.1", "0.500", "0.400"]
    assert [cell.text for cell in fc][:4] == ["2", "fc", "–", "–"]
    assert (conv[1].layer, conv[2].value, conv[2].share) == ("conv", 0.5, 0.5)
    rows = pictures(make_run_page(grown(tmp_path / "again").read()))["Stable rank s"].chart.data
    assert {(row["depth"], row["layer"]) for row in rows.values} == {(1, "conv"), (2, "fc")}


def test_the_papers_figures_come_last_and_say_what_they_are_not_for(tmp_path):
    page = make_run_page(grown(tmp_path).read())
    titles = [section.title for section in page.sections]
    paper = page.sections[titles.index("The paper's figures")]
    assert titles[-2:] == ["The paper's figures", "About this run"]
    assert "neither of them ranks networks" in paper.items[0].paragraphs[0]
    drawn = [item.title for item in paper.items[1:]]
    assert drawn == ["Q", "Condition κ", "Quality q", "Paths of s and κ"]
    assert not any("Q" in fact.label.split() for fact in page.facts)
    assert " Q " not in words(page)


def test_figures_of_the_layers_share_their_rows(tmp_path):
    page = make_run_page(grown(tmp_path).read())
    shown = {
        title: get_dataset(picture.chart)
        for title, picture in pictures(page).items()
        if get_dataset(picture.chart) == "layers"
    }
    assert len(shown) == 6  # four heat maps, the rates, the paths
    assert page.layers == ("conv", "fc")
    assert "<h1>" in render_page(page)  # which refuses different rows of one name


def test_names_from_files_are_text_on_the_page(tmp_path):
    name = "<script>alert(1)</script>"
    layers = replace(LAYERS, name=[name, "fc"])
    page = make_run_page(written(tmp_path, [epoch(1)], layers=layers).read())
    assert page.layers[0] == name
    assert name not in render_page(page)


def test_options_and_starts_are_on_the_page(tmp_path):
    page = make_run_page(grown(tmp_path, seed=7).read(), back=Link("All", "/"), updates="/news")
    folded = [text for item in page.sections[-1].items for text in item.paragraphs]
    assert "seed: 7" in folded
    assert "started: now" in folded
    assert (page.back, page.updates) == (Link("All", "/"), "/news")


def test_an_update_holds_the_rows_of_new_epochs_only(tmp_path):
    news = make_run_update(grown(tmp_path, status=None).read(), 2)
    assert {name: {row["epoch"] for row in rows} for name, rows in news["datasets"].items()} == {
        "layers": {3},
        "epochs": {3},
        "figures": {3},
        "time": {3},
    }
    assert ["Total rank", "6", "3 after epoch 1"] in map(list, news["facts"])
    assert "Test accuracy is 80.00 %" in " ".join(news["summary"])
    assert ">0.500<" in news["tables"]["layers"]
    json.dumps(news, allow_nan=False)


def test_old_rows_and_an_update_are_the_rows_of_the_new_page(tmp_path):
    folder = grown(tmp_path, 2, status=None)
    old = {
        get_dataset(p.chart): p.chart.data.values
        for p in pictures(make_run_page(folder.read())).values()
    }
    folder.add(epoch(3), GROWN)
    news = make_run_update(folder.read(), 2)["datasets"]
    for picture in pictures(make_run_page(folder.read())).values():
        name = get_dataset(picture.chart)
        assert picture.chart.data.values == [*old[name], *news[name]]


def test_layers_of_an_epoch_that_has_no_record_yet_are_not_shown(tmp_path):
    folder = grown(tmp_path, 2, status=None)
    with (folder.path / "layers.jsonl").open("a") as file:
        file.write(json.dumps({"epoch": 3, "layers": to_builtins(LAYERS)}) + "\n")
    assert make_run_update(folder.read(), 2)["datasets"]["layers"] == []


@pytest.mark.parametrize(("after", "reload"), [(0, True), (4, True), (2, False), (3, False)])
def test_a_page_without_figures_or_of_dropped_epochs_is_drawn_anew(tmp_path, after, reload):
    assert (
        make_run_update(grown(tmp_path, status=None).read(), after).get("reload", False) is reload
    )


def test_a_page_of_no_epoch_waits_for_the_first(tmp_path):
    news = make_run_update(written(tmp_path, [], status=None).read(), 0)
    assert "reload" not in news


def news_of_third(tmp_path, *, record=None, layers=LAYERS):
    """What is new for a page of two epochs when the third is recorded."""
    folder = written(tmp_path, [epoch(1), epoch(2)], status=None)
    folder.add(record or epoch(3), layers)
    return make_run_update(folder.read(), 2)


RESHAPED = {
    "rates that need a log scale": {"layers": replace(LAYERS, rate=[0.1, 0.001])},
    "a loss that needs a log scale": {"record": epoch(3, loss=0.001)},
    "a score of its own": {"record": replace(epoch(3), train={"loss": 1.0, "generator_loss": 2.0})},
    "other layers": {"layers": replace(LAYERS, name=["conv", "head"])},
}


@pytest.mark.parametrize("change", RESHAPED.values(), ids=RESHAPED)
def test_epochs_that_change_how_figures_are_drawn_make_the_page_load_anew(tmp_path, change):
    assert news_of_third(tmp_path, **change) == {"reload": True}


def test_a_metric_that_had_no_value_before_makes_the_page_load_anew(tmp_path):
    empty = replace(LAYERS, condition=[None, None])
    folder = written(tmp_path, [epoch(1)], status=None, layers=empty)
    folder.add(epoch(2), LAYERS)
    assert make_run_update(folder.read(), 1) == {"reload": True}


def test_epochs_like_those_before_are_added_to_the_page(tmp_path):
    assert [row["epoch"] for row in news_of_third(tmp_path)["datasets"]["layers"]] == [3, 3]


@pytest.mark.parametrize(("most", "reload"), [(5, True), (6, False), (3, False)])
def test_a_page_that_would_show_fewer_epochs_is_drawn_anew(tmp_path, monkeypatch, most, reload):
    monkeypatch.setattr("rankwise.reports.run.MOST", most)
    assert news_of_third(tmp_path).get("reload", False) is reload


def test_epochs_that_a_new_page_would_not_draw_are_not_sent(tmp_path, monkeypatch):
    monkeypatch.setattr("rankwise.reports.run.MOST", 8)
    folder = written(tmp_path, [epoch(number) for number in range(1, 9)], status=None)
    rows = make_run_update(folder.read(), 5)["datasets"]["layers"]
    assert {row["epoch"] for row in rows} == {7, 8}  # every other one, and the last


def test_damaged_records_leave_the_page_of_a_run(tmp_path):
    folder = grown(tmp_path)
    for name, line in {
        "epochs.jsonl": {**to_builtins(epoch(4)), "test": None},
        "layers.jsonl": {"epoch": 3, "layers": {"name": 5}},
        "sessions.jsonl": {"started": "now", "hardware": 3},
    }.items():
        with (folder.path / name).open("a") as file:
            file.write(json.dumps(line) + "\n")
    with pytest.warns(UserWarning, match="a broken record is left out"):
        page = make_run_page(folder.read())
    assert "It finished after 3 epochs." in words(page)
    assert "<h1>" in render_page(page)


def test_the_figures_of_a_gan_are_those_of_its_losses_and_its_distance(tmp_path):
    record = replace(
        epoch(1, score="frechet", value=9.0), train={"loss": 1.0, "generator_loss": 2.0}
    )
    page = make_run_page(written(tmp_path, [record]).read())
    assert {"Loss", "Generator's loss", "Fréchet distance"} < pictures(page).keys()


def test_in_a_browser_a_run_is_drawn_and_the_chosen_layer_is_marked(tmp_path, visit):
    opened = visit(render_page(make_run_page(grown(tmp_path).read())))
    assert "80.00 %" in opened.text(".facts")
    assert opened.tab.locator("figure canvas").count() == 12
    opened.tab.locator("[data-layers]").first.select_option("conv")
    assert opened.tab.locator("tr.selected").get_attribute("data-layer") == "conv"


def test_of_very_many_rows_some_epochs_are_drawn_the_last_among_them(tmp_path, monkeypatch):
    monkeypatch.setattr("rankwise.reports.run.MOST", 10)
    page = make_run_page(written(tmp_path, [epoch(number) for number in range(1, 12)]).read())
    rows = pictures(page)["Quality q"].chart.data.values
    assert sorted({row["epoch"] for row in rows}) == [1, 4, 7, 10, 11]
