"""A run's folder tells what was asked and what every epoch gave."""

import json
import math
import re
import sys

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

import rankwise
from rankwise.lab import Config, RunError, load_run, load_runs
from rankwise.lab.defaults import resolve
from rankwise.lab.records import SCHEMA, EpochRecord, LayerRecord, Session, decode_record
from rankwise.lab.run_folder import RunFolder
from tests.lab.runs import LAYERS, epoch, written


def test_a_run_reads_back_as_it_was_written(tmp_path):
    folder = written(tmp_path, [epoch(1), epoch(2, value=0.75)], optimizer="sgd", seed=3)
    run = load_run(folder.path)
    assert run.config == resolve(Config(out=str(tmp_path), optimizer="sgd", seed=3))
    assert (run.status, len(run.epochs), run.budget) == ("finished", 2, None)
    assert run.last.test == {"accuracy": 0.75}
    assert run.last.rates == (0.1, 0.2)
    assert run.sessions() == [Session(started="now")]
    assert run.weights == folder.path / "weights.safetensors"
    assert load_run(str(folder.path)) == run


def test_a_run_can_be_read_while_it_goes_on(tmp_path):
    folder = written(tmp_path, [], status=None)
    assert not folder.is_over
    run = folder.read()
    assert (run.status, run.last, run.layers()) == ("unfinished", None, [])
    folder.add(epoch(1), LAYERS)
    assert folder.read().epoch == 1


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_a_run_that_is_over_says_how(tmp_path, status):
    folder = written(tmp_path, [epoch(1)], status=status)
    assert folder.read().status == status
    assert not folder.is_over  # its weights are still to be written
    (folder.path / "weights.safetensors").touch()
    assert folder.is_over


def test_every_layer_of_every_epoch_is_a_row(tmp_path):
    rows = written(tmp_path, [epoch(1), epoch(2)]).read().layers()
    assert [(row.epoch, row.name) for row in rows] == [
        (1, "conv"),
        (1, "fc"),
        (2, "conv"),
        (2, "fc"),
    ]
    assert rows[0] == LayerRecord(1, *(column[0] for column in LAYERS.columns()))
    assert rows[1].quality is None


def test_a_half_written_last_line_does_not_count(tmp_path):
    folder = written(tmp_path, [epoch(1), epoch(2)])
    path = folder.path / "epochs.jsonl"
    path.write_bytes(path.read_bytes()[:-1])  # all of it but its end
    assert [record.epoch for record in folder.read().epochs] == [1]


def test_the_epoch_before_does_not_stand_for_a_last_one_that_was_lost(tmp_path):
    folder = written(tmp_path, [epoch(1), epoch(2, value=0.75)])
    assert folder.read().scores == {"accuracy": 0.75}
    path = folder.path / "epochs.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    for _ in range(2):
        run = folder.read()
        assert (run.status, run.is_whole, run.scores) == ("finished", False, {})
        folder.end("finished")  # once more, as when its weights were lost as well


@pytest.mark.parametrize("status", ["diverged", None])
def test_a_run_that_did_not_finish_has_no_scores(tmp_path, status):
    run = written(tmp_path, [epoch(1)], status=status).read()
    assert (run.scores, run.is_whole) == ({}, status is not None)


@pytest.mark.parametrize("epochs", [{}, {"epochs": 0}], ids=str)
def test_an_end_that_does_not_say_after_which_epoch_counts(tmp_path, epochs):
    folder = written(tmp_path, [epoch(1, value=0.75)])
    (folder.path / "outcome.json").write_text(json.dumps({"status": "finished", **epochs}))
    assert folder.read().scores == {"accuracy": 0.75}


@pytest.mark.parametrize("broken", [b'{"epoch": 2, "tr', b"[2]", b"\xff\xfe", b"null"], ids=repr)
def test_a_broken_line_is_left_out_with_a_warning(tmp_path, broken):
    folder = written(tmp_path, [epoch(1), epoch(2), epoch(3)])
    path = folder.path / "epochs.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], broken, lines[2], b""]))
    with pytest.warns(UserWarning, match=r"epochs\.jsonl: a broken record is left out"):
        assert [record.epoch for record in folder.read().epochs] == [1, 3]


