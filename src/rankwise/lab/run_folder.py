"""The folder of a run while it is trained: lock, records, saved states and weights.

Files are written completely or not at all. A saved state is a pair of files,
`state-00012-000000.pt`, which `torch.load(weights_only=True)` reads, and a JSON file with its
SHA-256; it counts only if both are there and agree.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from filelock import FileLock, Timeout
from torch import Tensor

import rankwise
from rankwise._io import write_atomically
from rankwise.errors import RunError
from rankwise.lab.config import Config
from rankwise.lab.records import (
    BudgetRecord,
    EpochRecord,
    LayerColumns,
    LayersRecord,
    Outcome,
    Run,
    Session,
    decode_config,
    encode_config,
    load_run,
    read_lines,
    read_record,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_STATES_KEPT = 2  # the newest and the one before
_STATE_ENTRIES = {"epoch", "batch", "parts"}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunLockedError(RunError):
    """Another process is training the same run."""


class RunFolder:
    """The folder of a run while it is being written to."""

    def __init__(self, config: Config, path: Path | None = None) -> None:
        self.path = Path(config.out) / config.name if path is None else path
        self.config = config

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, and its weights are there or were left out on purpose."""
        outcome = read_record(self.path / "outcome.json", Outcome)
        if outcome is None:
            return False
        return not outcome.weights or (self.path / "weights.safetensors").is_file()

    @property
    def budget(self) -> float | None:
        """The seconds that the run was given at its start."""
        record = read_record(self.path / "budget.json", BudgetRecord)
        return None if record is None else record.seconds

    def check_config(self) -> None:
        """Raise a RunError if the folder holds a run with other options."""
        path = self.path / "config.json"
        if not path.is_file():
            return
        try:
            present = decode_config(path.read_bytes(), str(path))
        except RunError:
            return  # it is written anew
        if present.identity() != self.config.identity():
            raise RunError(f"{self.path} holds a run with other options. Choose another --out.")

    def start(self, session: Session) -> None:
        """Record that a run starts or continues here."""
        self.write_config()
        append_line(self.path / "sessions.jsonl", msgspec.json.encode(session))

    def write_config(self) -> None:
        """Write the options; the place of a run may have changed since it was started."""
        write_atomically(self.path / "config.json", encode_config(self.config))

    def write_budget(self, seconds: float) -> None:
        """Keep how long the run may take, which must not change when it continues."""
        write_atomically(self.path / "budget.json", msgspec.json.encode(BudgetRecord(seconds)))

    def add(self, epoch: EpochRecord, layers: LayerColumns) -> None:
        """Record an epoch; its line in epochs.jsonl comes last and makes it count."""
        line = LayersRecord(epoch.epoch, layers)
        append_line(self.path / "layers.jsonl", msgspec.json.encode(line))
        append_line(self.path / "epochs.jsonl", msgspec.json.encode(epoch))

    def cut_after(self, epoch: int) -> None:
        """Drop broken lines and the records of epochs that will be run again, with a warning."""
        self._cut("epochs.jsonl", EpochRecord, epoch)
        self._cut("layers.jsonl", LayersRecord, epoch)

    def _cut(self, name: str, kind: type[EpochRecord] | type[LayersRecord], epoch: int) -> None:
        path = self.path / name
        records = read_lines(path, kind)
        kept = [record for record in records if record.epoch <= epoch]
        if len(kept) < len(records):
            _warn(f"{path}: epoch {epoch + 1} was recorded but not saved, and is run again.")
        if len(kept) < epoch:
            _warn(f"{path}: {epoch - len(kept)} of {epoch} epochs have no record.")
        write_atomically(path, b"".join(msgspec.json.encode(record) + b"\n" for record in kept))

    def end(self, status: str, *, weights: bool = True) -> None:
        """Record how the run ended, and whether its weights are in the folder."""
        # A run that ends again, since its weights were lost, may have lost a record as well.
        before = read_record(self.path / "outcome.json", Outcome)
        recorded = [line.epoch for line in read_lines(self.path / "epochs.jsonl", EpochRecord)]
        epochs = max([0 if before is None else before.epochs or 0, *recorded])
        outcome = {"status": status, "epochs": epochs, "weights": weights}
        record = msgspec.convert(outcome, Outcome)
        write_atomically(self.path / "outcome.json", msgspec.json.encode(record))

    def save_weights(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write the weights of all networks as safetensors; tied ones under each of their names."""
        try:
            from safetensors.torch import save  # noqa: PLC0415
        except ImportError:
            raise rankwise.MissingExtraError("safetensors", "lab", "Saving weights") from None
        named = {
            f"{part}.{name}" if part else name: value.detach().cpu().contiguous().clone()
            for part, weights in parts.items()
            for name, value in weights.items()
        }
        # The format sorts its tensors by name; this keeps the network's own order.
        content = save(named, metadata={"order": json.dumps(list(named))})
        write_atomically(self.path / "weights.safetensors", content)

    def read(self) -> Run:
        """Return the run so far."""
        return load_run(self.path)


@contextlib.contextmanager
def lock_run(folder: RunFolder, fabric: Fabric) -> Iterator[None]:
    """Keep other processes from writing to a run; a killed process gives its lock back."""
    problem: RunError | None = None
    lock = FileLock(folder.path / ".lock")
    if fabric.is_global_zero:
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
            folder.check_config()
        except Timeout:
            problem = RunLockedError(
                f"Another process is training {folder.path}. Wait for it, or choose another --out."
            )
        except (FileExistsError, NotADirectoryError):
            problem = RunError(f"Expected a folder as --out, got the file {folder.path.parent}.")
        except OSError as error:
            problem = RunError(f"{folder.path} can't be written to: {error.strerror}.")
        except RunError as error:
            problem = error
    try:
        problem = fabric.broadcast(problem)
        if problem is not None:
            raise problem
        yield
    finally:
        if lock.is_locked:
            _remove_if_empty(folder.path)
            lock.release()


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder of a run that was refused before it started."""
    if all(path.name == ".lock" for path in folder.iterdir()):
        (folder / ".lock").unlink(missing_ok=True)
        folder.rmdir()


def append_line(path: Path, line: bytes) -> None:
    """Append a line; where that fails, the file is as long as before."""
    # Without a buffer, of which closing would write the rest behind what was cut off.
    with path.open("ab+", buffering=0) as file:
        length = file.tell()
        file.seek(max(0, length - 1))
        # A line whose end was never written must not swallow this one.
        rest = (b"" if file.read(1) in (b"", b"\n") else b"\n") + line + b"\n"
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), length)
            raise


