"""The same records for other tools."""

import csv
import sys

import pytest

import rankwise
from rankwise.lab import Config
from rankwise.lab.loggers import log_epoch, loggers_for
from tests.lab.runs import LAYERS, epoch

pytest.importorskip("lightning_fabric")


def logged(log, folder, *records):
    loggers = loggers_for(Config(log=log), folder)
    for record in records:
        log_epoch(loggers, record, LAYERS)
    for logger in loggers:
        logger.finalize("success")


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
    assert found[1]["Q"] == "0.4"
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
    assert {"test/accuracy", "train/loss", "rate/conv", "quality/conv", "Q"} <= set(
        found.Tags()["scalars"]
    )
    assert [(e.step, pytest.approx(e.value)) for e in found.Scalars("test/accuracy")] == [
        (1, 0.5),
        (2, 0.75),
        (3, 0.8),
    ]


def test_what_is_no_number_is_left_out(tmp_path):
    logged("csv", tmp_path, epoch(1, value=None, quality=None))
    (row,) = rows(next(tmp_path.rglob("metrics.csv")))
    assert not {"test/accuracy", "Q"} & set(row)


def test_several_loggers_at_once_and_none(tmp_path):
    assert loggers_for(Config(), tmp_path) == []
    assert len(loggers_for(Config(log="csv,tensorboard"), tmp_path)) == 2


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("tensorboard", "lightning_fabric.loggers.tensorboard"),
        ("wandb", "lightning.pytorch.loggers"),
        ("mlflow", "lightning.pytorch.loggers"),
    ],
)
def test_a_logger_that_is_not_installed_is_a_sentence(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(rankwise.MissingExtraError, match=rf"{name}.*rankwise\[{name}\]"):
        loggers_for(Config(log=name), tmp_path)


def test_a_logger_that_fails_is_warned_of_and_the_others_go_on(tmp_path):
    class Down:
        def log_metrics(self, metrics, step):
            raise ConnectionError("the server is down")

    (csv_logger,) = loggers_for(Config(log="csv"), tmp_path)
    with pytest.warns(UserWarning, match="Down could not log: the server is down"):
        log_epoch([Down(), csv_logger], epoch(1), LAYERS)
    (file,) = tmp_path.rglob("metrics.csv")
    assert len(rows(file)) == 1
