"""`rankwise study table` and `export`."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from rankwise.cli.study import study
from tests.study.small_study import TOML, filled, marked, study_in, written


@pytest.fixture
def run(monkeypatch, tmp_path):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*words, **environment):
        return CliRunner().invoke(study, [str(word) for word in words], env=environment)

    return invoke


@pytest.fixture(scope="module")
def filled_study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    filled(study_in(folder), marked)
    return folder


@pytest.fixture
def small(filled_study, tmp_path):
    shutil.copytree(filled_study, tmp_path, dirs_exist_ok=True)
    return tmp_path / "small.toml", "--out", tmp_path / "runs"


def test_a_table_is_printed_with_its_tests(run, small):
    done = run("table", *small)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"RMSGD +★ 71.23 ± 0.25 +★ 32.07 ± 0.96", done.stdout)
    assert "no significant difference" in " ".join(done.stdout.split())
    assert done.stderr == ""


def test_best_is_green_and_close_is_orange_on_a_terminal(run, small):
    text = run("table", *small, FORCE_COLOR="1").stdout
    assert re.search(r"\x1b\[1;32m *★ 71.23", text)
    assert re.search(r"\x1b\[33m *≈ 32.00", text)


def test_many_tasks_are_split_to_fit_and_lose_nothing(run, tmp_path):
    head = 'trials = 2\n[options]\nepochs = 2\n[[method]]\noptimizer = "sgd"\n'
    tasks = "".join(f'[[task]]\nlabel = "Task no. {n}"\nbatch_size = {n}\n' for n in range(8, 17))
    filled(study_in(tmp_path, head + tasks))
    words = ("table", tmp_path / "small.toml", "--out", tmp_path / "runs")
    for width in (60, 80, 120):
        done = run(*words, COLUMNS=str(width), FORCE_COLOR="1")
        lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()
        assert max(map(len, lines)) <= width
        assert sum(line.count("60.50 ± 0.71") for line in lines) == 9


def test_markup_in_a_name_is_printed_as_it_is(run, tmp_path):
    filled(study_in(tmp_path, TOML.replace("SGD, cosine", "[red]x[/]\\u001b[31m")))
    done = run("table", tmp_path / "small.toml", "--out", tmp_path / "runs")
    assert "[red]x[/]\\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("form", "start"),
    [("markdown", "## Two methods"), ("latex", "%"), ("csv", "setting,task"), ("json", "{")],
)
def test_other_formats_go_to_stdout_alone(run, small, form, start):
    done = run("table", *small, "--format", form)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(start)


def test_what_is_missing_is_said_on_stderr(run, tmp_path):
    study = study_in(tmp_path)
    written(study.points[-1].config, 0.5)
    done = run("table", tmp_path / "small.toml", "--out", tmp_path / "runs", "--format", "csv")
    assert done.stderr.startswith("rankwise: 15 of 16 runs not finished yet")
    assert len(done.stdout.splitlines()) == 2


def test_a_folder_of_runs_will_do(run, small):
    done = run("table", small[2])
    assert done.exit_code == 0, done.stderr
    assert "resnet8 cifar100" in " ".join(done.stdout.split())
    assert "Skipped 4 runs scored on validation images" in " ".join(done.stdout.split())


def test_a_broken_run_is_left_out_and_named(run, small):
    folder = small[2] / "broken"
    folder.mkdir()
    (folder / "config.json").write_text("{")
    done = run("table", *small)
    assert done.exit_code == 0
    assert "Skipped" in done.stderr
    assert "★ 71.23" in done.stdout


@pytest.mark.parametrize("name", ["nothing", "nothing.toml", "text.txt"])
def test_what_is_no_study_is_a_sentence(run, tmp_path, name):
    (tmp_path / "text.txt").write_text("x")
    done = run("table", tmp_path / name)
    assert done.exit_code == 1
    assert done.stderr.startswith("rankwise: ")
    assert "expected" in done.stderr.lower()


def test_an_export_holds_tables_a_page_and_records_that_give_the_same_table(run, small, tmp_path):
    to = tmp_path / "results"
    done = run("export", *small, "--to", to)
    assert done.exit_code == 0, done.stderr
    names = {"table.md", "table.tex", "table.csv", "table.json", "report.html", "records.jsonl"}
    assert {path.name for path in to.iterdir()} == names
    page = (to / "report.html").read_text(encoding="utf-8")
    assert all(
        words in page for words in ("Two methods", "SGD, cosine", "paired t-test over 3 seeds")
    )
    assert json.loads((to / "table.json").read_text())["runs"]["missing"] == 0
    words = ("table", small[0], "--out", to / "records.jsonl", "--format", "markdown")
    assert run(*words).stdout == (to / "table.md").read_text(encoding="utf-8")


def test_without_runs_nothing_is_exported(run, tmp_path):
    study_in(tmp_path)
    (tmp_path / "runs").mkdir()
    words = ("--out", tmp_path / "runs", "--to", tmp_path / "results")
    done = run("export", tmp_path / "small.toml", *words)
    assert done.exit_code == 1
    assert "nothing was written" in done.stderr
    assert not (tmp_path / "results").exists()


def test_an_export_never_replaces_the_records_that_it_reads(run, small, tmp_path):
    to = tmp_path / "results"
    assert run("export", *small, "--to", to).exit_code == 0
    before = (to / "records.jsonl").read_bytes()
    for words in ((small[0], "--out", to / "records.jsonl"), (to / "records.jsonl",)):
        done = run("export", *words, "--to", to)
        assert done.exit_code == 1
        assert "is an input" in done.stderr
    assert (to / "records.jsonl").read_bytes() == before


def test_a_copy_of_a_run_is_no_trial(run, small, tmp_path):
    runs = tmp_path / "runs"
    before = run("table", runs, "--format", "csv").stdout
    shutil.copytree(next(runs.iterdir()), runs / "zz-backup")
    done = run("table", runs, "--format", "csv")
    assert done.stdout == before
    assert "zz-backup is the same run as" in done.stderr


def test_runs_are_looked_for_where_the_study_has_them(run, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (tmp_path / "small.toml").read_text()
    moved = text.replace("[options]", '[options]\nout = "elsewhere"')
    (tmp_path / "moved.toml").write_text(moved, encoding="utf-8")
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert "SGD, cosine" in run("table", "moved.toml").stdout
    done = run("table", "moved.toml", "--out", "typo")
    assert done.exit_code == 1
    assert "typo" in done.stderr


def test_names_in_the_page_are_plain_text(run, tmp_path):
    study = study_in(tmp_path, TOML.replace("SGD, cosine", "x\\u001b[31m\\u202ey"))
    filled(study, marked)
    to = tmp_path / "results"
    done = run("export", tmp_path / "small.toml", "--out", tmp_path / "runs", "--to", to)
    assert done.exit_code == 0, done.stderr
    page = (to / "report.html").read_text(encoding="utf-8")
    assert not {"\x1b", "\u202e"} & set(page)
