"""A study's page: the verdict, the paper's table, and each figure only where it can be drawn."""

import json
import math
import statistics
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from rankwise.charts.style import get_dataset
from rankwise.lab import Config, load_runs
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Hardware, Run, Session
from rankwise.lab.run_folder import RunFolder
from rankwise.reports.html import render_page
from rankwise.reports.page import ChartPanel, Table, Text
from rankwise.reports.study import make_study_page
from tests.lab.runs import NO_LAYERS, record_of

EPOCHS = 4


def record(number, value, score, *, train=None, quality=0.4, pace=1.0, probes=False):
    parts = {"data": 0.1 * pace, "step": 0.8 * pace, "probe": 0.1 * pace, "eval": 0.1, "save": 0.0}
    an_epoch = parts["data"] + parts["step"] + (parts["probe"] if probes else 0.0)
    return record_of(
        epoch=number,
        batches=5,
        train={"loss": 1.0} | ({} if train is None else {score: train}),
        test={"loss": 1.0, score: value},
        quality=quality,
        rates=[0.1, 0.2],
        seconds={**parts, "trained": number * an_epoch},
    )


def run(final, *, status="finished", score="accuracy", quality=0.4, pace=1.0, gap=0.1, **options):
    """A run that rises, or falls, to its score."""
    config = resolve(Config(epochs=EPOCHS, **options))
    steps = [
        final * (0.5 + number / 8 if score == "accuracy" else 3 - number / 2)
        for number in range(1, EPOCHS + 1)
    ]
    better = -gap if score != "accuracy" else gap
    probes = config.beta is not None
    epochs = tuple(
        record(n, value, score, train=value + better, quality=quality, pace=pace, probes=probes)
        for n, value in enumerate(steps, 1)
    )
    return Run(Path("runs") / config.name, config, status, epochs)


def trials(values, **options):
    return [run(value, seed=seed, **options) for seed, value in enumerate(values)]


def study():
    return [
        *trials([0.79, 0.80, 0.81], network="resnet20", optimizer="rmsgd", quality=0.6),
        *trials([0.70, 0.71, 0.72], network="resnet20", optimizer="sgd", quality=0.5),
        *trials([0.45, 0.65, 0.85], network="resnet20", optimizer="adam", quality=0.3),
        *trials([0.90, 0.91, 0.92], network="vgg16", optimizer="rmsgd"),
        *trials([0.895, 0.905, 0.915], network="vgg16", optimizer="sgd"),
    ]


@pytest.fixture(scope="module")
def page():
    return make_study_page(study(), title="t")


def items(page, kind):
    return [item for section in page.sections for item in section.items if isinstance(item, kind)]


def picture(page, title):
    (found,) = [one for one in items(page, ChartPanel) if one.title == title]
    return found


def rows_of(found):
    return found.chart.data.values


def titles(page):
    return [one.title for one in items(page, ChartPanel)]


def left_out(page):
    return " ".join(
        text
        for words in items(page, Text)
        if "not shown" in words.collapsed_under
        for text in words.paragraphs
    )


def test_the_verdict_names_the_best_of_each_task_with_n_spread_and_lead(page):
    resnet, vgg, *_ = page.summary
    assert resnet.startswith("resnet20 digits: rmsgd is best, test accuracy 80.00 ± 1.00 % (n = 3)")
    assert "9.00 points ahead of sgd (71.00 ± 1.00 %, n = 3)" in resnet
    assert vgg.startswith("vgg16 digits: rmsgd is best, test accuracy 91.00 ± 1.00 % (n = 3)")
    assert "one other is within one standard deviation" in vgg


def test_a_clear_lead_is_called_more_than_a_standard_deviation():
    runs = [r for r in study() if r.config.optimizer != "adam" and r.config.network == "resnet20"]
    assert "more than one standard deviation" in make_study_page(runs, title="t").summary[0]


def test_the_verdict_is_careful_with_single_trials():
    runs = [run(0.9, optimizer="rmsgd"), run(0.8, optimizer="sgd")]
    first, *_, last = make_study_page(runs, title="t").summary
    assert "may be chance" in first
    assert "too few for a test" in last


