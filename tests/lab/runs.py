"""Runs' folders for tests, written without training."""

from msgspec import convert
from msgspec.structs import replace

from rankwise.lab import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.records import EpochRecord, EpochSeconds, LayerColumns, Session
from rankwise.lab.run_folder import RunFolder

LAYERS = LayerColumns(
    name=["conv", "fc"],
    stable_rank=[0.25, None],
    condition=[0.5, None],
    quality=[0.4, None],
    rank=[3.0, None],
    rate=[0.1, 0.2],
)


NO_LAYERS = LayerColumns(*[[]] * 6)


def record_of(**fields):
    """An epoch's record from plain values, as they stand in a file."""
    return convert(fields, EpochRecord)


def epoch(number, *, score="accuracy", value=0.5, loss=1.0, quality=0.4, trained=None):
    return EpochRecord(
        epoch=number,
        batches=11,
        train={"loss": loss},
        test={score: value},
        quality=quality,
        rates=(0.1, 0.2),
        seconds=EpochSeconds(data=0.1, step=0.9, trained=trained or float(number)),
        stable_rank_by_width=None if quality is None else quality / 4,
    )


def written(out, epochs, /, *, status="finished", layers=LAYERS, **options):
    """A run's folder with these epochs in it."""
    folder = RunFolder(resolve(Config(out=str(out), **options)))
    folder.path.mkdir(parents=True)
    folder.start(Session(started="now"))
    for record in epochs:
        folder.add(record, layers)
    if status:
        folder.end(status)
    return folder


GROWN = replace(LAYERS, stable_rank=[0.5, None], rank=[6.0, None], rate=[0.01, 0.02])


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
