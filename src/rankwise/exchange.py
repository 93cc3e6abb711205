"""What the processes of a distributed run tell each other: small plain data, never pickled."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from rankwise.errors import ExchangeError

__all__ = ["everyone_tells", "process_count", "process_number"]


def process_count() -> int:
    """How many processes train together; 1 where nothing is distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_number() -> int:
    """Which of them this one is."""
    return dist.get_rank() if process_count() > 1 else 0


def everyone_tells(said: object) -> list[Any]:
    """Sends plain data to all processes and returns what each of them sent, by its number.

    Raises:
        ExchangeError: If a process died or did not answer within the process group's timeout.
    """
    payload = torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8, device=_device())
    try:
        sizes = _gathered(torch.tensor([payload.numel()], device=payload.device))
        longest = max(int(size) for size in sizes)
        padded = payload.new_zeros(longest)
        padded[: payload.numel()] = payload
        texts = _gathered(padded)
    except RuntimeError as error:  # torch's DistError is one
        raise ExchangeError(
            "The processes could not exchange their layers' stable ranks. Has one of them died, or "
            f"not called epoch_step()? ({' '.join(str(error).split())})"
        ) from error
    return [
        json.loads(bytes(text[: int(size)].tolist()))
        for text, size in zip(texts, sizes, strict=True)
    ]


def _gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    everything = [torch.empty_like(tensor) for _ in range(process_count())]
    dist.all_gather(everything, tensor)
    return everything


def _device() -> torch.device:
    """Where the default process group's backend can send from."""
    if dist.get_backend() in ("gloo", "mpi") or "cpu:" in str(dist.get_backend_config()):
        return torch.device("cpu")
    return torch.device(torch.accelerator.current_accelerator() or "cpu")
