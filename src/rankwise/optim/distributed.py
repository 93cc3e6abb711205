"""What the processes of a distributed run tell each other: small plain data, never pickled."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from rankwise.errors import ExchangeError

__all__ = ["anyone", "everyone_tells", "expecting_answers", "process_count", "process_number"]


def process_count() -> int:
    """How many processes train together; 1 where nothing is distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_number() -> int:
    """Which of them this one is."""
    return dist.get_rank() if process_count() > 1 else 0


def anyone(here: bool, *, share: bool) -> bool:
    """Whether something is true here or, where processes share, on any of them."""
    return any(everyone_tells(here)) if share and process_count() > 1 else here


def everyone_tells(said: object) -> list[Any]:
    """Sends plain data to all processes and returns what each of them sent, by its number.

    Raises:
        ExchangeError: If a process died or did not answer within the process group's timeout.
    """
    text = bytearray(json.dumps(said).encode())
    payload = torch.frombuffer(text, dtype=torch.uint8).to(_device())
    with expecting_answers():
        sizes = [int(size) for size in _gathered(torch.tensor([len(text)], device=payload.device))]
        padded = payload.new_zeros(max(sizes))
        padded[: len(text)] = payload
        texts = [gathered.cpu().numpy().tobytes() for gathered in _gathered(padded)]
    return [json.loads(text[:size]) for text, size in zip(texts, sizes, strict=True)]


@contextlib.contextmanager
def expecting_answers() -> Iterator[None]:
    """Says in plain words what it means if other processes do not take part."""
    try:
        yield
    except RuntimeError as error:  # all of torch.distributed's errors are
        raise ExchangeError(
            "The processes could not exchange their layers' stable ranks. Has one of them died, or "
            f"not called epoch_step()? ({' '.join(str(error).split())})"
        ) from error


def _gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    everything = [torch.empty_like(tensor) for _ in range(process_count())]
    dist.all_gather(everything, tensor)
    return everything


def _device() -> torch.device:
    """Where the default process group can send from; the CPU, if it can."""
    pairs = str(dist.get_backend_config()).split(",")  # as in "cpu:gloo,cuda:nccl"
    devices = [pair.partition(":")[0] for pair in pairs]
    return torch.device("cpu" if "cpu" in devices else devices[0])
