"""What surrounds a run: its folder is held, and what the machine can't do becomes a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from filelock import FileLock, Timeout

from rankwise.errors import RunError
from rankwise.lab.records import RunFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["held", "understood"]


@contextmanager
def held(folder: RunFolder, fabric: Fabric) -> Iterator[None]:
    """Hold a run's folder, so that no second process writes to it; a killed one lets go."""
    problem, lock = "", None
    if fabric.is_global_zero:
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder.path / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            problem = f"Another process is at {folder.path}. Wait for it, or choose another --out."
        except OSError as error:
            problem = f"{folder.path} can't be written to: {error.strerror}."
    problem = fabric.broadcast(problem)
    if problem:
        raise RunError(problem)
    try:
        yield
    finally:
        if lock is not None:
            if not folder.was_begun:
                folder.remove()
            lock.release()


@contextmanager
def understood(fabric: Fabric) -> Iterator[None]:
    """Turn what a machine can't do into a sentence: too little memory, a process that is gone."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or "can't allocate" in text:
            raise RunError(
                f"There is not enough memory ({text.splitlines()[0] if text else 'no more'}). "
                "Choose a smaller batch_size, width or image_size."
            ) from error
        lost = isinstance(error, torch.distributed.DistError) or "gloo" in text
        if fabric.world_size > 1 and lost:
            raise RunError(
                "Another process of this run has ended. Its own message says why; give the same "
                "command again to go on."
            ) from error
        raise
