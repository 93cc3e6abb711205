"""What a reader does beside returning: files it opens, code it runs, warnings, memory, time."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import struct
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

import gguf.quants  # noqa: F401 - its import makes named tuples, by exec
import torch
import torch._dynamo  # some of PyTorch's refusals import these two
import torch._subclasses.schema_check_mode

import rankwise
from tests.fuzz.values import CANARY, OUTSIDE

MAX_CPU = 5.0  # seconds
MAX_MEMORY = 1 << 30  # bytes above what the process held before
_MEBIBYTE = 1 << 20
_PROJECT = Path(__file__).parents[2]
_INSTALLED = tuple(
    {
        str(Path(folder).resolve())
        for folder in (
            sys.prefix,
            sys.base_prefix,
            *(path for path in sysconfig.get_paths().values()),
            Path(rankwise.__file__).parent,
            _PROJECT,
        )
    }
)
# Where the system tells how many cores and how much memory there are.
_MACHINE = ("/proc/meminfo", "/sys/fs/cgroup")
# Python's own events for what no reader does.
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.startfile",
    "os.putenv",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.chmod",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.kill",
    "shutil.",
    "subprocess.",
    "pty.",
    "socket.",
    "urllib.",
    "http.",
    "ftplib.",
    "smtplib.",
    "webbrowser.",
    "pickle.find_class",
    "code.__new__",
)
# What the first use of a module does too.
_ON_IMPORT = ("ctypes.dlopen", "exec")
_LISTING = ("os.listdir", "os.scandir")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_IN_ANY_USE = 0x20 | 0x1 | 0x2 | 0x100  # opened, read, changed, created
_EVENT_HEADER = struct.Struct("iIII")


class ForbiddenError(Exception):
    """Raised in place of what a reader must not do."""


@dataclass
class Record:
    """What was seen while one input was read."""

    problems: list[str] = field(default_factory=list)
    cpu: float = 0.0
    memory: int = 0  # bytes by which the peak grew


class Watch:
    """Watches one process. Its audit hook can't be removed, and does nothing between inputs."""

    def __init__(self, folder: Path, *, memory: int = MAX_MEMORY) -> None:
        self.folder = folder
        self._memory = memory
        self.inputs = folder / "input"
        outside = folder / OUTSIDE
        for path in (self.inputs, outside):
            path.mkdir(parents=True, exist_ok=True)
        (outside / "secret.bin").write_bytes(bytes(range(64)) * 16)
        header = b'{"secret.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]}}'
        content = len(header).to_bytes(8, "little") + header + bytes(range(64))
        (outside / "model.safetensors").write_bytes(content)
        (outside / "config.json").write_bytes(b'{"num_attention_heads": 2}')
        self._notify = _start_notify(outside)
        self._roots = (str(self.inputs.resolve()), str(self.inputs), *_INSTALLED, *_MACHINE)
        self._record: Record | None = None
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, args: tuple[object, ...]) -> None:
        record = self._record
        if record is None:
            return
        if event == "open":
            problem = self._judge_open(*args)
        elif event in _LISTING:  # imports look into the current folder
            is_current = str(args[0]) == str(self.folder)
            problem = "" if is_current else self._judge_path(args[0], "lists the folder")
        elif event in _ON_IMPORT:
            problem = "" if _is_installed(args[0]) else f"runs {event} {str(args)[:200]}"
        elif event.startswith(_FORBIDDEN):
            problem = f"runs {event} {str(args)[:200]}"
        else:
            return
        if problem:
            record.problems.append(problem)
            raise ForbiddenError(problem)

    def _judge_open(self, path: object, mode: object, flags: object) -> str:
        writes = isinstance(flags, int) and flags & _WRITING
        if isinstance(path, int):
            return ""
        return f"writes to {path!r}" if writes else self._judge_path(path, "opens")

    def _judge_path(self, path: object, verb: str) -> str:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        place = os.path.realpath(str(path))
        inside = any(place == root or place.startswith(f"{root}/") for root in self._roots)
        return "" if inside else f"{verb} {str(path)!r}, which is outside of its folder"

    @contextmanager
    def observe(self) -> Iterator[Record]:
        """Watch until the block ends; whatever it raises passes."""
        record = Record()
        files = _list_names(self.folder)
        before = _list_names(self.inputs)
        threads = threading.active_count()
        old_hook, warn_always = sys.unraisablehook, torch.is_warn_always_enabled()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sys.unraisablehook = lambda unraisable: record.problems.append(
                f"an exception nobody could catch: {unraisable.exc_value!r}"
            )
            torch.set_warn_always(True)  # not once per process, so that a seed always does the same
            memory, cpu = _reset_peak(), time.process_time()
            self._record = record
            try:
                yield record
            finally:
                record.cpu = time.process_time() - cpu
                gc.collect()  # files that were left open are closed now, with a warning
                self._record = None
                record.memory = _get_peak() - memory
                sys.unraisablehook = old_hook
                torch.set_warn_always(warn_always)
        record.problems += [f"warns: {item.category.__name__}: {item.message}" for item in caught]
        self._check_limits(record)
        created = (_list_names(self.folder) - files) | (_list_names(self.inputs) - before)
        if created:
            record.problems.append(f"creates files: {sorted(created)}")
            _remove_canary(self.folder)
        if self._notify():
            record.problems.append(f"uses a file in {OUTSIDE}/, outside of its folder")
        if threading.active_count() > threads:
            record.problems.append("leaves a thread running")

    def _check_limits(self, record: Record) -> None:
        if record.cpu > MAX_CPU:
            record.problems.append(f"takes {record.cpu:.1f} s of CPU time")
        if record.memory > self._memory:
            record.problems.append(f"takes {record.memory // _MEBIBYTE} MiB of memory")


