"""The same records for other tools."""

import csv
import sys

import pytest

import rankwise
from rankwise.lab import Config, callbacks
from rankwise.lab.callbacks import Callback, Loggers
from tests.lab.runs import LAYERS, epoch

pytest.importorskip("lightning_fabric")


def logged(log, folder, *records):
    loggers = Loggers(Config(log=log), folder)
    for record in records:
        loggers.log_epoch(record, LAYERS)
    loggers.finish("finished")


def rows(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_csv_has_a_row_an_epoch_with_every_figure_and_layer(tmp_path):
    logged("csv", tmp_path, epoch(1), epoch(2, value=0.75))
    (file,) = tmp_path.rglob("metrics.csv")
    found = rows(file)
    assert [row["step"] for row in found] == ["1", "2"]
    assert found[1]["test/accuracy"] == "0.75"
    assert found[1]["train/loss"] == "1.0"
    assert found[1]["stable_rank_by_width"] == "0.1"
    assert found[1]["rate/fc"] == "0.2"
    assert found[1]["stable_rank/conv"] == "0.25"
    assert "stable_rank/fc" not in found[1]  # which has none


def test_csv_keeps_what_was_logged_before_a_run_went_on(tmp_path):
    logged("csv", tmp_path, epoch(1))
    logged("csv", tmp_path, epoch(2))
    files = sorted(tmp_path.rglob("metrics.csv"))
    assert [row["step"] for file in files for row in rows(file)] == ["1", "2"]


def test_tensorboard_has_every_figure_and_layer(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logged("tensorboard", tmp_path, epoch(1), epoch(2, value=0.75))
    logged("tensorboard", tmp_path, epoch(3, value=0.8))  # after it went on
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert {
        "test/accuracy",
        "train/loss",
        "rate/conv",
        "quality/conv",
        "stable_rank_by_width",
    } <= set(found.Tags()["scalars"])
    assert [(e.step, pytest.approx(e.value)) for e in found.Scalars("test/accuracy")] == [
        (1, 0.5),
        (2, 0.75),
        (3, 0.8),
    ]


def test_what_is_no_number_is_left_out(tmp_path):
    logged("csv", tmp_path, epoch(1, value=None, quality=None))
    (row,) = rows(next(tmp_path.rglob("metrics.csv")))
    assert not {"test/accuracy", "stable_rank_by_width"} & set(row)


def test_several_loggers_at_once_and_none(tmp_path):
    logged("", tmp_path, epoch(1))
    assert list(tmp_path.iterdir()) == []
    logged("csv,tensorboard", tmp_path, epoch(1))
    assert {path.name for path in tmp_path.iterdir()} == {"csv", "tensorboard"}


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("tensorboard", "lightning_fabric.loggers.tensorboard", "lightning-fabric"),
        ("wandb", "lightning.pytorch.loggers", "lightning"),
        ("mlflow", "lightning.pytorch.loggers", "lightning"),
    ],
)
def test_a_logger_that_is_not_installed_is_a_sentence(tmp_path, monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(rankwise.MissingExtraError, match=rf"{name}.*pip install {package}"):
        Loggers(Config(log=name), tmp_path)


def test_a_logger_that_fails_is_warned_of_and_the_others_go_on(tmp_path, monkeypatch):
    class Down:
        def log_hyperparams(self, options):
            pass

        def log_metrics(self, metrics, step):
            raise ConnectionError("the server is down")

    monkeypatch.setitem(callbacks.LOGGERS, "wandb", lambda *_: Down())
    loggers = Loggers(Config(log="wandb,csv"), tmp_path)
    with pytest.warns(UserWarning, match="Down could not log: the server is down"):
        loggers.log_epoch(epoch(1), LAYERS)
    (file,) = tmp_path.rglob("metrics.csv")
    assert len(rows(file)) == 1


def test_a_callback_does_nothing_by_itself(capsys):
    callback = Callback()
    callback.on_message("x")
    callback.on_start(None)
    callback.on_batch(None)
    callback.on_epoch(None, epoch(1))
    callback.on_end(None)
    assert capsys.readouterr() == ("", "")
