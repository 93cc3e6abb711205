"""The runs in a folder, read only: a summary of each for a list, and a whole run when asked for.

A summary needs the options, the outcome and the last line of the epochs, and is cached until one of
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
from rankwise.lab.scores import find_main_score

_FILES = ("config.json", "outcome.json", "epochs.jsonl", "sessions.jsonl")
_LARGEST = 2**20  # bytes of a file that is read whole for a summary; such files have some hundred
_TAIL = 2**16  # bytes at the end of epochs.jsonl that hold its last line; a line has some hundred
_LONGEST_TAIL = 2**24  # bytes from its end that a whole line is searched for in
_QUIET = 60.0  # seconds without a new record, at least, before a run counts as stopped
_LOCKS = Path("/proc/locks")

Stamp = tuple[tuple[int, int], ...]  # of each file: when it was changed, and its size
Lock = tuple[int, int, int]  # the device's two numbers and the file's on it


class UnknownRunError(RunError, KeyError):
    """No run of the folder has this name."""

    def __str__(self) -> str:
        return "There is no such run in this folder."


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a line."""

    name: str
    state: str  # "running", "finished", "diverged", "stopped", or "unreadable"
    config: Config | None
    last: EpochRecord | None
    changed: float  # when its records last changed, in seconds since 1970
    starts: int  # grows with every start: the size of the file that has a line for each
    problem: str = ""

    @property
    def epoch(self) -> int:
        """The last recorded epoch."""
        return 0 if self.last is None else self.last.epoch

    @property
    def loss(self) -> float | None:
        """The last recorded loss, in the test where known, else in training."""
        if self.last is None:
            return None
        test = self.last.test.get("loss")
        return self.last.train.get("loss") if test is None else test

    @property
    def has_ended(self) -> bool:
        """Whether no more records will come."""
        return self.state in ("finished", "diverged")

    @property
    def score(self) -> tuple[str, float | None]:
        """The score that the run is judged by, and its value on the test set."""
        name = find_main_score([self.last])
        return name, None if self.last is None else self.last.test.get(name)


@dataclass(frozen=True, slots=True)
class _CachedFiles:
    """What the files said when they had this stamp."""

    stamp: Stamp
    config: Config | None
    status: str
    last: EpochRecord | None
    problem: str = ""


class RunsFolder:
    """The runs in a folder. Nothing is written, and only folders listed in it are read."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).resolve()
        self._cache: dict[str, _CachedFiles] = {}  # one for each run, each a few kilobytes

    def summarize_all(self) -> list[RunSummary]:
        """Return all runs, those whose records changed last first."""
        locks = list_locks()
        paths = {name: path for name, path in self._list_folders().items() if is_run(path)}
        runs = [self._summarize(name, path, locks) for name, path in paths.items()]
        self._cache = {name: files for name, files in self._cache.items() if name in paths}
        return sorted(runs, key=lambda run: (-run.changed, run.name))

    def summarize(self, name: str) -> RunSummary:
        """Return one run; raise UnknownRunError if there is none of this name."""
        return self._summarize(name, self._find(name), list_locks())

    def load(self, name: str) -> Run:
        """Read a whole run; raise RunError if it can't be, UnknownRunError if there is none."""
        path = self._find(name)
        self._check_inside(path)
        return load_run(path)

    def _find(self, name: str) -> Path:
        path = self._list_folders().get(name)
        if path is None or not is_run(path):
            raise UnknownRunError(name)
        return path

    def _list_folders(self) -> dict[str, Path]:
        """All folders by their names; bytes in a name that are not text become escapes."""
        try:
            with os.scandir(self.path) as entries:
                paths = sorted(Path(entry.path) for entry in entries if entry.is_dir())
        except OSError:  # the folder is gone; it may come back
            return {}
        return {os.fsencode(p.name).decode("utf-8", "backslashreplace"): p for p in paths}

    def _check_inside(self, path: Path) -> None:
        if not path.resolve().is_relative_to(self.path):
            raise RunError("It is a link to a folder outside of this one, and is not followed.")

    def _summarize(self, name: str, path: Path, locks: frozenset[Lock]) -> RunSummary:
        stamp = tuple(_stamp(path / file) for file in _FILES)
        files = self._cache.get(name)
        if files is None or files.stamp != stamp:
            files = self._cache[name] = self._read(path, stamp)
        changed = max(mtime for mtime, _ in stamp) / 1e9
        state = "unreadable" if files.problem else files.status
        if state == "unfinished":
            is_running = is_locked(path / ".lock", locks) or _is_recent(changed, files.last)
            state = "running" if is_running else "stopped"
        return RunSummary(
            name, state, files.config, files.last, changed, stamp[-1][1], files.problem
        )

    def _read(self, path: Path, stamp: Stamp) -> _CachedFiles:
        try:
            self._check_inside(path)
            config = decode_config(_read_small(path / "config.json"), "config.json")
            outcome = None
            if (path / "outcome.json").is_file():
                outcome = decode_record(_read_small(path / "outcome.json"), Outcome)
            last = _read_last_epoch(path / "epochs.jsonl")
        except (OSError, RunError, ValueError) as error:
            return _CachedFiles(stamp, None, "", None, _describe_error(error))
        status = "unfinished" if outcome is None else outcome.status
        return _CachedFiles(stamp, config, status, last)


def list_locks() -> frozenset[Lock]:
    """Return the files that a process has locked; empty where the system does not list them.

    To try a lock is to hold it for a moment, and a training that begins in that moment would be
    refused. Linux lists the locks; elsewhere only the files' times of change are left.
    """
    try:
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return frozenset()
    return frozenset(lock for line in lines if (lock := _parse_lock(line.split())) is not None)


def is_locked(path: Path, locks: frozenset[Lock]) -> bool:
    """Return whether a file is among the locks."""
    if not locks:
        return False
    try:
        status = path.stat()
    except OSError:
        return False
    return (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino) in locks


def _parse_lock(words: list[str]) -> Lock | None:
    """From "1: FLOCK ADVISORY WRITE 6284 fe:00:2295426 0 EOF"; a waiting one has "->" after 1:."""
    place = next((word for word in words[4:] if word.count(":") == 2), None)
    if place is None or "->" in words:
        return None
    major, minor, file = place.split(":")
    return int(major, 16), int(minor, 16), int(file)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


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


def _read_last_epoch(path: Path) -> EpochRecord | None:
    """The last whole record, from the end of the file, as `load_run` would find it."""
    if not path.is_file():  # opening a pipe would wait for what nobody writes
        return None
    with path.open("rb") as file:
        size, length = file.seek(0, os.SEEK_END), _TAIL
        while True:
            start = file.seek(max(0, size - length))
            text = file.read(size - start)
            if start:  # the first line may be cut
                text = text.partition(b"\n")[2]
            # A last line without its end is being written.
            for line in reversed(text.rpartition(b"\n")[0].splitlines()):
                record = decode_record(line, EpochRecord)
                if record is not None:
                    return record
            if start == 0 or length >= _LONGEST_TAIL:
                return None
            length *= 2


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"Its records can't be read: {error.strerror}."
    if isinstance(error, RunError):
        return str(error)
    return f"Its records can't be read: {error}".rstrip(".") + "."
