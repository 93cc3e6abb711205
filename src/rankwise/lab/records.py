"""A run's folder: what was asked, where it ran, what every epoch gave, and how it ended.

config.json         the resolved options
sessions.jsonl      a line for every start: time, commit, versions, hardware
epochs.jsonl        a line an epoch: losses, scores, seconds, Q
layers.jsonl        a line an epoch: every layer's metrics and rate, column by column
state-….pt/.json    what is needed to go on: the newest and the one before
weights.safetensors the weights at the end
outcome.json        finished, diverged, and after how many epochs; absent while there is something
                    left to do. Of a run that came as a record, also that there are no weights
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rankwise
from rankwise.errors import RunError
from rankwise.lab import storage
from rankwise.lab.checks import CHECKS
from rankwise.lab.config import Config, from_mapping
from rankwise.lab.scores import main_score

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

__all__ = ["Run", "RunFolder", "is_run", "load_run", "load_runs"]

Record = dict[str, Any]

_STATUSES = ("finished", "diverged")


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its folder tells it.

    Attributes:
        folder: Where it is.
        config: The resolved options.
        status: "finished", "diverged", or "unfinished".
        epochs: A record an epoch.
        budget: The seconds it was given, where it was given a time.
        ended: After how many epochs it was over; None if it is not, or does not say.

    Example:
        >>> from rankwise.lab import load_run
        >>> load_run("no/such/run")
        Traceback (most recent call last):
        ...
        rankwise.errors.RunError: no/such/run is not a run: it has no config.json.
    """

    folder: Path
    config: Config
    status: str
    epochs: tuple[Record, ...]
    budget: float | None = None
    ended: int | None = None

    @property
    def last(self) -> Record:
        """The last epoch's record; empty before there is one."""
        return self.epochs[-1] if self.epochs else {}

    @property
    def scores(self) -> Record:
        """The test scores that it ended with; empty unless it finished and is whole."""
        return self.last.get("test", {}) if self.status == "finished" and self.is_whole else {}

    @property
    def is_whole(self) -> bool:
        """Whether it is over and the record of its last epoch is there; no other stands for it."""
        return self.status in _STATUSES and self.ended in (None, self.last.get("epoch"))

    @property
    def weights(self) -> Path:
        """The file with the weights at the end."""
        return self.folder / "weights.safetensors"

    def layers(self) -> list[Record]:
        """Every layer of every epoch: epoch, name, stable_rank, condition, quality, rank, rate."""
        return [
            {"epoch": line["epoch"], **dict(zip(line["layers"], values, strict=True))}
            for line in _lines(self.folder / "layers.jsonl")
            for values in zip(*line["layers"].values(), strict=True)
        ]

    def sessions(self) -> list[Record]:
        """Each start of the run: when, by which commit and versions, on which hardware."""
        return _lines(self.folder / "sessions.jsonl")

    def to_frame(self) -> pd.DataFrame:
        """The epochs as a DataFrame; `pandas.DataFrame(run.layers())` has the layers.

        Raises:
            MissingExtraError: Without pandas.
        """
        try:
            import pandas as pd  # noqa: PLC0415
        except ImportError:
            raise rankwise.MissingExtraError("pandas", "frame", "A DataFrame") from None
        return pd.json_normalize(list(self.epochs))

    def plot_progress(self, score: str | None = None, *, across: str = "epoch") -> alt.Chart:
        """A loss or a score on the training and the test set.

        Args:
            score: "loss", "accuracy", …; the test set's score by default.
            across: "epoch", or "seconds" of training.

        Raises:
            MissingExtraError: Without altair, as all that plots.

        Example:
            >>> from rankwise.lab import load_run
            >>> run = load_run("runs/resnet20-digits-rmsgd-1a2b3c4d-seed0")  # doctest: +SKIP
            >>> run.plot_progress("loss").save("loss.svg")  # doctest: +SKIP
        """
        from rankwise.charts import runs  # noqa: PLC0415

        score = main_score(self.epochs) if score is None else score
        return runs.draw_progress(runs.make_score_rows(self.epochs), score, across=across)

    def plot_heat_map(self, metric: str = "quality") -> alt.LayerChart:
        """A metric of every layer over epochs, as colour: the paper's Fig. 1b.

        Args:
            metric: "quality", "stable_rank", "condition", "rank" or "rate".

        Example:
            >>> run.plot_heat_map("rate").save("rates.png")  # doctest: +SKIP
        """
        from rankwise.charts import evolution  # noqa: PLC0415

        return evolution.draw_heat_map(evolution.make_layer_rows(self.layers()), metric)

    def plot_rates(self) -> alt.LayerChart:
        """The learning rate of every layer over epochs, darker with depth.

        Example:
            >>> run.plot_rates().save("rates.pdf")  # doctest: +SKIP
        """
        from rankwise.charts import evolution  # noqa: PLC0415

        return evolution.draw_rates(evolution.make_layer_rows(self.layers()))

    def plot_trajectories(self) -> alt.LayerChart:
        """The path of every layer through stable rank and condition.

        Example:
            >>> run.plot_trajectories().save("paths.svg")  # doctest: +SKIP
        """
        from rankwise.charts import evolution  # noqa: PLC0415

        return evolution.draw_trajectories(evolution.make_layer_rows(self.layers()))

    def plot_quality(self) -> alt.Chart:
        """Network quality Q over epochs.

        Example:
            >>> run.plot_quality().save("quality.svg")  # doctest: +SKIP
        """
        from rankwise.charts import runs  # noqa: PLC0415

        return runs.draw_quality(runs.make_quality_rows(self.epochs))

    def plot_time(self) -> alt.Chart:
        """Where every epoch's seconds went: data, steps, probes, evaluation, saving.

        Example:
            >>> run.plot_time().save("time.svg")  # doctest: +SKIP
        """
        from rankwise.charts import runs  # noqa: PLC0415

        return runs.draw_time(runs.make_time_rows(self.epochs))


