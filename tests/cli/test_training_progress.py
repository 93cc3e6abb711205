"""What is seen of a run while it goes on."""

import io
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from rankwise.cli.training_progress import TrainingProgress, format_epoch
from rankwise.lab import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.schedules import Budget
from tests.lab.runs import epoch, written

rich_console = pytest.importorskip("rich.console")


def console(*, terminal):
    return rich_console.Console(
        file=io.StringIO(), force_terminal=terminal, width=80, color_system=None
    )


def job(*, number=0, batch=0, budget=None, **options):
    config = resolve(Config(**options))
    budget = budget or Budget(250, None)
    return SimpleNamespace(
        config=config,
        epoch=number,
        batch=batch,
        budget=budget,
        progress=budget.compute_progress(number, 0.5, 1.0),
    )


def shown(terminal, run, **options):
    """What a run of four epochs shows of its first two."""
    where, options = console(terminal=terminal), {**options, "budget": Budget(4, None)}
    with TrainingProgress(where) as live:
        live.on_start(job(**options))
        for number in (1, 2):
            live.on_batch(job(number=number, batch=5, **options))
            live.on_epoch(job(number=number, **options), epoch(number))
            if terminal:
                live._progress.refresh()
        live.on_end(run)
    return where.file.getvalue()


@pytest.fixture
def run(tmp_path):
    return written(tmp_path, [epoch(1), epoch(2)]).read()


def test_in_a_pipe_there_is_a_line_an_epoch(run):
    lines = shown(False, run).splitlines()
    assert lines[0] == "resnet20 on digits by rmsgd, seed 0"
    assert lines[1] == "  epoch   1  loss 1.000  acc 50.0%  S 0.100  η 0.1…0.2"
    assert lines[2].startswith("  epoch   2  ")
    assert lines[3].startswith("  finished after 2 epochs: loss 1.000  acc 50.0%")
    # Whole, so that it can be copied from a log.
    assert lines[4] == f"  {run.folder}"
    assert len(lines) == 5


def test_on_a_terminal_a_bar_moves_and_goes_away(run):
    text = shown(True, run)
    assert "━" in text
    assert "2/4" in text
    assert "acc 50.0%" in text
    assert "epoch   1" not in text
    tail = text.rpartition("finished after 2 epochs")[2]
    assert "━" not in tail


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_names_are_shown_as_they_are(run, terminal):
    data = "folder:[red]x[/red] /:cat:"
    assert f"resnet20 on {data} by rmsgd" in shown(terminal, run, data=data)


def test_lines_fit_a_terminal():
    where = console(terminal=False)
    live = TrainingProgress(where)
    wide = replace(epoch(250, loss=1234.5), rates=(0.000123, 0.00456))
    scores = {"loss": 123.4, "accuracy": 0.9999, "top5": 1.0, "auc": 0.5}
    live.on_epoch(job(), replace(wide, test=scores))
    live.on_epoch(job(), replace(wide, test={"loss": 9.9, "perplexity": 12345.6}))
    lines = where.file.getvalue().splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80


def test_the_bar_fits_a_terminal():
    where = console(terminal=True)
    wide = replace(epoch(250, loss=12.345), rates=(0.000123, 0.00456))
    with TrainingProgress(where) as live:
        live.on_start(job())
        live.on_epoch(job(number=249), wide)
        live._progress.refresh()
    bars = [part for part in where.file.getvalue().replace("\r", "\n").split("\n") if "η" in part]
    assert bars
    for bar in bars:
        text = bar.replace("\x1b[2K", "").replace("\x1b[1A", "").rstrip()
        assert len(text) <= 80
        assert text.endswith("η 0.00012…0.0046")


def test_a_budget_of_time_has_no_number_of_epochs():
    where = console(terminal=True)
    with TrainingProgress(where) as live:
        live.on_start(job(budget=Budget(None, 8.0)))
        live.on_batch(job(number=3, budget=Budget(None, 8.0)))
        live._progress.refresh()
    assert "3/" not in where.file.getvalue()


def test_a_run_that_goes_on_says_from_where():
    where = console(terminal=False)
    TrainingProgress(where).on_start(job(number=7, batch=2))
    assert where.file.getvalue() == "resnet20 on digits by rmsgd, seed 0, from epoch 8 on\n"


def test_a_bar_is_taken_away_when_a_run_fails():
    where = console(terminal=True)
    live = TrainingProgress(where)

    def fail():
        with live:
            live.on_start(job())
            raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        fail()
    live.on_message("after")
    assert where.file.getvalue().rstrip().endswith("after")
    assert not live._progress.live.is_started


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (None, "no epoch yet"),
        (epoch(1, score="perplexity", value=123.46), "loss 1.000  ppl 123.5  S 0.100  η 0.1…0.2"),
        (epoch(1, score="frechet", value=17.0), "loss 1.000  FD 17.0  S 0.100  η 0.1…0.2"),
        (
            replace(epoch(1, value=None, loss=None, quality=None), rates=None),
            "loss –  acc –  S –",
        ),
        (replace(epoch(1), rates=[0.03, 0.03]), "loss 1.000  acc 50.0%  S 0.100  η 0.03"),
    ],
    ids=["none", "language", "gan", "lost", "one rate"],
)
def test_an_epochs_figures_are_a_line(record, text):
    assert format_epoch(record) == text


def test_nothing_in_a_name_commands_the_terminal():
    where = console(terminal=False)
    TrainingProgress(where).on_message("a\x1b[31m\x07\u202eb")
    assert where.file.getvalue() == "a\\x1b[31m\\x07\\u202eb\n"
