"""Which lock files are held by a process, seen without touching them.

To try a lock is to hold it for a moment, and a training that begins in that moment would be
refused. Linux lists the locks that are held; elsewhere none are seen, and a reader has to go by
the times at which files were changed.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Lock", "held_locks", "is_held"]

Lock = tuple[int, int, int]  # the device's two numbers and the file's on it
_LIST = Path("/proc/locks")


def held_locks() -> frozenset[Lock]:
    """The files that a process holds a lock of; empty where the system does not list them."""
    try:
        lines = _LIST.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return frozenset()
    return frozenset(lock for line in lines if (lock := _parsed(line.split())) is not None)


def is_held(path: Path, locks: frozenset[Lock]) -> bool:
    """Whether a file is among the locks that are held."""
    if not locks:
        return False
    try:
        found = path.stat()
    except OSError:
        return False
    return (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino) in locks


def _parsed(words: list[str]) -> Lock | None:
    """From "1: FLOCK ADVISORY WRITE 6284 fe:00:2295426 0 EOF"; a waiting one has "->" after 1:."""
    place = next((word for word in words[4:] if word.count(":") == 2), None)
    if place is None or "->" in words:
        return None
    major, minor, file = place.split(":")
    return int(major, 16), int(minor, 16), int(file)
