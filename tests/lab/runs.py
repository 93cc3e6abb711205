"""Runs' folders for tests, written without training."""

from rankwise.lab import Config
from rankwise.lab.records import RunFolder
from rankwise.lab.resolve import resolved

LAYERS = {
    "name": ["conv", "fc"],
    "stable_rank": [0.25, None],
    "condition": [0.5, None],
    "quality": [0.4, None],
    "rank": [3.0, None],
    "rate": [0.1, 0.2],
}


def epoch(number, *, score="accuracy", value=0.5, loss=1.0, quality=0.4, trained=None):
    return {
        "epoch": number,
        "batches": 11,
        "train": {"loss": loss},
        "test": {score: value},
        "quality": quality,
        "rates": (0.1, 0.2),
        "seconds": {"data": 0.1, "step": 0.9, "trained": trained or float(number)},
    }


def written(out, epochs, *, status="finished", layers=LAYERS, **options):
    """A run's folder with these epochs in it."""
    folder = RunFolder(resolved(Config(out=str(out), **options)))
    folder.path.mkdir(parents=True)
    folder.open({"started": "now"})
    for record in epochs:
        folder.add(record, layers)
    if status:
        folder.end(status)
    return folder


GROWN = {**LAYERS, "stable_rank": [0.5, None], "rank": [6.0, None], "rate": [0.01, 0.02]}


def grown(tmp_path, count=3, *, status="finished", **options):
    """A run whose first layer gains stable rank in the last epoch."""
    folder = written(tmp_path, [], status=None, **options)
    for number in range(1, count + 1):
        value = 0.9 if number == 2 else 0.5 + 0.1 * number
        record = epoch(number, value=value, quality=0.1 * number)
        folder.add(record, GROWN if number == count else LAYERS)
    if status:
        folder.end(status)
    return folder