def test_diverged_and_unfinished_runs_are_said_and_not_counted():
    runs = [
        *study(),
        run(0.99, network="vgg16", optimizer="sgd", seed=8, status="unfinished"),
        run(0.1, network="vgg16", optimizer="sgd", seed=9, status="diverged"),
    ]
    page = make_study_page(runs, title="t")
    said = "15 of 17 runs finished with a score, 1 diverged, 1 unfinished and not counted"
    assert said in page.summary[-1]
    cell = items(page, Table)[0].rows[1][2]
    assert cell.text == "≈ 90.50 ± 1.00 % (3, 1 diverged, 1 unfinished)"
    assert [fact.value for fact in page.facts][:3] == ["15 of 17", "3", "2"]


def test_runs_that_finished_without_a_score_are_not_said_to_have_diverged():
    lstm = {"network": "lstm1", "data": "text:ptb.txt", "optimizer": "sgd", "score": "perplexity"}
    lost = run(80.0, seed=5, **lstm)
    epochs = (*lost.epochs[:-1], replace(lost.epochs[-1], test={"loss": 900.0, "perplexity": None}))
    page = make_study_page(
        [*trials([80.0, 81.0], **lstm), Run(lost.folder, lost.config, "finished", epochs)],
        title="t",
    )
    assert "2 of 3 runs finished with a score, 1 without a score" in page.summary[-1]
    assert page.facts[0].remark == "1 without a score"
    assert items(page, Table)[0].rows[0][1].text == "80.50 ± 0.71 (2, 1 without a score)"
    assert "diverged" not in " ".join(page.summary)


def test_small_distances_are_told_with_their_digits():
    gan = {"network": "wgan", "score": "frechet", "gap": 0.0}
    runs = [*trials([0.004, 0.005], optimizer="sgd", **gan), run(0.009, optimizer="adam", **gan)]
    page = make_study_page(runs, title="t")
    assert "0.004500 ± 0.000707 (n = 2), 0.0045 ahead of adam (0.009000, n = 1)" in page.summary[0]
    assert items(page, Table)[0].rows[0][1].text == "★ 0.004500 ± 0.000707 (2)"


def test_the_table_marks_the_best_and_the_close_by_tone_and_by_symbol(page):
    table = items(page, Table)[0]
    titles = [column.title for column in table.columns]
    assert titles == ["setting", "resnet20 digits", "vgg16 digits"]
    cells = {row[0].text: row[1:] for row in table.rows}
    assert [(c.text, c.style) for c in cells["rmsgd"]] == [
        ("★ 80.00 ± 1.00 % (3)", "best"),
        ("★ 91.00 ± 1.00 % (3)", "best"),
    ]
    assert [(c.text, c.style) for c in cells["sgd"]] == [
        ("71.00 ± 1.00 % (3)", ""),
        ("≈ 90.50 ± 1.00 % (3)", "close"),
    ]
    # Its own deviation is so large that nothing is certain.
    assert (cells["adam"][0].style, cells["adam"][1].text) == ("close", "")
    assert cells["rmsgd"][0].value == pytest.approx(0.8)


def test_the_words_below_the_table_explain_its_colours(page):
    explained = " ".join(text for words in items(page, Text) for text in words.paragraphs)
    for sign in ("★ and green", "≈ and orange", "one standard deviation"):
        assert sign in explained


def test_scores_of_two_kinds_have_tables_of_their_own_and_less_is_better_for_words():
    lstm = {"network": "lstm1", "data": "text:ptb.txt", "score": "perplexity", "gap": 20.0}
    runs = [
        *study(),
        *trials([90.0, 92.0], optimizer="sgd", **lstm),
        *trials([80.0, 81.0], optimizer="adam", **lstm),
    ]
    page = make_study_page(runs, title="t")
    captions = [table.caption for table in items(page, Table)[:2]]
    assert sorted(captions) == [
        "Test accuracy, higher is better",
        "Test perplexity, lower is better",
    ]
    assert any(
        text.startswith("lstm1 text:ptb.txt: adam is best, test perplexity 80.50 ± 0.71 (n = 2)")
        for text in page.summary
    )
    assert {section.title for section in page.sections} >= {"lstm1 on text:ptb.txt"}


def test_bands_span_the_trials_at_every_epoch():
    shown = picture_of(study(), "resnet20", "Test accuracy against epochs")
    last = [row for row in rows_of(shown) if row["epoch"] == EPOCHS]
    found = {row["setting"]: (row["low"], row["mean"], row["high"], row["n"]) for row in last}
    assert found["rmsgd"] == pytest.approx((0.79, 0.80, 0.81, 3))
    assert found["adam"] == pytest.approx((0.45, 0.65, 0.85, 3))


