"""Devices, processes and precision, by Lightning Fabric."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import rankwise
from rankwise._machine import count_cores
from rankwise.errors import ConfigError, RunError
from rankwise.lab.config import Config

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Fabric's own 64 bits end at a network's output, which it rounds to 32: the network is made wide
# before Fabric sees it, and Fabric leaves it alone.
PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "64": "32-true"}
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # as malloc.h numbers them


def launch_fabric(config: Config) -> Fabric:
    """Launch Fabric: with the processes of torchrun, or new ones where several are asked for."""
    try:
        from lightning_fabric import Fabric  # noqa: PLC0415
    except ImportError:
        raise rankwise.MissingExtraError("lightning-fabric", "lab", "Training") from None
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it greets on every start
    outside = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun says how many there are
    devices = max(config.devices, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    nodes = max(1, outside // devices)
    with warnings.catch_warnings():
        # Fabric advises on data loaders and clusters that are not used here.
        warnings.simplefilter("ignore")
        try:
            fabric = Fabric(
                accelerator=config.accelerator,
                devices=devices,
                num_nodes=nodes,
                strategy="ddp" if devices * nodes > 1 else "auto",
                precision=PRECISIONS[config.precision],  # type: ignore[arg-type]
            )
            fabric.launch()
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"{config.devices} × accelerator {config.accelerator!r} can't be used: {error}"
            ) from error
    return fabric


def average_over_processes(fabric: Fabric, value: Tensor) -> Tensor:
    """Return a tensor's mean over all processes; the tensor itself where there is one."""
    if fabric.world_size == 1:
        return value
    return fabric.all_reduce(value.clone(), reduce_op="mean")  # type: ignore[return-value]


def max_over_processes(fabric: Fabric, value: float) -> float:
    """Return the largest of all processes' values, on which they then agree bit for bit."""
    if fabric.world_size == 1:
        return value
    every = torch.tensor(value, dtype=torch.float64, device=fabric.device)
    return float(fabric.all_reduce(every, reduce_op="max"))  # type: ignore[arg-type]


def broadcast_buffers(fabric: Fabric, network: nn.Module) -> None:
    """Give all processes the buffers of the first: on CPUs each has its own batch statistics."""
    if fabric.world_size > 1:
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, 0)


def set_threads(fabric: Fabric) -> int:
    """Use only the cores that this process may use; return the number of threads.

    torch starts a thread for every core of the machine, also where a container may use only two
    of them. OMP_NUM_THREADS, where it is set, is respected.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", str(fabric.world_size)))
        torch.set_num_threads(max(1, min(_first_threads(), count_cores()) // here))
    return torch.get_num_threads()


@functools.cache
def _first_threads() -> int:
    """Return what torch chose itself; a second run must not divide what the first one set."""
    return torch.get_num_threads()


def keep_memory(fabric: Fabric) -> None:
    """Keep the memory that a step frees for the next one, in this whole process.

    glibc gives it back after each batch and fetches it anew, page by page: up to a tenth of a step
    on a CPU. MALLOC_* in the environment is respected.
    """
    if sys.platform != "linux" or fabric.device.type != "cpu":
        return
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)  # large tensors come from the heap too
        mallopt(_TRIM_THRESHOLD, -1)  # whose top is never given back


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that clocks show what was done and not what was queued."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


@contextmanager
def explain_machine_errors(fabric: Fabric) -> Iterator[None]:
    """Turn too little memory, or a lost process, into a RunError that says what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or "can't allocate" in text:
            raise RunError(
                f"There is not enough memory ({text.splitlines()[0] if text else 'no details'}). "
                "Choose a smaller batch_size, width or image_size."
            ) from error
        lost = isinstance(error, torch.distributed.DistError) or "gloo" in text
        if fabric.world_size > 1 and lost:
            raise RunError(
                "Another process of this run has ended. Its own message says why; repeat the "
                "command to continue."
            ) from error
        raise
