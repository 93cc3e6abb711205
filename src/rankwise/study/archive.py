"""Runs as one file of plain text that can be committed, and back into folders of runs.

A line a run, as JSON: name, config, status, budget, epochs, sessions, layers. Figures are rounded:
scores, Q and rates to seven digits, times to four. Weights, states, and where on a machine the run
and its data were, are left out.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rankwise.errors import RunError
from rankwise.lab import storage
from rankwise.lab.checks import CHECKS
from rankwise.lab.config import Config, from_mapping
from rankwise.lab.records import Run, RunFolder, load_run

__all__ = ["pack", "unpack"]

Record = dict[str, Any]

_EPOCH = ("epoch", "train", "test", "quality", "rates")
_METRICS = ("stable_rank", "condition", "quality", "rank", "rate")
_SESSION = ("started", "commit", "versions", "hardware", "processes")
_STATUSES = ("finished", "diverged", "unfinished")
_KEYS = {"name", "config", "status", "budget", "epochs", "sessions", "layers"}
_DIGITS, _TIME_DIGITS = 7, 4


def pack(runs: Iterable[Run], *, layers: bool = False) -> str:
    """Runs as text, in the order of their names.

    Args:
        runs: Finished or not.
        layers: Keep every epoch's layers instead of the last one's.

    Example:
        >>> pack([])
        ''
    """
    lines = (_packed(run, every=layers) for run in sorted(runs, key=lambda run: run.config.name))
    return "".join(
        json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines
    )


def _packed(run: Run, *, every: bool) -> Record:
    return {
        "name": run.config.name,
        "config": {k: v for k, v in run.config.identity().items() if v is not None},
        "status": run.status if run.is_whole else "unfinished",
        "budget": run.budget,
        "epochs": [_epoch(record) for record in run.epochs],
        "sessions": _starts(run),
        "layers": list(_layers(run, every=every)),
    }


def _epoch(record: Mapping[str, Any]) -> Record:
    kept = {name: _rounded(record[name], _DIGITS) for name in _EPOCH}
    return kept | {"seconds": _rounded(record["seconds"], _TIME_DIGITS)}


def _starts(run: Run) -> list[Record]:
    """The starts of a run, without those that were just as the one before."""
    found: list[Record] = []
    for session in run.sessions():
        kept = {name: session[name] for name in _SESSION if name in session}
        if not found or _place(kept) != _place(found[-1]):
            found.append(kept)
    return found


def _place(session: Mapping[str, Any]) -> Record:
    return {name: value for name, value in session.items() if name != "started"}


def _layers(run: Run, *, every: bool) -> Iterator[Record]:
    last = run.last.get("epoch")
    by_epoch: dict[int, list[Record]] = {}
    for row in run.layers():
        if every or row["epoch"] == last:
            by_epoch.setdefault(row["epoch"], []).append(row)
    for epoch, rows in by_epoch.items():
        columns: Record = {"name": [row["name"] for row in rows]}
        columns |= {key: [_rounded(row[key], _DIGITS) for row in rows] for key in _METRICS}
        yield {"epoch": epoch, "layers": columns}


def _rounded(value: Any, digits: int) -> Any:  # noqa: ANN401
    """Figures with so many digits, in whatever they are in; rounding them again changes nothing."""
    if isinstance(value, dict):
        return {key: _rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item, digits) for item in value]
    if not isinstance(value, float):
        return value
    found = float(f"{value:.{digits}g}")
    # 4 is shorter than 4.0, and every reader takes it for the same.
    return int(found) if found.is_integer() and abs(found) < 10**digits else found


def unpack(path: Path | str, folder: Path | str, *, only_new: bool = False) -> list[Run]:
    """Write packed runs as folders again; all that reads runs works on them.

    Nothing is written unless every line is as it should be. A run's folder is named by its options,
    whatever the file says. A study counts them as done, without their weights.

    Args:
        path: A file that `pack` made.
        folder: Where to put them; made if it is not there.
        only_new: Pass over the runs that are there already.

    Returns:
        The runs that were written, in the file's order.

    Raises:
        RunError: If a line is broken, naming it; if two are the same run, or one is there already.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     file = Path(place) / "records.jsonl"
        ...     _ = file.write_text(pack([]))
        ...     unpack(file, Path(place) / "runs")
        []
    """
    path, folder = Path(path), Path(folder)
    seen: dict[str, int] = {}
    found = []
    for number, line in enumerate(_lines(path), 1):
        record, config = _read(line, f"{path}, line {number}", folder)
        if config.name in seen:
            raise RunError(f"{path}, line {number} is the same run as line {seen[config.name]}.")
        seen[config.name] = number
        if not (folder / config.name).exists():
            found.append((record, config))
        elif not only_new:
            raise RunError(f"{folder / config.name} is there already; give an empty folder.")
    return [_written(record, config) for record, config in found]


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}.") from None


def _read(line: bytes, place: str, folder: Path) -> tuple[Record, Config]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise RunError(f"{place} is not JSON. Expected a line that `pack` wrote.") from None
    wrong = _wrong(record)
    if wrong:
        raise RunError(f"{place}: its {wrong} is not as a run's. Expected what `pack` wrote.")
    try:
        return record, from_mapping({**record["config"], "out": str(folder)}, place)
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{place}: {error}") from None


def _wrong(record: object) -> str:
    """The part of a record that is not as it should be; "" where all are."""
    if not isinstance(record, dict) or record.keys() != _KEYS:
        return "list of entries"
    parts = {
        "config": isinstance(record["config"], dict),
        "status": record["status"] in _STATUSES,
        "budget": record["budget"] is None or CHECKS["budget.json"]({"seconds": record["budget"]}),
        "epochs": _all("epochs.jsonl", record["epochs"]),
        "sessions": _all("sessions.jsonl", record["sessions"]),
        "layers": _all("layers.jsonl", record["layers"]),
    }
    return next((name for name, right in parts.items() if not right), "")


def _all(kind: str, found: object) -> bool:
    return isinstance(found, list) and all(map(CHECKS[kind], found))


def _written(record: Record, config: Config) -> Run:
    """A run's folder, which is there as a whole or not at all."""
    place = Path(config.out) / config.name
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=place.parent) as fresh:
        folder = RunFolder(config, Path(fresh) / config.name)
        with storage.guarded("The runs before this one were written."):
            _fill(folder, record)
            folder.path.rename(place)
    return load_run(place)


def _fill(folder: RunFolder, record: Record) -> None:
    folder.path.mkdir()
    folder.keep_config()
    if record["budget"] is not None:
        folder.set_budget(record["budget"])
    for name in ("epochs", "sessions", "layers"):
        lines = "".join(json.dumps(line) + "\n" for line in record[name])
        storage.write(folder.path / f"{name}.jsonl", lines.encode())
    if record["status"] != "unfinished":
        folder.end(record["status"], weights=False)