SECONDS = {"step": 1.0, "trained": 1.0}
DAMAGED = {
    "no test": {"test": None},
    "no training": {"train": None},
    "a list for a test": {"test": [0.5]},
    "seconds are a number": {"seconds": 3},
    "no time of training": {"seconds": {"step": 1.0}},
    "a time that is null": {"seconds": {**SECONDS, "trained": None}},
    "a part of the time that is null": {"seconds": {**SECONDS, "step": None}},
    "a time that adds up to infinity": {"seconds": {**SECONDS, "step": 1e308}},
    "a time before any": {"seconds": {**SECONDS, "step": -1.0}},
    "a score that is text": {"test": {"accuracy": "0.5"}},
    "a score that is true": {"test": {"accuracy": True}},
    "a score that is nested": {"test": {"accuracy": {"top1": 0.5}}},
    "a quality that is text": {"quality": "x"},
    "a quality beyond all floats": {"quality": 10**400},
    "a quality that is no number": {"quality": math.nan},
    "three rates": {"rates": [0.1, 0.2, 0.3]},
    "a rate that is text": {"rates": ["a", "b"]},
    "rates are a number": {"rates": 0.1},
    "an epoch that is true": {"epoch": True},
    "an epoch before the first": {"epoch": 0},
    "an epoch beyond all floats": {"epoch": 10**400},
}