def picture_of(runs, network, title):
    page = make_study_page([r for r in runs if r.config.network == network], title="t")
    return picture(page, title)


def test_trials_of_unlike_pace_are_brought_to_one_clock():
    runs = [run(0.8, seed=0, optimizer="sgd"), run(0.8, seed=1, pace=2.0, optimizer="sgd")]
    rows = rows_of(picture_of(runs, "resnet20", "Test accuracy against time"))
    # One has epochs of 0.9 s and the other of 1.8 s: both are under way from 1.8 s to 3.6 s.
    assert [rows[0]["seconds"], rows[-1]["seconds"]] == pytest.approx([1.8, 3.6])
    assert (rows[-1]["low"], rows[-1]["high"]) == pytest.approx((0.8 * 0.75, 0.8))
    assert {row["n"] for row in rows} == {2}


def test_settings_whose_trials_have_no_time_in_common_are_named():
    runs = [
        *trials([0.7, 0.8], optimizer="sgd"),
        run(0.7, seed=0, optimizer="adam", pace=1.0),
        run(0.8, seed=1, optimizer="adam", pace=9.0),
    ]
    page = make_study_page(runs, title="t")
    timed = rows_of(picture(page, "Test accuracy against time"))
    assert {row["setting"] for row in timed} == {"sgd"}
    why = "Test accuracy against time: without adam, whose trials have no time in common."
    assert why in left_out(page)
    alone = make_study_page(runs[2:], title="t")
    assert "Test accuracy against time" not in titles(alone)
    assert why in left_out(alone)
    assert "against epochs: without" not in left_out(alone)


def test_settings_whose_trials_have_no_epoch_in_common_are_named():
    first, second = trials([0.7, 0.8], optimizer="adam")
    first = Run(first.folder, first.config, "finished", first.epochs[:2])
    second = Run(second.folder, second.config, "finished", second.epochs[2:])
    page = make_study_page([first, second, run(0.9, optimizer="sgd")], title="t")
    assert "epochs: without adam, whose trials have no epoch in common." in left_out(page)


def test_no_words_name_a_colour_that_is_another_in_the_dark(page):
    assert "black" not in titles_reading(page)


def test_one_damaged_record_leaves_the_page_of_a_study(tmp_path):
    for seed in range(2):
        folder = RunFolder(resolve(Config(out=str(tmp_path), seed=seed, epochs=2)))
        folder.path.mkdir()
        folder.start(Session(started="now", hardware=Hardware(cpu="A")))
        for number in (1, 2):
            folder.add(record(number, 0.5, "accuracy"), NO_LAYERS)
        folder.end("finished")
    damaged = {**to_builtins(record(3, 0.5, "accuracy")), "test": None}
    with (folder.path / "epochs.jsonl").open("a") as file:
        file.write(json.dumps(damaged) + "\n")
    with (folder.path / "sessions.jsonl").open("a") as file:
        file.write(json.dumps({"started": "now", "hardware": {"accelerators": 3}}) + "\n")
    with pytest.warns(UserWarning, match="a broken record is left out"):
        page = make_study_page(load_runs(tmp_path), title="t")
    assert "only rmsgd has finished, test accuracy 50.00 ± 0.00 % (n = 2)" in page.summary[0]


def test_q_is_correlated_with_score_and_gap_in_words_and_clustered_by_setting():
    runs = [
        run(
            0.5 + 0.05 * k + 0.001 * seed,
            seed=seed,
            optimizer="sgd",
            lr=0.01 * (k + 1),
            quality=0.3 + 0.02 * k + 0.001 * seed,
            gap=0.2 - 0.01 * k,
        )
        for k in range(6)
        for seed in range(2)
    ]
    page = make_study_page(runs, title="t")
    reading = picture(page, "The paper's Q and test accuracy").caption
    assert "over 12 runs of 6 settings" in reading
    assert "SROCC 1.00 (95 % interval 1.00 to 1.00)" in reading
    assert "Here a higher Q goes with a higher test accuracy." in reading
    assert "don't choose a model by Q" in reading
    gap = picture(page, "The paper's Q and generalisation gap").caption
    assert "goes with a lower generalisation gap" in gap
    assert not any("SROCC" in text for text in page.summary)  # Q is no headline