def _is_installed(code: object) -> bool:
    """Return whether code comes from a file of Python or of a package: a module is imported."""
    name = code.co_filename if isinstance(code, CodeType) else ""
    return name.startswith(("<frozen ", *_INSTALLED))


def _list_names(folder: Path) -> set[str]:
    return {entry.name for entry in os.scandir(folder)}


def _remove_canary(folder: Path) -> None:
    canary = folder / CANARY
    if canary.is_dir():
        canary.rmdir()
    else:
        canary.unlink(missing_ok=True)


def _reset_peak() -> int:
    """Forget the peak of memory, where the system can, and return what is held now."""
    if sys.platform == "linux":
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:  # noqa: PTH123 - for speed
            file.write(b"5")
    return _get_peak()


def _get_peak() -> int:
    """Return the largest amount of memory that this process held since then, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _start_notify(folder: Path) -> Callable[[], bool]:
    """Return a function that tells whether a file in the folder was used since the last call.

    The system itself is asked, where it is Linux: code in C and Rust opens files unseen by Python.
    """
    if sys.platform != "linux":
        return lambda: False
    libc = ctypes.CDLL(None)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0 or libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_ANY_USE) < 0:
        raise OSError("the system can't watch a folder (inotify)")

    def was_used() -> bool:
        used = False
        try:
            while data := os.read(descriptor, 1 << 16):
                used = used or _has_file_event(data)
        except BlockingIOError:
            return used
        return used

    return was_used


def _has_file_event(data: bytes) -> bool:
    """Return whether one of the system's events is about a file, not the folder itself."""
    place = 0
    while place < len(data):
        _, _, _, length = _EVENT_HEADER.unpack_from(data, place)
        if length:
            return True
        place += _EVENT_HEADER.size
    return False


@contextmanager
def limit_memory(limit: int = MAX_MEMORY) -> Iterator[None]:
    """Let this process have so many bytes more than now; larger requests fail.

    Without such a limit the system grants memory that a reader asks for and never touches.
    """
    if sys.platform != "linux":
        yield
        return
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmData:"))
    used = int(line.split()[1]) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
