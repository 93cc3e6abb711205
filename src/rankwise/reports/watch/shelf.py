"""The runs in a folder, read only: a summary of each for a list, and a whole one when asked for.

A summary takes the options, the outcome and the last line of the epochs, and is kept until one of
these files changes. Whole runs are not kept: they are read for a page and let go.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import RunError
from rankwise.lab.config import Config
from rankwise.lab.records import (
    EpochRecord,
    Outcome,
    Run,
    decode_config,
    decode_record,
    is_run,
    load_run,
)
from rankwise.lab.scores import main_score
from rankwise.reports.watch.locks import Lock, held_locks, is_held

__all__ = ["Shelf", "Summary", "UnknownRunError"]

_FILES = ("config.json", "outcome.json", "epochs.jsonl", "sessions.jsonl")
_LARGEST = 2**20  # bytes of a file that is read whole for a summary; such files have some hundred
_TAIL = 2**16  # bytes at the end of epochs.jsonl that hold its last line; a line has some hundred
_FARTHEST = 2**24  # bytes from its end that a whole line is looked for in
_QUIET = 60.0  # seconds without a new record, at least, before a run counts as stopped

Stamp = tuple[tuple[int, int], ...]  # of each file: when it was changed, and its size


class UnknownRunError(RunError, KeyError):
    """No run of the folder has this name."""

    def __str__(self) -> str:
        return "There is no such run in this folder."


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in a line.

    Attributes:
        name: Its folder's, as text.
        state: "running", "finished", "diverged", "stopped", or "unreadable".
        config: Its options, where they can be read.
        last: The last epoch's record; None before there is one.
        changed: When its records last changed, in seconds since 1970.
        starts: Grows with every start: the size of the file that has a line for each.
        problem: Why it can't be read.
    """

    name: str
    state: str
    config: Config | None
    last: EpochRecord | None
    changed: float
    starts: int
    problem: str = ""

    @property
    def epoch(self) -> int:
        """How many epochs are recorded."""
        return 0 if self.last is None else self.last.epoch

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("finished", "diverged")

    @property
    def score(self) -> tuple[str, float | None]:
        """The score that the run is judged by, and its value on the test set."""
        name = main_score([self.last])
        return name, None if self.last is None else self.last.test.get(name)


@dataclass(frozen=True, slots=True)
class _Read:
    """What the files said when their stamp was this."""

    stamp: Stamp
    config: Config | None
    status: str
    last: EpochRecord | None
    problem: str = ""


class Shelf:
    """The runs in a folder. Nothing is written, and only folders found in it are read.

    Args:
        folder: The folder of runs, as `--out` names it.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).resolve()
        self._read: dict[str, _Read] = {}  # as many as there are runs, each a few kilobytes

    def summaries(self) -> list[Summary]:
        """All runs, those whose records changed last first."""
        locks = held_locks()
        paths = {name: path for name, path in self._folders().items() if is_run(path)}
        found = [self._summary(name, path, locks) for name, path in paths.items()]
        self._read = {name: read for name, read in self._read.items() if name in paths}
        return sorted(found, key=lambda summary: (-summary.changed, summary.name))

    def summary(self, name: str) -> Summary:
        """One run.

        Raises:
            UnknownRunError: If there is none of this name.
        """
        return self._summary(name, self._path(name), held_locks())

    def load(self, name: str) -> Run:
        """A whole run, as its folder tells it now.

        Raises:
            UnknownRunError: If there is none of this name.
            RunError: If it can't be read.
        """
        path = self._path(name)
        self._check_inside(path)
        return load_run(path)

    def _path(self, name: str) -> Path:
        path = self._folders().get(name)
        if path is None or not is_run(path):
            raise UnknownRunError(name)
        return path

    def _folders(self) -> dict[str, Path]:
        """All folders by their names; bytes in a name that are no text become escapes."""
        try:
            with os.scandir(self.folder) as entries:
                folders = sorted(entry.path for entry in entries if entry.is_dir())
        except OSError:  # the folder is gone; it may come back
            return {}
        return {_text(os.path.basename(path)): Path(path) for path in folders}  # noqa: PTH119

    def _check_inside(self, path: Path) -> None:
        if not path.resolve().is_relative_to(self.folder):
            raise RunError("It is a link to a place outside of this folder, and is not followed.")

    def _summary(self, name: str, path: Path, locks: frozenset[Lock]) -> Summary:
        stamp = tuple(_stamp(path / file) for file in _FILES)
        read = self._read.get(name)
        if read is None or read.stamp != stamp:
            read = self._read[name] = self._look(path, stamp)
        changed = max(mtime for mtime, _ in stamp) / 1e9
        state = read.status
        if read.problem:
            state = "unreadable"
        elif state == "unfinished":
            held = is_held(path / ".lock", locks)
            state = "running" if held or _is_recent(changed, read.last) else "stopped"
        return Summary(name, state, read.config, read.last, changed, stamp[-1][1], read.problem)

    def _look(self, path: Path, stamp: Stamp) -> _Read:
        try:
            self._check_inside(path)
            config = decode_config(_read_small(path / "config.json"), "config.json")
            outcome = None
            if (path / "outcome.json").is_file():
                outcome = decode_record(_read_small(path / "outcome.json"), Outcome)
            last = _last_epoch(path / "epochs.jsonl")
        except (OSError, RunError, ValueError) as error:
            return _Read(stamp, None, "", None, _reason(error))
        status = "unfinished" if outcome is None else outcome.status
        return _Read(stamp, config, status, last)


def _text(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _is_recent(changed: float, last: EpochRecord | None) -> bool:
    """Whether a record came within the time that the next one would take: three epochs' at most."""
    epoch = 0.0 if last is None else last.seconds.total
    return time.time() - changed < max(_QUIET, 3 * epoch)


def _read_small(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError(f"{path.name} has more than {_LARGEST} bytes")
    return text


def _last_epoch(path: Path) -> EpochRecord | None:
    """The last whole record, from the end of the file, as `load_run` would find it."""
    if not path.is_file():  # to open a pipe would be to wait for what nobody writes
        return None
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        length, found = _TAIL, None
        while found is None:
            start = file.seek(max(0, size - length))
            text = file.read(size - start)
            found = _last_of(text.partition(b"\n")[2] if start else text)  # a line may be cut
            if start == 0 or length >= _FARTHEST:
                break
            length *= 2
    return found


def _last_of(text: bytes) -> EpochRecord | None:
    """The last line that is a record; one without its end is being written."""
    for line in reversed(text.rpartition(b"\n")[0].splitlines()):
        record = decode_record(line, EpochRecord)
        if record is not None:
            return record
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"Its records can't be read: {error.strerror}."
    if isinstance(error, RunError):
        return str(error)
    return f"Its records can't be read: {error}".rstrip(".") + "."
