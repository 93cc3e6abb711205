"""Files that survive: whole or not at all, checked when read, the one before kept.

A state is a pair of files: `state-00012-000000.pt`, which `torch.load(weights_only=True)` reads,
and beside it a JSON file with its SHA-256. Only with both, and in agreement, it counts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from rankwise._io import write_atomically
from rankwise.errors import RunError

__all__ = ["append_line", "forget_after", "guarded", "latest_state", "save_state", "write"]

_KEPT = 2  # the newest state and the one before
_ENTRIES = {"epoch", "batch", "parts"}  # of every state
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write(path: Path, content: bytes) -> None:
    """Write a file so that after a crash there is either the old one or the new one."""
    write_atomically(path, content)


def append_line(path: Path, line: str) -> None:
    """Append a line; where that fails, the file is as long as before."""
    # Without a buffer, of which closing would write the rest behind what was cut off.
    with path.open("ab+", buffering=0) as file:
        length = file.tell()
        file.seek(max(0, length - 1))
        # A line whose end was never written must not swallow this one.
        rest = (b"" if file.read(1) in (b"", b"\n") else b"\n") + line.encode() + b"\n"
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), length)
            raise


def save_state(folder: Path, epoch: int, batch: int, state: dict[str, Any]) -> None:
    """Save what a run needs to go on at an epoch and batch; of older states keep one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"state-{epoch:05d}-{batch:06d}.pt"
    write(path, content)
    note = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    write(path.with_suffix(".json"), json.dumps(note).encode())
    kept = _states(folder)[-_KEPT:]
    stale = [p for p in folder.glob("state-*") if p.with_suffix(".pt") not in kept]
    for old in (*stale, *folder.glob(".*.tmp")):  # of a process that was killed while writing
        old.unlink(missing_ok=True)


def forget_after(folder: Path, epoch: int, batch: int) -> None:
    """Remove states after a place, which were broken, and what killed processes left.

    Else a broken one would be kept as "the one before" instead of one that is whole.
    """
    last = f"state-{epoch:05d}-{batch:06d}"
    broken = [path for path in folder.glob("state-*") if path.stem > last]
    for path in (*broken, *folder.glob(".*.tmp")):
        path.unlink(missing_ok=True)


def latest_state(folder: Path) -> dict[str, Any] | None:
    """The newest state that is whole; None if there is none. Broken ones are warned of."""
    found = (_load(path) for path in reversed(_states(folder)))
    return next((state for state in found if state is not None), None)


@contextlib.contextmanager
def guarded(safe: str) -> Iterator[None]:
    """Turn a full or failing disk into a sentence that says what is safe."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            reason, advice = "The disk is full", "Make room"
        else:
            reason, advice = f"Writing failed ({error})", "Put that right"
        raise RunError(
            f"{reason}. {safe} {advice}, then give the same command again to go on."
        ) from error


def _load(path: Path) -> dict[str, Any] | None:
    try:
        content = path.read_bytes()
        note = json.loads(path.with_suffix(".json").read_bytes())
        if hashlib.sha256(content).hexdigest() != note["sha256"]:
            raise ValueError("its checksum does not match")
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        if not isinstance(state, dict) or not state.keys() >= _ENTRIES:
            raise ValueError("it holds something else")
    except UnpicklingError:  # whose text advises to read the file unsafely
        _warn(path, "it holds more than numbers, and was not read")
    except Exception as error:  # noqa: BLE001 - what torch makes of broken files is not documented
        _warn(path, str(error).partition("\n")[0] or type(error).__name__)
    else:
        return state
    return None


def _warn(path: Path, reason: str) -> None:
    text = f"{path} is broken ({reason}); going on from the one before."
    warnings.warn(text, UserWarning, stacklevel=4)


def _states(folder: Path) -> list[Path]:
    """State files that were finished, the oldest first; one without its note never was."""
    return sorted(p for p in folder.glob("state-*.pt") if p.with_suffix(".json").exists())
