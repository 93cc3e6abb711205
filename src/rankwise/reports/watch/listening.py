"""A server on a port of this machine, until it is interrupted."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from pathlib import Path
from urllib.parse import quote

import uvicorn

from rankwise.errors import ArgumentError
from rankwise.reports.watch.access import is_loopback
from rankwise.reports.watch.server import watch_app

__all__ = ["Watcher"]

_TRIED = 20  # ports, from the one that was asked for on
_SHORTEST = 8  # characters of a token that is given


class Watcher:
    """A server that is bound to its port, and answers once it runs.

    Args:
        folder: The folder of runs.
        host: The name or address to listen on.
        port: The port, or the first of those to try; 0 for any.
        token: What visitors have to give. Beyond this machine one is made up where none is given.

    Raises:
        ArgumentError: If the host is none of this machine's, all ports are taken, or the token is
            too short.
    """

    def __init__(self, folder: Path, *, host: str, port: int, token: str | None) -> None:
        if token is not None and len(token) < _SHORTEST:
            raise ArgumentError(f"Expected a token of {_SHORTEST} characters or more.")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ArgumentError("Expected a token of plain ASCII characters, as headers take them.")
        self.is_open = not is_loopback(host)
        self.token = token or (secrets.token_urlsafe(24) if self.is_open else None)
        self.host = host
        self.socket = _bound(host, port)
        self.port: int = self.socket.getsockname()[1]
        self._app = watch_app(folder, host=host, token=self.token)

    @property
    def address(self) -> str:
        """Where a browser finds the list of runs."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound to
        host = everywhere.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        token = f"?token={quote(self.token, safe='')}" if self.token else ""
        return f"http://{shown}:{self.port}/{token}"

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        config = uvicorn.Config(
            self._app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=200,
            timeout_graceful_shutdown=2,
        )
        # Ctrl-C is how this is meant to end; uvicorn passes it on when all is closed.
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[self.socket])


def _bound(host: str, port: int) -> socket.socket:
    """A socket on the first free port."""
    for number in range(port, min(port + _TRIED, 65536)) if port else (0,):
        found = _listening(host, number)
        if found is not None:
            return found
    raise ArgumentError(f"No port from {port} on can be listened on; choose another --port.")


def _listening(host: str, port: int) -> socket.socket | None:
    """A socket that listens; None where the port is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise ArgumentError(f"There is no host {host!r} to listen on.") from None
    found = socket.socket(family, kind, protocol)
    try:
        # Not on Windows, where it lets two servers share a port.
        if hasattr(socket, "AF_UNIX"):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise ArgumentError(f"{host} can't be listened on: {error.strerror}.") from None
    return found
