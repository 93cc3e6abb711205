"""The records of a run as typed structs, and reading a run's folder.

config.json         the resolved options and the schema version
sessions.jsonl      one line per start: time, commit, versions, hardware
epochs.jsonl        one line per epoch: losses, scores, seconds, Q
layers.jsonl        one line per epoch: every layer's metrics and rate, column by column
budget.json         the seconds of a run that was given a time instead of epochs
state-….pt/.json    what is needed to continue: the newest state and the one before
weights.safetensors the weights at the end
outcome.json        finished or diverged, and after how many epochs; absent while the run is
                    unfinished. For an imported run, also that there are no weights
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import rankwise
from rankwise.errors import ConfigError, RunError
from rankwise.lab.config import Config, from_mapping
from rankwise.lab.scores import find_main_score

try:
    import msgspec
    from msgspec import Meta, Struct
except ImportError:
    raise rankwise.MissingExtraError("msgspec", "lab", "Reading and writing runs") from None

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

# The config.json of a model on the Hugging Face Hub has one of these.
_MODEL_KEYS = ("model_type", "architectures", "architecture", "_class_name", "auto_map")
SCHEMA = 2  # version 1 had no number, and options that are gone; studies/migrate_records.py

Count = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, lt=1e12)]  # many of them can be added up
Scores = dict[str, float | None]  # None stands for NaN and infinity, as null in JSON
Column = list[float | None]
RecordType = TypeVar("RecordType", bound=Struct)


class EpochSeconds(Struct, frozen=True, kw_only=True):
    """Where an epoch's time went, and `trained`: the training time since the run's start."""

    data: Seconds = 0.0
    step: Seconds = 0.0
    probe: Seconds = 0.0
    eval: Seconds = 0.0
    save: Seconds = 0.0
    trained: Seconds

    @property
    def total(self) -> float:
        """The seconds of this epoch."""
        return self.data + self.step + self.probe + self.eval + self.save


class EpochRecord(Struct, frozen=True):
    """One epoch: number, scores, the network's Q, least and largest rate, seconds, and its S."""

    epoch: Count
    train: Scores
    test: Scores
    quality: float | None
    rates: tuple[float | None, float | None] | None
    seconds: EpochSeconds
    batches: int | None = None
    stable_rank_by_width: float | None = None  # S; not in records of earlier versions


class LayerColumns(Struct, frozen=True):
    """All layers of one epoch, column by column."""

    name: list[str]
    stable_rank: Column
    condition: Column
    quality: Column
    rank: Column
    rate: Column

    def __post_init__(self) -> None:
        if len({len(column) for column in self.columns()}) > 1:
            raise ValueError("Expected columns of equal length.")

    @property
    def network_quality(self) -> float | None:
        """Q over all layers; None without any."""
        return rankwise.network_quality(q for q in self.quality if q is not None)

    @property
    def rate_range(self) -> tuple[float, float] | None:
        """The least and the largest rate of a layer."""
        rates = [rate for rate in self.rate if rate is not None]
        return (min(rates), max(rates)) if rates else None

    def columns(self) -> tuple[list[Any], ...]:
        """The columns in the order of `LayerRecord`."""
        return tuple(getattr(self, name) for name in self.__struct_fields__)


class LayersRecord(Struct, frozen=True):
    """A line of layers.jsonl."""

    epoch: Count
    layers: LayerColumns


class LayerRecord(Struct, frozen=True):
    """One layer after one epoch."""

    epoch: int
    name: str
    stable_rank: float | None
    condition: float | None
    quality: float | None
    rank: float | None
    rate: float | None


class Hardware(Struct, frozen=True):
    """What a run ran on."""

    system: str = ""
    cpu: str = ""
    cores: int | None = None
    threads: int | None = None
    accelerators: tuple[str, ...] = ()


class Session(Struct, frozen=True, omit_defaults=True):
    """One start of a run: when, by which code, on which hardware, from which epoch on.

    `commit` ends with "+" where files had been changed since. `data` is the fingerprint of the
    data set.
    """

    started: str
    commit: str | None = None
    versions: dict[str, str] = {}
    hardware: Hardware = Hardware()
    processes: int = 1
    epoch: int = 0
    data: dict[str, str | int | list[int]] = {}


class BudgetRecord(Struct, frozen=True):
    """The training time that a run was given."""

    seconds: float


class Outcome(Struct, frozen=True, omit_defaults=True):
    """How a run ended, after how many epochs, and whether its weights were kept."""

    status: Literal["finished", "diverged"]
    epochs: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    weights: bool = True


class ConfigRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The resolved options of a run, and the version of its records."""

    schema: int
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read from its folder.

    `status` is "finished", "diverged" or "unfinished". `budget` is the seconds that it was given,
    where it was given a time, `ended` the epochs after which it ended, where it has and they are
    recorded.

    Example:
        >>> from rankwise.lab import load_run
        >>> load_run("no/such/run")
        Traceback (most recent call last):
        ...
        rankwise.errors.RunError: no/such/run is not a run: it has no config.json of a run.
    """

    folder: Path
    config: Config
    status: str
    epochs: tuple[EpochRecord, ...]
    budget: float | None = None
    ended: int | None = None

    def __repr__(self) -> str:
        scores = "".join(f", {name} {value:.4g}" for name, value in self.test.items())
        return f"<Run {str(self.folder)!r}: {self.status} after epoch {self.epoch}{scores}>"

    @property
    def last(self) -> EpochRecord | None:
        """The last epoch's record; None before there is one."""
        return self.epochs[-1] if self.epochs else None

    @property
    def epoch(self) -> int:
        """The number of the last recorded epoch; 0 before there is one."""
        return self.epochs[-1].epoch if self.epochs else 0

    @property
    def quality(self) -> float | None:
        """Q after the last recorded epoch, where known."""
        return self.epochs[-1].quality if self.epochs else None

    @property
    def stable_rank_by_width(self) -> float | None:
        """S after the last epoch; None where it is not known."""
        return self.epochs[-1].stable_rank_by_width if self.epochs else None

    @property
    def trained(self) -> float:
        """The seconds of training so far."""
        return self.epochs[-1].seconds.trained if self.epochs else 0.0

    @property
    def test(self) -> Scores:
        """The test scores of the last recorded epoch; empty before there is one."""
        return self.epochs[-1].test if self.epochs else {}

    @property
    def scores(self) -> Scores:
        """The final test scores; empty unless the run finished and its last record is there."""
        return self.test if self.status == "finished" and self.is_whole else {}

    @property
    def is_whole(self) -> bool:
        """Whether it has ended and the record of its last epoch is there."""
        return self.status != "unfinished" and self.ended in (None, self.epoch)

    @property
    def weights(self) -> Path:
        """The file with the weights at the end."""
        return self.folder / "weights.safetensors"

    def layers(self) -> list[LayerRecord]:
        """Return every layer of every epoch, with its metrics and its rate."""
        return [
            LayerRecord(line.epoch, *values)
            for line in read_lines(self.folder / "layers.jsonl", LayersRecord)
            for values in zip(*line.layers.columns(), strict=True)
        ]

    def sessions(self) -> list[Session]:
        """Return the starts of the run: when, by which commit and versions, on which hardware."""
        return read_lines(self.folder / "sessions.jsonl", Session)

    def to_frame(self) -> pd.DataFrame:
        """Return the epochs as a DataFrame, with columns such as "test.accuracy"."""
        try:
            import pandas as pd  # noqa: PLC0415
        except ImportError:
            raise rankwise.MissingExtraError("pandas", "frame", "A DataFrame") from None
        return pd.json_normalize(msgspec.to_builtins(list(self.epochs)))

    def plot_progress(self, score: str | None = None, *, across: str = "epoch") -> alt.Chart:
        """Plot a loss or a score on the training and the test set.

        Args:
            score: "loss", "accuracy", …; by default the test score that runs are judged by.
            across: "epoch", or "seconds" of training.

        Raises:
            MissingExtraError: Without altair; so do all plots.

        Example:
            >>> from rankwise.lab import load_run
            >>> run = load_run("runs/resnet20-digits-rmsgd-1a2b3c4d-seed0")  # doctest: +SKIP
            >>> run.plot_progress("loss").save("loss.svg")  # doctest: +SKIP
        """
        from rankwise.charts import runs  # noqa: PLC0415

        score = find_main_score(self.epochs) if score is None else score
        return runs.draw_progress(runs.make_score_rows(self.epochs), score, across=across)

    def plot_heat_map(self, metric: str = "quality") -> alt.LayerChart:
        """Plot a metric of every layer over epochs as colour: the paper's Fig. 1b.

        Args:
            metric: "quality", "stable_rank", "condition", "rank" or "rate".
        """
        from rankwise.charts import evolution  # noqa: PLC0415

        return evolution.draw_heat_map(evolution.make_layer_rows(self.layers()), metric)

    def plot_rates(self) -> alt.LayerChart:
        """Plot the learning rate of every layer over epochs, darker with depth."""
        from rankwise.charts import evolution  # noqa: PLC0415

        return evolution.draw_rates(evolution.make_layer_rows(self.layers()))

    def plot_trajectories(self) -> alt.LayerChart:
        """Plot the path of every layer through stable rank and condition."""
        from rankwise.charts import evolution  # noqa: PLC0415

        return evolution.draw_trajectories(evolution.make_layer_rows(self.layers()))

    def plot_quality(self) -> alt.Chart:
        """Plot Q, the paper's figure of a network, over epochs; it does not rank networks."""
        from rankwise.charts import runs  # noqa: PLC0415

        return runs.draw_quality(runs.make_figure_rows(self.epochs))

    def plot_time(self) -> alt.Chart:
        """Plot where every epoch's seconds went: data, steps, probes, evaluation, saving."""
        from rankwise.charts import runs  # noqa: PLC0415

        return runs.draw_time(runs.make_time_rows(self.epochs))


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, damaged or not; a model's config.json makes none."""
    path = folder / "config.json"
    if not path.is_file():
        return False
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # load_run says what is wrong with it
        return True
    return not (isinstance(content, dict) and any(key in content for key in _MODEL_KEYS))