@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_epoch_is_left_out_with_a_warning(tmp_path, change):
    folder = written(tmp_path, [epoch(1)])
    with (folder.path / "epochs.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**to_builtins(epoch(2)), **change}) + "\n")
    with pytest.warns(UserWarning, match=r"epochs\.jsonl: a broken record is left out"):
        assert [record.epoch for record in folder.read().epochs] == [1]


LOST = {  # what a run of each task may record
    "images": {"test": {"loss": 1.0, "accuracy": 0.5, "top5": 0.9, "auc": None}},
    "words": {"train": {"loss": 1e3, "perplexity": None}, "test": {"loss": 9, "perplexity": None}},
    "a GAN": {"train": {"loss": None, "generator_loss": 2.0}, "test": {"frechet": None}},
    "no layers": {"quality": None, "rates": None},
    "a rate that is no number": {"rates": [None, 1.0]},
}


@pytest.mark.parametrize("change", LOST.values(), ids=LOST)
def test_null_stands_for_what_was_no_number(change):
    text = json.dumps({**to_builtins(epoch(1)), **change}).encode()
    assert decode_record(text, EpochRecord) is not None


def _counts(folder):
    run = folder.read()
    return len(run.epochs), len(run.layers()), len(run.sessions())


@pytest.mark.parametrize("name", ["epochs.jsonl", "layers.jsonl", "sessions.jsonl"])
@pytest.mark.parametrize("depth", [20, 900, 100_000])
def test_a_deeply_nested_line_is_left_out_with_a_warning(tmp_path, name, depth):
    folder = written(tmp_path, [epoch(1)])
    lines = {
        "epochs.jsonl": {**to_builtins(epoch(2)), "test": {"accuracy": "DEEP"}},
        "layers.jsonl": {"epoch": 2, "layers": {**to_builtins(LAYERS), "rate": ["DEEP", 0.1]}},
        "sessions.jsonl": {"started": "now", "data": "DEEP"},
    }
    nested = "[" * depth + "]" * depth
    with (folder.path / name).open("a", encoding="utf-8") as file:
        file.write(json.dumps(lines[name]).replace('"DEEP"', nested) + "\n")
    with pytest.warns(UserWarning, match=f"{name}: a broken record is left out"):
        assert _counts(folder) == (1, 2, 1)


BROKEN_LAYERS = {
    "no columns": None,
    "a list": [1],
    "no names": {key: column for key, column in to_builtins(LAYERS).items() if key != "name"},
    "no rates": {key: column for key, column in to_builtins(LAYERS).items() if key != "rate"},
    "unequal columns": {**to_builtins(LAYERS), "rank": [3.0]},
    "a number for a column": {**to_builtins(LAYERS), "rank": 3.0},
    "a number for a name": {**to_builtins(LAYERS), "name": ["conv", 5]},
    "text for a number": {**to_builtins(LAYERS), "rate": ["0.1", None]},
}


@pytest.mark.parametrize("columns", BROKEN_LAYERS.values(), ids=BROKEN_LAYERS)
def test_damaged_layers_are_left_out_with_a_warning(tmp_path, columns):
    folder = written(tmp_path, [epoch(1)])
    with (folder.path / "layers.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"epoch": 2, "layers": columns}) + "\n")
    with pytest.warns(UserWarning, match=r"layers\.jsonl: a broken record is left out"):
        assert {row.epoch for row in folder.read().layers()} == {1}


@pytest.mark.parametrize(
    "change",
    [
        {"hardware": 3},
        {"hardware": {"accelerators": 3}},
        {"hardware": {"threads": math.nan}},
        {"versions": "1"},
    ],
    ids=str,
)
def test_a_damaged_start_is_left_out_with_a_warning(tmp_path, change):
    folder = written(tmp_path, [epoch(1)])
    with (folder.path / "sessions.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"started": "later", **change}) + "\n")
    with pytest.warns(UserWarning, match=r"sessions\.jsonl: a broken record is left out"):
        assert folder.read().sessions() == [Session(started="now")]


def test_a_budget_that_is_no_number_is_none(tmp_path):
    folder = written(tmp_path, [epoch(1)])
    (folder.path / "budget.json").write_text('{"seconds": "long"}')
    with pytest.warns(UserWarning, match=r"budget\.json: a broken record"):
        assert folder.read().budget is None


def test_a_broken_outcome_is_warned_of_and_the_run_counts_as_unfinished(tmp_path):
    folder = written(tmp_path, [epoch(1)])
    (folder.path / "outcome.json").write_bytes(b'{"stat')
    with pytest.warns(UserWarning, match=r"outcome\.json"):
        assert not folder.is_over
    with pytest.warns(UserWarning, match=r"outcome\.json"):
        assert folder.read().status == "unfinished"


def test_epochs_that_are_run_again_are_cut_off(tmp_path):
    folder = written(tmp_path, [epoch(1), epoch(2), epoch(3)])
    with (folder.path / "layers.jsonl").open("ab") as file:
        file.write(b'{"epoch": 4, "lay')
    with pytest.warns(UserWarning, match="epoch 3 was recorded but not saved"):
        folder.cut_after(2)
    run = folder.read()
    assert [record.epoch for record in run.epochs] == [1, 2]
    assert {row.epoch for row in run.layers()} == {1, 2}
    for name in ("epochs.jsonl", "layers.jsonl"):
        assert (folder.path / name).read_bytes().count(b"\n") == 2


def test_what_was_cut_and_added_again_is_the_same_file(tmp_path):
    folder = written(tmp_path, [epoch(1), epoch(2, value=1 / 3)])
    files = [folder.path / name for name in ("epochs.jsonl", "layers.jsonl")]
    before = [file.read_bytes() for file in files]
    with pytest.warns(UserWarning, match="run again"):
        folder.cut_after(1)
    folder.add(epoch(2, value=1 / 3), LAYERS)
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("name", ["epochs.jsonl", "layers.jsonl"])
def test_records_that_are_missing_are_said(tmp_path, name):
    folder = written(tmp_path, [epoch(1), epoch(2), epoch(3)])
    (folder.path / name).unlink()
    with pytest.warns(UserWarning, match=f"{name}: 3 of 3 epochs have no record"):
        folder.cut_after(3)


@pytest.mark.parametrize("line", ['{"a": 1}', '{"epoch": "x", "layers": {}}', "[]", "5"])
def test_a_line_that_is_no_record_is_left_out_with_a_warning(tmp_path, line):
    folder = written(tmp_path, [epoch(1)])
    for name in ("epochs.jsonl", "layers.jsonl"):
        with (folder.path / name).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    with pytest.warns(UserWarning, match="a broken record is left out"):
        run = folder.read()
    assert len(run.epochs) == 1
    with pytest.warns(UserWarning, match="a broken record is left out"):
        assert {row.epoch for row in run.layers()} == {1}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_what_is_no_number_is_null_which_every_reader_knows(tmp_path, value):
    layers = replace(LAYERS, quality=[value, 0.1])
    record = replace(epoch(1, value=value, loss=value), rates=(value, 1.0))
    folder = written(tmp_path, [record], layers=layers)

    def refuse(word):
        raise AssertionError(word)

    for name in ("epochs.jsonl", "layers.jsonl"):
        for line in (folder.path / name).read_text().splitlines():
            json.loads(line, parse_constant=refuse)
    run = folder.read()
    assert run.last.test == {"accuracy": None}
    assert run.last.rates == (None, 1.0)
    assert [row.quality for row in run.layers()] == [None, 0.1]


def test_the_seconds_of_a_budget_are_kept(tmp_path):
    folder = written(tmp_path, [], budget="wall clock of 2 SGD epochs")
    assert folder.budget is None
    folder.write_budget(12.5)
    again = RunFolder(folder.config)
    assert (again.budget, again.read().budget) == (12.5, 12.5)


def test_where_a_run_is_may_change_when_it_goes_on(tmp_path):
    folder = written(tmp_path, [epoch(1)], status=None, workers=2)
    moved = RunFolder(folder.config.with_(workers=5, devices=3))
    assert moved.path == folder.path
    moved.start(Session(started="later"))
    run = moved.read()
    assert (run.config.workers, len(run.sessions()), len(run.epochs)) == (5, 2, 1)


def test_epochs_as_a_frame(tmp_path):
    pytest.importorskip("pandas")
    frame = written(tmp_path, [epoch(1), epoch(2, value=0.75)]).read().to_frame()
    assert list(frame["epoch"]) == [1, 2]
    assert list(frame["test.accuracy"]) == [0.5, 0.75]
    assert list(frame["seconds.step"]) == [0.9, 0.9]


def test_without_pandas_it_says_what_to_install(tmp_path, monkeypatch):
    run = written(tmp_path, [epoch(1)]).read()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install pandas"):
        run.to_frame()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b'{"network": 3}', b'{"netwrk": "resnet20"}', b"\xff", b"[" * 100_000],
    ids=range(8),
)
def test_options_that_cannot_be_read_are_an_error_that_names_the_folder(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=re.escape(str(tmp_path))):
        load_run(tmp_path)


def test_options_of_another_version_say_what_to_do(tmp_path):
    folder = written(tmp_path, [epoch(1)])
    path = folder.path / "config.json"
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps(record["options"] | {"gain": "absolute"}))  # version 1
    with pytest.raises(RunError, match=r"older version.*migrate_records"):
        load_run(folder.path)
    path.write_text(json.dumps(record | {"schema": SCHEMA + 1}))
    with pytest.raises(RunError, match=f"version {SCHEMA + 1}.*version {SCHEMA}"):
        load_run(folder.path)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(RunError, match="is not a run: it has no config"):
        load_run(tmp_path)


