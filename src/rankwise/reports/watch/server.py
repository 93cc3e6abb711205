"""The pages of a folder of runs as a web application, which only reads records, and its server.

/                   the list of runs            /update                its update
/run/NAME           a run's page                /update/run/NAME       its update
/compare?run=NAME…  runs in the same charts     /update/compare?run=…  its update
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import secrets
import socket
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import uvicorn
from altair.utils.schemapi import debug_mode
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from rankwise.errors import ArgumentError, RunError
from rankwise.reports.html import SERVED_POLICY, read_asset, render_served_page
from rankwise.reports.page import Page, Update
from rankwise.reports.watch.folder import UnknownRunError
from rankwise.reports.watch.pages import HOME, WatchPages
from rankwise.reports.watch.security import AccessGuard, is_loopback

Result = TypeVar("Result")

_HEADERS = {
    "Content-Security-Policy": SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MAIN = b"<main>"  # where a page's head ends
_FAILURE = "Something went wrong on the server; see the output of `rankwise watch`."
_TITLES = {404: "Not found", 400: "That can't be shown", 500: "This run can't be shown"}
_ASSETS = ("page.css", "page.js", "vega.js")
_GZIP_LEVEL = 1  # pages are mostly numbers, and more takes long and saves little
_GZIP = 31  # zlib's code for gzip's header and checksum
_MOST_PORTS = 20  # to try, from the one that was asked for on
_SHORTEST_TOKEN = 8  # characters


class WatchServer:
    """A server that is bound to its port, and answers once it runs.

    `port` is the first of those to try; 0 for any. Beyond this machine a token is generated where
    none is given.
    """

    def __init__(self, folder: Path, *, host: str, port: int, token: str | None) -> None:
        if token is not None and len(token) < _SHORTEST_TOKEN:
            raise ArgumentError(f"Expected a token of {_SHORTEST_TOKEN} characters or more.")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ArgumentError("Expected a token of plain ASCII characters, as headers take them.")
        self.is_open = not is_loopback(host)
        self.token = token or (secrets.token_urlsafe(24) if self.is_open else None)
        self.host = host
        self.socket = _bind(host, port)
        self.port: int = self.socket.getsockname()[1]
        self._app = make_app(folder, host=host, token=self.token)

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


def make_app(folder: Path | str, *, host: str = "127.0.0.1", token: str | None = None) -> ASGIApp:
    """Return the web application for a folder of runs and a server that is bound to `host`."""
    pages = WatchPages(folder)
    lock = threading.Lock()  # one answer at a time: no more runs are in memory than a page shows
    app = Starlette(
        routes=[
            _route_page("/", lock, lambda _: pages.make_list()),
            _route_streamed(
                "/run/{name}",
                lock,
                make_head=lambda request: pages.make_run_head(_read_name(request)),
                make=lambda request: pages.make_run(_read_name(request)),
            ),
            _route_streamed(
                "/compare",
                lock,
                make_head=lambda request: pages.make_comparison_head(_read_names(request)),
                make=lambda request: pages.make_comparison(_read_names(request)),
            ),
            _route_update("/update", lock, lambda r: pages.update_list(_read_seen(r)[0])),
            _route_update(
                "/update/run/{name}",
                lock,
                lambda request: pages.update_run(_read_name(request), _read_seen(request)[0]),
            ),
            _route_update(
                "/update/compare",
                lock,
                lambda r: pages.update_comparison(_read_names(r), _read_seen(r)),
            ),
            *(Route(f"/{name}", _send_asset) for name in _ASSETS),
        ],
        middleware=[Middleware(GZipMiddleware, compresslevel=_GZIP_LEVEL)],
        exception_handlers={HTTPException: _refuse, Exception: _fail},
    )
    return AccessGuard(app, host=host, token=token, headers=_HEADERS)


def _route_page(path: str, lock: threading.Lock, make: Callable[[Request], Page]) -> Route:
    """A page that is made at once."""

    def endpoint(request: Request) -> Response:
        with lock:
            return Response(_render(make, request), media_type="text/html")

    return Route(path, endpoint)


def _route_streamed(
    path: str,
    lock: threading.Lock,
    *,
    make_head: Callable[[Request], Page],
    make: Callable[[Request], Page],
) -> Route:
    """A page whose head is sent, and painted, while the rest of it is made."""

    def endpoint(request: Request) -> Response:
        with lock:
            head = _render(make_head, request).partition(_MAIN)[0]

        def render_parts() -> Iterator[bytes]:
            yield head + _MAIN
            with lock:
                rest = _render_rest(make, request).partition(_MAIN)[2]
            yield rest

        return _stream(render_parts(), request)

    return Route(path, endpoint)


def _route_update(path: str, lock: threading.Lock, make: Callable[[Request], Update]) -> Route:
    def endpoint(request: Request) -> Response:
        with lock:
            update, messages = _call(make, request)
            if "summary" in update:
                update = {**update, "summary": [*update["summary"], *messages]}
            return Response(json.dumps(update), media_type="application/json")

    return Route(path, endpoint)


def _stream(parts: Iterator[bytes], request: Request) -> Response:
    """An HTML page in parts, each compressed by itself where the browser accepts it."""
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return StreamingResponse(parts, media_type="text/html")
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return StreamingResponse(_compress(parts), media_type="text/html", headers=headers)


def _compress(parts: Iterator[bytes]) -> Iterator[bytes]:
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP)
    for part in parts:
        yield compressor.compress(part) + compressor.flush(zlib.Z_SYNC_FLUSH)
    yield compressor.flush()


def _render_rest(make: Callable[[Request], Page], request: Request) -> bytes:
    """The page; or what went wrong, when it is too late to answer with another status."""
    try:
        return _render(make, request)
    except HTTPException as error:
        text = error.detail
    except Exception:
        logging.getLogger(__name__).exception("A page could not be made.")
        text = _FAILURE
    return render_served_page(Page(title="", summary=(text,), sections=()))


def _render(make: Callable[[Request], Page], request: Request) -> bytes:
    """A page, with the warnings about its records."""
    # Altair would check every part of every chart against its schema, which takes most of the
    # time; our tests let it.
    with debug_mode(False):
        page, messages = _call(make, request)
        return render_served_page(replace(page, summary=(*page.summary, *messages)))


def _call(make: Callable[[Request], Result], request: Request) -> tuple[Result, list[str]]:
    """The result, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            result = make(request)
        except UnknownRunError as error:
            raise HTTPException(404, str(error)) from None
        except ArgumentError as error:
            raise HTTPException(400, str(error)) from None
        except RunError as error:
            raise HTTPException(500, str(error)) from None
    return result, list(dict.fromkeys(str(warning.message) for warning in caught))


