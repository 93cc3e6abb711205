"""`rankwise study correlate`: a table of checkpoints or a folder of runs → what ranks them."""

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from rankwise.cli.study import study
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Session
from rankwise.lab.run_folder import RunFolder
from rankwise.study.grid import read_study
from rankwise.study.zoo.scores import SCORES
from tests.lab.runs import NO_LAYERS, epoch

HOSTILE = "evil\x1b[31m\n\u202e[bold red]x[/]"


def run(*arguments, **environment):
    try:
        runner = CliRunner(mix_stderr=False)  # what click before 8.2 has to be told
    except TypeError:
        runner = CliRunner()
    return runner.invoke(study, ["correlate", *map(str, arguments)], env=environment)


def weights(number):
    random = np.random.default_rng(number)
    signal = random.normal(size=(12, 3)) @ random.normal(size=(3, 30))
    return {
        "a.weight": number * signal + random.normal(size=(12, 30)),
        "a_layer_with_a_long_name.that.does.not.end.weight": random.normal(size=(8, 20)),
    }


@pytest.fixture
def index(tmp_path):
    with (tmp_path / "index.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "accuracy", "train_accuracy", "author", "family"])
        for number in range(7):
            np.savez(tmp_path / f"{number}.npz", **weights(number))
            rows.writerow([f"{number}.npz", 50 + number, 90, number // 2, HOSTILE])
        rows.writerow([f"{HOSTILE}.npz", 50, 90, 1, HOSTILE])
    return tmp_path / "index.csv"


def test_the_verdict_comes_first_then_tables_then_how(index):
    done = run(index, "--resamples", 20)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.strip().split("\n")
    assert lines[0].startswith("Q ranks the networks by accuracy in")
    assert "scores and test accuracy" in done.stdout
    assert "scores and generalisation gap" in done.stdout
    assert "q of the strongest 1 of 2 layers" in done.stdout
    assert "Read: checkpoint: file; accuracy: accuracy; train accuracy: train_accuracy" in (
        done.stdout
    )
    assert "there is no such file" in lines[-1]


def test_size_and_norm_are_shown_beside_every_score(index):
    done = run(index, "--resamples", 20)
    tables = done.stdout.split(": scores and ")[1:]
    assert len(tables) == 2
    for table in tables:
        labels = [line.split("  ")[0] for line in table.splitlines()[2:]]
        assert labels[:3] == ["Q", "log parameters", "mean log ‖W‖F"]
    assert "For comparison: log parameters, " in done.stdout
    assert "propose" not in done.stdout


def test_names_cannot_act_on_the_terminal(index):
    done = run(index, "--resamples", 20)
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "evil\\x1b[31m" in done.stdout


def test_on_a_terminal_nothing_is_wider_than_it(index, without_escapes):
    done = run(index, "--resamples", 20, FORCE_COLOR="1", COLUMNS="80")
    assert "\x1b[1m" in done.stdout
    lines = without_escapes(done.stdout).split("\n")
    assert max(map(len, lines)) <= 80
    assert any("SROCC [95 %]" in line and "adj." in line for line in lines)


def test_json_holds_everything(index):
    done = run(index, "--resamples", 20, "--json", "-")
    found = json.loads(done.stdout)
    (family,) = found["families"]
    assert [one["name"] for one in family["accuracy"]] == list(SCORES)
    assert [one["name"] for one in family["gap"]] == list(SCORES)
    assert len(family["of_one_architecture"]["layers"]) == 2
    assert found["skipped"][0]["reason"] == "there is no such file"


def test_csv_holds_every_networks_scores(index):
    done = run(index, "--resamples", 20, "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["network"] for row in rows] == [f"{n}.npz" for n in range(7)]
    assert all(float(row[score]) is not None for row in rows for score in ("quality", "prominence"))
    assert "\x1b" not in done.stdout


def test_columns_can_be_named_and_groups_count(index):
    done = run(index, "--resamples", 20, "--group", "author", "--json", "-")
    assert json.loads(done.stdout)["families"][0]["groups"] == 4
    assert run(index, "--accuracy", "score").exit_code == 1


def test_a_page_is_written(index, tmp_path):
    done = run(index, "--resamples", 20, "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_of_a_study_its_own_trials_are_ranked(tmp_path):
    """What is beside them in the folder, and what they were tuned by, is not."""
    file = tmp_path / "small.toml"
    tune = 'optimizer = "sgd"\ntune = { lr = [0.1, 0.3] }\n'
    file.write_text(f"trials = 4\n[options]\nepochs = 1\ntrain_size = 100\n{tune}")
    (point,) = read_study(file).with_folders(out=str(tmp_path / "runs")).points
    others = [point.config.with_(width=0.5)]
    for number, config in enumerate(
        (*point.candidates, *point.trials(point.candidates[1]), *others)
    ):
        folder = RunFolder(resolve(config))
        folder.path.mkdir(parents=True)
        folder.start(Session(started="now"))
        record = epoch(1, value=0.1 * number)
        record.train["accuracy"] = 0.9
        folder.add(record, NO_LAYERS)
        folder.end("finished")
        tensors = {name: value.astype(np.float32) for name, value in weights(number).items()}
        save_file(tensors, folder.path / "weights.safetensors")
    done = run(file, "--runs", tmp_path / "runs", "--resamples", 20, "--json", "-")
    assert done.exit_code == 0, done.stderr
    (family,) = json.loads(done.stdout)["families"]
    assert family["networks"] == 4
    everything = run(tmp_path / "runs", "--resamples", 20, "--json", "-")
    assert sum(f["networks"] for f in json.loads(everything.stdout)["families"]) == 7
    missing = run(file, "--runs", tmp_path / "nowhere")
    assert missing.exit_code == 1
    assert "no run of this study" in missing.stderr


def test_the_table_is_never_overwritten(index):
    before = index.read_bytes()
    done = run(index, "--csv", index)
    assert "would be overwritten" in done.stderr
    assert index.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv"], "missing.csv: no such file or folder."),
        (["."], "holds no runs"),
        ([".", "--accuracy", "acc"], "have no columns to name"),
        (["missing.csv", "--resamples", "0"], "Expected --resamples of 1 to 10000"),
        (["missing.csv", "--seed", "-1"], "--seed of 0 or more"),
    ],
    ids=["no file", "no runs", "columns of a folder", "no resamples", "seed"],
)
def test_what_cannot_be_is_a_sentence(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_help_fits_and_has_examples():
    done = run("--help", COLUMNS="80")
    assert "rankwise study correlate zoo/index.csv" in done.stdout
    assert max(map(len, done.stdout.split("\n"))) <= 80


def test_text_needs_no_figures(index):
    code = (
        "import sys\nsys.modules['altair'] = None\n"
        "from rankwise.cli import run\n"
        f"sys.argv = ['rankwise', 'study', 'correlate', {str(index)!r}, '--resamples', '5']\n"
        "sys.exit(run())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("Q ranks the networks")