def test_all_runs_of_a_folder(tmp_path):
    for seed in (2, 0, 1):
        written(tmp_path, [epoch(1)], seed=seed)
    (tmp_path / "other").mkdir()
    (tmp_path / "file.txt").write_text("no run")
    found = load_runs(tmp_path)
    assert {run.config.seed for run in found} == {0, 1, 2}
    assert [run.folder.name for run in found] == sorted(run.folder.name for run in found)
    assert load_runs(tmp_path / "nowhere") == []


def test_a_run_draws_its_figures(tmp_path):
    pytest.importorskip("altair")
    run = written(tmp_path, [epoch(1), epoch(2, value=0.75)]).read()
    assert run.plot_progress().to_dict()["encoding"]["y"]["title"] == "accuracy"
    assert run.plot_progress("loss", across="seconds").to_dict()["encoding"]["y"]["title"] == "loss"
    for figure in (run.plot_heat_map("rate"), run.plot_rates(), run.plot_trajectories()):
        assert [row["layer"] for row in figure.data.values] == ["conv", "fc", "conv", "fc"]
    assert [row["quality"] for row in run.plot_quality().data.values] == [0.4, 0.4]
    seconds = {row["part"]: row["seconds"] for row in run.plot_time().data.values}
    assert (seconds["data"], seconds["step"], seconds["save"]) == (0.1, 0.9, 0.0)


def test_without_altair_it_says_what_to_install(tmp_path, monkeypatch):
    run = written(tmp_path, [epoch(1)]).read()
    for name in [name for name in sys.modules if name.startswith("rankwise.charts")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install altair"):
        run.plot_rates()