def _read_name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def _read_names(request: Request) -> list[str]:
    # Forms send the line ends of a name as two characters.
    names = request.query_params.getlist("run")
    return list(dict.fromkeys(name.replace("\r\n", "\n") for name in names))


def _read_seen(request: Request) -> list[str]:
    return request.query_params.getlist("seen") or [""]


def _refuse(_: Request, error: Exception) -> Response:
    """A page with a sentence; requests for updates get the same status."""
    if not isinstance(error, HTTPException):
        return _fail(_, error)
    title = _TITLES.get(error.status_code, "Refused")
    page = Page(title=title, summary=(error.detail,), sections=(), back=HOME)
    return Response(render_served_page(page), error.status_code, media_type="text/html")


def _fail(_: Request, __: Exception) -> Response:
    """The page for what should not happen; the server's own output has the details."""
    page = Page(title="That failed", summary=(_FAILURE,), sections=(), back=HOME)
    return Response(render_served_page(page), 500, media_type="text/html")


@cache
def _load_asset(name: str) -> tuple[bytes, str, str]:
    content, media_type = read_asset(name)
    return content, media_type, f'W/"{hashlib.sha256(content).hexdigest()[:16]}"'


def _send_asset(request: Request) -> Response:
    """A part of all pages; a browser keeps it, and asks whether it is still the same."""
    content, media_type, tag = _load_asset(request.url.path.lstrip("/"))
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


def _bind(host: str, port: int) -> socket.socket:
    for number in range(port, min(port + _MOST_PORTS, 65536)) if port else (0,):
        listener = _listen(host, number)
        if listener is not None:
            return listener
    raise ArgumentError(f"No port from {port} on is free; choose another --port.")


def _listen(host: str, port: int) -> socket.socket | None:
    """A socket that listens; None where the port is in use or reserved."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise ArgumentError(f"There is no host {host!r} to listen on.") from None
    listener = socket.socket(family, kind, protocol)
    try:
        # Not on Windows, where it lets two servers share a port.
        if hasattr(socket, "AF_UNIX"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise ArgumentError(f"Can't listen on {host}: {error.strerror}.") from None
    return listener