def test_few_settings_give_no_interval():
    page = make_study_page([r for r in study() if r.config.network == "resnet20"], title="t")
    reading = picture(page, "The paper's Q and test accuracy").caption
    assert "No interval: 3 independent groups are too few" in reading
    assert "95 %" not in reading


def test_a_sweep_is_drawn_where_an_option_varies_alone():
    runs = [
        run(0.7 + beta / 10 + seed / 100, seed=seed, optimizer="rmsgd", beta=beta)
        for beta in (0.8, 0.9, 0.98)
        for seed in range(2)
    ]
    page = make_study_page(runs, title="t")
    rows = rows_of(picture(page, "Test accuracy against β"))
    assert [row["value"] for row in rows] == [0.8, 0.9, 0.98]
    spread = statistics.stdev([0.78, 0.79])
    assert (rows[0]["mean"], rows[0]["high"]) == pytest.approx((0.785, 0.785 + spread))
    assert "β" not in left_out(page)
    assert "batch size" in left_out(page)


def test_a_batch_size_sweep_has_a_line_for_each_optimizer():
    runs = [
        run(0.7 + size / 1e4, optimizer=optimizer, batch_size=size)
        for optimizer in ("rmsgd", "sgd")
        for size in (32, 128, 512)
    ]
    rows = rows_of(picture(make_study_page(runs, title="t"), "Test accuracy against batch size"))
    assert {(row["series"], row["value"]) for row in rows} == {
        (optimizer, size) for optimizer in ("rmsgd", "sgd") for size in (32, 128, 512)
    }


def test_an_option_that_varies_with_another_is_no_sweep():
    runs = [run(0.7, lr=0.1, momentum=0.9), run(0.8, lr=0.2, momentum=0.8)]
    page = make_study_page(runs, title="t")
    assert not [title for title in titles(page) if "learning rate" in title]
    assert "learning rate" in left_out(page)


def test_a_grid_of_two_options_becomes_a_map():
    runs = [
        run(0.9 - abs(math.log10(lr)) / 10 - decay, optimizer="sgd", lr=lr, weight_decay=decay)
        for lr in (0.01, 0.1, 1.0)
        for decay in (0.0, 0.001)
    ]
    page = make_study_page(runs, title="t")
    rows = rows_of(picture(page, "sgd: learning rate and weight decay"))
    assert len(rows) == 6
    (best,) = [row for row in rows if row["share"] == 1.0]
    assert (best["across"], best["up"]) == (1.0, 0.0)
    assert {
        row["series"] for row in rows_of(picture(page, "Test accuracy against learning rate"))
    } == {"sgd weight_decay=0", "sgd weight_decay=0.001"}


def test_epoch_times_tell_a_probe_that_training_needs_from_one_for_the_record():
    runs = [*trials([0.7, 0.8], optimizer="rmsgd"), *trials([0.7, 0.8], optimizer="sgd", pace=2.0)]
    rows = rows_of(picture(make_study_page(runs, title="t"), "Time per epoch"))
    found = {(row["setting"], row["part"]): row["seconds"] for row in rows}
    assert found["rmsgd", "probe"] == pytest.approx(0.1)
    assert found["sgd", "probe for the record only"] == pytest.approx(0.2)
    assert ("sgd", "probe") not in found
    assert found["sgd", "total"] == pytest.approx(2.0)


def test_epoch_times_are_of_one_rule_over_an_optimizer():
    runs = [
        *trials([0.7, 0.8], optimizer="sgd"),
        *trials([0.7, 0.8], optimizer="sgd", rule="temp-balance", pace=2.0),
        *trials([0.7, 0.8], optimizer="rmsgd", rule="paper"),
        *trials([0.7, 0.8], optimizer="rmsgd", rule="annealed"),
    ]
    rows = rows_of(picture(make_study_page(runs, title="t"), "Time per epoch"))
    assert {row["setting"] for row in rows} == {"sgd", "sgd rule=temp-balance", "rmsgd"}


def test_unlike_numbers_of_epochs_are_warned_of():
    short = run(0.8, optimizer="sgd")
    short = Run(short.folder, short.config, "finished", short.epochs[:2])
    page = make_study_page([short, run(0.9, optimizer="adam")], title="t", notes=["A note."])
    (warned,) = [words for words in items(page, Text) if words.style == "warning"]
    assert warned.paragraphs[0] == "A note."
    assert "runs had 2 to 4 epochs" in warned.paragraphs[1]