def load_run(folder: Path | str) -> Run:
    """Read a run's folder; also while it is being written to.

    Raises:
        RunError: If it holds no run, or its files can't be read.

    Example:
        >>> from rankwise.lab import load_run
        >>> run = load_run("runs/resnet20-digits-rmsgd-1a2b3c4d-seed0")  # doctest: +SKIP
        >>> run.scores["accuracy"]  # doctest: +SKIP
        0.989
    """
    folder = Path(folder)
    if not is_run(folder):
        raise RunError(f"{folder} is not a run: it has no config.json of a run.")
    config = decode_config((folder / "config.json").read_bytes(), str(folder))
    outcome = read_record(folder / "outcome.json", Outcome)
    budget = read_record(folder / "budget.json", BudgetRecord)
    return Run(
        folder,
        config,
        "unfinished" if outcome is None else outcome.status,
        tuple(read_lines(folder / "epochs.jsonl", EpochRecord)),
        None if budget is None else budget.seconds,
        None if outcome is None else outcome.epochs or None,
    )


def load_runs(folder: Path | str) -> list[Run]:
    """Read all runs in a folder, as `--out` names it, sorted by name.

    Example:
        >>> from rankwise.lab import load_runs
        >>> load_runs("no/such/folder")
        []
    """
    return [load_run(path) for path in sorted(Path(folder).glob("*/")) if is_run(path)]


def encode_config(config: Config) -> bytes:
    """Return the content of config.json."""
    # Not by msgspec, which refuses paths that are not text.
    return json.dumps({"schema": SCHEMA, "options": asdict(config)}, indent=1).encode()


def decode_config(text: bytes, source: str) -> Config:
    """Read the content of config.json; the error says how to repair it."""
    content: object = None
    try:
        content = json.loads(text)
        record = msgspec.convert(content, ConfigRecord)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        if isinstance(content, dict) and "network" in content:
            raise RunError(
                f"{source} was written by an older version of rankwise. Give the folder "
                "of runs to studies/migrate_records.py, in the project's repository, to update it."
            ) from None
        raise RunError(
            f"{source}: its options can't be read ({error}). Repeat the command that started the "
            "run to repair them, or remove the folder."
        ) from None
    if record.schema != SCHEMA:
        raise RunError(
            f"{source} has records of version {record.schema}; this version of rankwise reads "
            f"version {SCHEMA}."
        )
    try:
        return from_mapping(record.options, source)
    except ConfigError as error:
        raise RunError(
            f"{error} The run was written by another version of rankwise, or was edited."
        ) from error


def decode_record(text: bytes, kind: type[RecordType]) -> RecordType | None:
    """Decode a record from JSON; None if it is broken.

    Example:
        >>> decode_record(b'{"epoch": 1, "test": null}', EpochRecord) is None
        True
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def read_lines(path: Path, kind: type[RecordType]) -> list[RecordType]:
    """Read the complete lines of a file; broken ones are left out with a warning.

    A last line without its end is being written.
    """
    if not path.is_file():
        return []
    complete = path.read_bytes().rpartition(b"\n")[0]
    records = [decode_record(line, kind) for line in complete.splitlines()]
    for _ in range(records.count(None)):
        _warn_of_broken_record(path)
    return [record for record in records if record is not None]


def read_record(path: Path, kind: type[RecordType]) -> RecordType | None:
    """Read a file of one record; None if there is none, and with a warning if it is broken."""
    if not path.is_file():
        return None
    record = decode_record(path.read_bytes(), kind)
    if record is None:
        _warn_of_broken_record(path)
    return record


def _warn_of_broken_record(path: Path) -> None:
    warnings.warn(f"{path}: a broken record is left out.", UserWarning, stacklevel=4)