class RunFolder:
    """The folder of a run while it is being written to.

    Args:
        config: The resolved options, which name the folder.
        path: Where it is; by default where the options say.
    """

    def __init__(self, config: Config, path: Path | None = None) -> None:
        self.path = Path(config.out) / config.name if path is None else path
        self.config = config

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, and its weights are there, or were meant to be left out."""
        outcome = _optional(self.path / "outcome.json")
        kept = outcome.get("weights", True)
        there = not kept or (self.path / "weights.safetensors").is_file()
        return _status(outcome) in _STATUSES and there

    @property
    def was_begun(self) -> bool:
        """Whether there is anything in the folder beside its lock."""
        return any(path.name != ".lock" for path in self.path.iterdir())

    def remove(self) -> None:
        """Remove the folder of a run that was refused before it began."""
        (self.path / ".lock").unlink(missing_ok=True)
        self.path.rmdir()

    @property
    def budget(self) -> float | None:
        """The seconds that the run was given when it began."""
        return _optional(self.path / "budget.json").get("seconds")

    def open(self, session: Record) -> None:
        """Note that a run starts or goes on here."""
        self.keep_config()
        storage.append_line(self.path / "sessions.jsonl", _json(session))

    def keep_config(self) -> None:
        """Write the options; where a run is may have changed since it was begun, not what it is."""
        storage.write(self.path / "config.json", json.dumps(asdict(self.config), indent=1).encode())

    def set_budget(self, seconds: float) -> None:
        """Keep how long the run may take, which must not change when it goes on."""
        storage.write(self.path / "budget.json", _json({"seconds": seconds}).encode())

    def add(self, epoch: Record, layers: Record) -> None:
        """Record an epoch; its line in epochs.jsonl comes last, and makes it count."""
        storage.append_line(
            self.path / "layers.jsonl", _json({"epoch": epoch["epoch"], "layers": layers})
        )
        storage.append_line(self.path / "epochs.jsonl", _json(epoch))

    def cut_after(self, epoch: int) -> None:
        """Drop the records of epochs that are to be run again, and broken lines.

        What is dropped, and what is missing, is warned of.
        """
        for name in ("epochs.jsonl", "layers.jsonl"):
            path = self.path / name
            lines = _lines(path)
            kept = [line for line in lines if line["epoch"] <= epoch]
            if len(kept) < len(lines):
                _warn(f"{path}: epoch {epoch + 1} was recorded but not saved, and is run again.")
            if len(kept) < epoch:
                _warn(f"{path}: {epoch - len(kept)} of {epoch} epochs have no record.")
            storage.write(path, "".join(_json(line) + "\n" for line in kept).encode())

    def end(self, status: str, *, weights: bool = True) -> None:
        """Record how the run ended, and whether its weights are in the folder."""
        # One that ends again, since its weights were lost, may have lost a record as well.
        before = _optional(self.path / "outcome.json").get("epochs") or 0
        recorded = (line["epoch"] for line in _lines(self.path / "epochs.jsonl"))
        outcome: Record = {"status": status, "epochs": max([before, *recorded])}
        outcome |= {} if weights else {"weights": False}
        storage.write(self.path / "outcome.json", _json(outcome).encode())

    def read(self) -> Run:
        """The run so far."""
        return load_run(self.path)


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / "config.json").is_file()


def load_run(folder: Path | str) -> Run:
    """Read a run's folder; also while it is being written to.

    Args:
        folder: The folder.

    Raises:
        RunError: If it holds no run, or its files can't be read.

    Example:
        >>> from rankwise.lab import load_run
        >>> run = load_run("runs/resnet20-digits-rmsgd-1a2b3c4d-seed0")  # doctest: +SKIP
        >>> run.last["test"]["accuracy"]  # doctest: +SKIP
        0.989
    """
    folder = Path(folder)
    if not is_run(folder):
        raise RunError(f"{folder} is not a run: it has no config.json.")
    try:
        config = from_mapping(json.loads((folder / "config.json").read_bytes()), str(folder))
        outcome = _optional(folder / "outcome.json")
        return Run(
            folder,
            config,
            _status(outcome),
            tuple(_lines(folder / "epochs.jsonl")),
            _optional(folder / "budget.json").get("seconds"),
            outcome.get("epochs") or None,
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{folder}: its records can't be read ({error}). Give the command that began the run "
            "again to mend them, or remove the folder."
        ) from error


def load_runs(folder: Path | str) -> list[Run]:
    """All runs in a folder, by name.

    Args:
        folder: A folder of runs, as `--out` names it.

    Example:
        >>> from rankwise.lab import load_runs
        >>> load_runs("no/such/folder")
        []
    """
    return [load_run(path) for path in sorted(Path(folder).glob("*/")) if is_run(path)]


def _json(record: Record) -> str:
    return json.dumps(_finite(record), allow_nan=False)


def _finite(value: Any) -> Any:  # noqa: ANN401
    """NaN and infinity become null, which every JSON reader knows."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _status(outcome: Record) -> str:
    status = outcome.get("status")
    return status if status in _STATUSES else "unfinished"


def _optional(path: Path) -> Record:
    return _object(path.read_bytes(), path) if path.is_file() else {}


def _lines(path: Path) -> list[Record]:
    """The whole lines of a file; a last one without its end was being written."""
    if not path.is_file():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    found = (_object(line, path) for line in whole.splitlines())
    return [record for record in found if record]


def _object(text: bytes, path: Path) -> Record:
    """What a file or a line of it holds; empty, with a warning, where it is not as we write it."""
    try:
        found = json.loads(text)
        if CHECKS[path.name](found):
            return found
    except (ValueError, RecursionError):
        pass
    _warn(f"{path}: a broken record is left out.")
    return {}


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)
