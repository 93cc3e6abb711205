"""Runs as one text file that can be committed, and back into folders of runs.

One JSON line per run. Numbers are rounded: scores, Q and rates to seven digits, times to four.
Weights, states, and where on a machine the run and its data were, are left out.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from rankwise._io import explain_missing, write_atomically
from rankwise.errors import ConfigError, RunError
from rankwise.lab.config import Config, from_mapping
from rankwise.lab.records import (
    SCHEMA,
    EpochRecord,
    LayerRecord,
    LayersRecord,
    Run,
    Session,
    load_run,
)
from rankwise.lab.run_folder import RunFolder, explain_write_errors

_EPOCH = ("epoch", "train", "test", "quality", "rates")
_SESSION = ("started", "commit", "versions", "hardware", "processes")
_DIGITS, _TIME_DIGITS = 7, 4


class PackedRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file."""

    schema: int
    name: str
    config: dict[str, Any]
    status: Literal["finished", "diverged", "unfinished"]
    budget: float | None
    epochs: list[EpochRecord]
    sessions: list[Session]
    layers: list[LayersRecord]


def pack(runs: Iterable[Run], *, layers: bool = False) -> str:
    """Return runs as text, in the order of their names.

    Args:
        runs: Finished or not.
        layers: Keep every epoch's layers instead of the last one's.

    Example:
        >>> pack([])
        ''
    """
    lines = (_pack_run(run, every=layers) for run in sorted(runs, key=lambda run: run.config.name))
    return "".join(
        json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines
    )


def _pack_run(run: Run, *, every: bool) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": run.config.name,
        "config": {k: v for k, v in run.config.identity().items() if v is not None},
        "status": run.status if run.is_whole else "unfinished",
        "budget": run.budget,
        "epochs": [_pack_epoch(record) for record in run.epochs],
        "sessions": _pack_sessions(run),
        "layers": list(_pack_layers(run, every=every)),
    }


def _pack_epoch(record: EpochRecord) -> dict[str, Any]:
    kept = {name: _round(getattr(record, name), _DIGITS) for name in _EPOCH}
    if record.stable_rank_by_width is not None:
        kept["stable_rank_by_width"] = _round(record.stable_rank_by_width, _DIGITS)
    return kept | {"seconds": _round(structs.asdict(record.seconds), _TIME_DIGITS)}


def _pack_sessions(run: Run) -> list[dict[str, Any]]:
    """Return the starts of a run, without those that were just as the one before."""
    packed: list[dict[str, Any]] = []
    before = None
    for session in run.sessions():
        place = structs.replace(session, started="", epoch=0, data={})
        if place != before:
            kept = {name: getattr(session, name) for name in _SESSION}
            packed.append({**kept, "hardware": structs.asdict(session.hardware)})
        before = place
    return packed


def _pack_layers(run: Run, *, every: bool) -> Iterator[dict[str, Any]]:
    by_epoch: dict[int, list[LayerRecord]] = {}
    for row in run.layers():
        if every or row.epoch == run.epoch:
            by_epoch.setdefault(row.epoch, []).append(row)
    for epoch, rows in by_epoch.items():
        names = LayerRecord.__struct_fields__[1:]
        columns = {name: [_round(getattr(row, name), _DIGITS) for row in rows] for name in names}
        yield {"epoch": epoch, "layers": columns}


def _round(value: Any, digits: int) -> Any:  # noqa: ANN401
    """Round the numbers in a value to so many digits; rounding again changes nothing."""
    if isinstance(value, dict):
        return {key: _round(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round(item, digits) for item in value]
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.{digits}g}")
    # 4 is shorter than 4.0, and every reader takes it for the same.
    return int(rounded) if rounded.is_integer() and abs(rounded) < 10**digits else rounded


def unpack(path: Path | str, folder: Path | str, *, only_new: bool = False) -> list[Run]:
    """Write packed runs as folders again, which everything that reads runs can read.

    Nothing is written unless every line is valid. A run's folder is named by its options, whatever
    the file says. A study counts imported runs as done, without their weights.

    Args:
        path: A file that `pack` made.
        folder: Where to put them; created if it is not there.
        only_new: Skip the runs that are there already.

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
    lines: dict[str, int] = {}
    new = []
    for number, line in enumerate(_read_lines(path), 1):
        packed, config = _decode(line, f"{path}, line {number}", folder)
        if config.name in lines:
            raise RunError(f"{path}, line {number} is the same run as line {lines[config.name]}.")
        lines[config.name] = number
        if not (folder / config.name).exists():
            new.append((packed, config))
        elif not only_new:
            raise RunError(f"{folder / config.name} is there already; give an empty folder.")
    return [_write(packed, config) for packed, config in new]


def _read_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        raise RunError(explain_missing(path)) from None
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}.") from None


def _decode(line: bytes, place: str, folder: Path) -> tuple[PackedRun, Config]:
    try:
        packed = msgspec.json.decode(line, type=PackedRun)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RunError(
            f"{place} is not a run's record: {error}. Expected a line written by `rankwise study "
            "export`; studies/migrate_records.py, in the project's repository, updates older files."
        ) from None
    if packed.schema != SCHEMA:
        raise RunError(
            f"{place}: expected a record of version {SCHEMA}, got version {packed.schema}."
        )
    try:
        return packed, from_mapping({**packed.config, "out": str(folder)}, place)
    except ConfigError as error:
        raise RunError(str(error)) from None


def _write(packed: PackedRun, config: Config) -> Run:
    """Write a run's folder, which is there as a whole or not at all."""
    target = Path(config.out) / config.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=target.parent) as temporary:
        folder = RunFolder(config, Path(temporary) / config.name)
        with explain_write_errors("The runs before this one were written."):
            _fill(folder, packed)
            folder.path.rename(target)
    return load_run(target)


def _fill(folder: RunFolder, packed: PackedRun) -> None:
    folder.path.mkdir()
    folder.write_config()
    if packed.budget is not None:
        folder.write_budget(packed.budget)
    for name in ("epochs", "sessions", "layers"):
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in getattr(packed, name))
        write_atomically(folder.path / f"{name}.jsonl", lines)
    if packed.status != "unfinished":
        folder.end(packed.status, weights=False)
