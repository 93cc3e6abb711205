"""Being part of a Ray cluster, for as long as there is work for it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rankwise
from rankwise.errors import ConfigError, RunError
from rankwise.lab.devices import _allowed_cores

__all__ = ["check_address", "joined", "ray_package"]

_STORE = 100_000_000  # bytes for what passes between tasks; only options and events do
_PATIENCE = 10  # seconds for a cluster to answer at all


def ray_package() -> Any:  # noqa: ANN401
    """Ray, whose own annotations don't follow what it does with functions."""
    try:
        import ray  # noqa: PLC0415
    except ImportError:
        raise rankwise.MissingExtraError("ray", "ray", "Working on a cluster") from None
    return ray


def check_address(address: str) -> None:
    """Refuse what is no address of a cluster, without looking for it.

    Raises:
        ConfigError: Saying what is one.
    """
    if address.startswith("ray://"):
        raise ConfigError(
            f"Expected a cluster that this machine is part of, got {address!r}: through Ray's "
            "client nothing can be heard of a run that has begun. Start the study on one of the "
            "cluster's nodes, with the address auto."
        )
    if address not in ("auto", "local") and not _host_and_port(address):
        raise ConfigError(f"Expected the address auto, local or HOST:PORT, got {address!r}.")


def _host_and_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    if host and port.isascii() and port.isdigit() and int(port) < 1 << 16:
        return host.strip("[]"), int(port)
    return None


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Be part of a cluster meanwhile; a process that is part of one already stays so.

    Raises:
        RunError: If the cluster can't be reached.
    """
    ray = ray_package()
    if ray.is_initialized():
        yield
        return
    with _quiet():
        try:
            with _own_signals():
                _join(address)
            yield
        finally:
            ray.shutdown()


def _join(address: str) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # to report its use is not our choice
        options |= {"num_cpus": _allowed_cores(), "object_store_memory": _STORE}
        options |= {"include_dashboard": False}
    known = _host_and_port(address)
    try:
        if known:  # Ray itself would try for minutes
            socket.create_connection(known, timeout=_PATIENCE).close()
        ray_package().init(address, **options)
    except Exception as error:  # Ray raises plain ones too, as on a slow start
        reason = str(error).partition("\n")[0].rstrip(".")
        raise RunError(
            f"The Ray cluster {address!r} can't be used: {reason}. Start the study on one of its "
            "nodes, with Ray's token if it asks for one; `ray status` says whether this machine is "
            "a node."
        ) from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process' answer to SIGTERM, which Ray takes over as it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:  # one that was set outside Python can't be given back
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Ray prints on the output when a worker dies: here that is an event."""
    inside = ray_package()._private.worker
    prints = inside.print_to_stdstream
    inside.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        inside.print_to_stdstream = prints