def save_state(folder: Path, epoch: int, batch: int, state: dict[str, Any]) -> None:
    """Save what a run needs to continue at an epoch and batch; of older states keep one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"state-{epoch:05d}-{batch:06d}.pt"
    write_atomically(path, content)
    note = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    write_atomically(path.with_suffix(".json"), json.dumps(note).encode())
    kept = _list_states(folder)[-_STATES_KEPT:]
    stale = [p for p in folder.glob("state-*") if p.with_suffix(".pt") not in kept]
    for old in (*stale, *folder.glob(".*.tmp")):  # of a process that was killed while writing
        old.unlink(missing_ok=True)


def load_state(folder: Path) -> dict[str, Any] | None:
    """Load the newest complete state; None if there is none. Warn of broken ones."""
    states = (_read_state(path) for path in reversed(_list_states(folder)))
    return next((state for state in states if state is not None), None)


def remove_states_after(folder: Path, epoch: int, batch: int) -> None:
    """Remove the states after a place, which were broken, and what killed processes left.

    Otherwise a broken one would be kept as "the one before" instead of a complete one.
    """
    last = f"state-{epoch:05d}-{batch:06d}"
    broken = [path for path in folder.glob("state-*") if path.stem > last]
    for path in (*broken, *folder.glob(".*.tmp")):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def explain_write_errors(safe: str) -> Iterator[None]:
    """Turn a full or failing disk into a RunError that says what is safe."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            reason, advice = "The disk is full", "Free some space"
        else:
            reason, advice = f"Writing failed ({error})", "Resolve that"
        raise RunError(
            f"{reason}. {safe} {advice}, then repeat the command to continue."
        ) from error


def _list_states(folder: Path) -> list[Path]:
    """List the state files that were finished, the oldest first; each has its note."""
    return sorted(p for p in folder.glob("state-*.pt") if p.with_suffix(".json").exists())


def _read_state(path: Path) -> dict[str, Any] | None:
    try:
        content = path.read_bytes()
        note = json.loads(path.with_suffix(".json").read_bytes())
        if hashlib.sha256(content).hexdigest() != note["sha256"]:
            raise ValueError("its checksum does not match")
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        if not isinstance(state, dict) or not state.keys() >= _STATE_ENTRIES:
            raise ValueError("it holds something else")
    except UnpicklingError:  # whose text advises to read the file unsafely
        reason = "it holds more than numbers, and was not read"
    except Exception as error:  # noqa: BLE001 - what torch raises for broken files is undocumented
        reason = str(error).partition("\n")[0] or type(error).__name__
    else:
        return state
    _warn(f"{path} is broken ({reason}); continuing from the one before.")
    return None


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)