def test_all_runs_are_listed():
    table = items(
        make_study_page([*study(), run(0.1, status="unfinished", seed=7)], title="t"), Table
    )[-1]
    assert table.caption == "All 16 runs"
    texts = [[cell.text for cell in row] for row in table.rows]
    assert [
        "sgd",
        "vgg16 digits",
        "1",
        "finished",
        "4",
        "90.50 %",
        "90.50 %",
        "0.9",
        "–",
        "0.400",
    ] in texts
    assert sum("unfinished" in row for row in texts) == 1


def test_hardware_and_commits_come_from_the_sessions(tmp_path):
    for seed, cpu in enumerate(("A", "A", "B")):
        folder = RunFolder(resolve(Config(out=str(tmp_path), seed=seed, epochs=1)))
        folder.path.mkdir()
        hardware = Hardware(cpu=cpu, cores=2, threads=1)
        folder.start(Session(started="now", commit="0123456789abcdef", hardware=hardware))
        folder.add(record(1, 0.5, "accuracy"), NO_LAYERS)
        folder.end("finished")
    runs = [
        RunFolder(resolve(Config(out=str(tmp_path), seed=s, epochs=1))).read() for s in range(3)
    ]
    where = items(make_study_page(runs, title="t"), Text)[-1]
    said = " ".join(where.paragraphs)
    assert "A, 2 cores, 1 threads used (2 starts); B, 2 cores, 1 threads used (1 start)" in said
    assert "Commit: 0123456789." in said
    assert "Times on different hardware" in said


def test_no_runs_no_finished_run_and_one_run_are_pages_too():
    assert make_study_page([], title="t").summary == ("There are no runs here.",)
    going = [run(0.5, status="unfinished"), run(0.1, seed=1, status="diverged")]
    going.append(Run(Path("x"), resolve(Config(seed=2)), "unfinished", ()))
    page = make_study_page(going, title="t")
    assert page.summary[0].startswith("No run has finished with a score yet: 0 of 3 runs")
    assert not items(page, ChartPanel)
    assert len(items(page, Table)[-1].rows) == 3
    one = make_study_page([run(0.5)], title="t")
    assert "only rmsgd has finished" in one.summary[0]
    assert "Q against the score" in left_out(one)


def test_a_page_names_its_data_sets_apart_and_shares_rows_between_like_names(page):
    found = {}
    for one in items(page, ChartPanel):
        rows = one.chart.data.values
        assert found.setdefault(get_dataset(one.chart), rows) == rows
    assert len(found) == 8


def test_two_hundred_runs_stay_readable():
    runs = [
        run(
            0.5 + rate / 10 + decay + seed / 1000,
            seed=seed,
            optimizer=optimizer,
            lr=rate,
            weight_decay=decay,
        )
        for optimizer in ("rmsgd", "sgd", "adam", "adamw")
        for rate in (0.01, 0.03, 0.1, 0.3, 1.0)
        for decay in (0.0, 1e-4, 5e-4, 1e-3, 5e-3)
        for seed in range(2)
    ]
    page = make_study_page(runs, title="t")
    assert len(page.summary) <= 4
    assert "The best 14 of 100 settings" in titles_reading(page)
    assert len([title for title in titles(page) if " and " in title and ":" in title]) == 4
    assert items(page, Table)[0].has_filter


def titles_reading(page):
    return " ".join(one.caption for one in items(page, ChartPanel))


def test_a_browser_shows_the_page_without_complaint_and_names_as_text(visit):
    hostile = "folder:<script>document.title='taken'</script>"
    runs = [*study(), *trials([0.5, 0.6], optimizer="sgd", data=hostile)]
    opened = visit(render_page(make_study_page(runs, title="A study")))
    assert opened.tab.title() != "taken"
    assert "★ 80.00 ± 1.00 % (3)" in opened.texts("td.best")
    assert hostile in opened.text("main, body")


def test_long_lines_are_thinned_to_their_last_epoch():
    config = resolve(Config(epochs=250, optimizer="sgd"))
    epochs = tuple(record(n, n / 250, "accuracy") for n in range(1, 251))
    page = make_study_page([Run(Path("x"), config, "finished", epochs)], title="t")
    rows = rows_of(picture(page, "Test accuracy against epochs"))
    assert len(rows) <= 125
    assert rows[-1]["epoch"] == 250
    timed = rows_of(picture(page, "Test accuracy against time"))
    assert len(timed) <= 125
    assert timed[-1]["seconds"] == pytest.approx(250 * 0.9)
