"""The pages of a folder of runs as a web application, which reads the records and nothing else.

/                   the list of runs            /update                what is new on it
/run/NAME           a run's page                /update/run/NAME       what is new on it
/compare?run=NAME…  runs in the same charts     /update/compare?run=…  what is new on it
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from altair.utils.schemapi import debug_mode
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from rankwise.errors import ArgumentError, RunError
from rankwise.reports.html import CSP_SERVED, asset, served_html
from rankwise.reports.page import Link, Page
from rankwise.reports.watch.access import Access
from rankwise.reports.watch.desk import Desk, News
from rankwise.reports.watch.shelf import UnknownRunError
from rankwise.reports.watch.streaming import LEVEL, in_parts

__all__ = ["watch_app"]

Made = TypeVar("Made")

_HEADERS = {
    "Content-Security-Policy": CSP_SERVED,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MAIN = b"<main>"  # where a page's head ends
_HOME = Link("All runs", "/")
_FAILURE = "Something went wrong on the server; what it was is told where `rankwise watch` runs."
_ASSETS = ("page.css", "page.js", "vega.js")


def watch_app(folder: Path | str, *, host: str = "127.0.0.1", token: str | None = None) -> ASGIApp:
    """The application.

    Args:
        folder: The folder of runs.
        host: What the server is bound to.
        token: What has to be given with every request; None where nothing has to.
    """
    desk = Desk(folder)
    turn = threading.Lock()  # one answer at a time: no more runs are in memory than a page shows
    pages = Starlette(
        routes=[
            _page("/", turn, lambda _: desk.list()),
            _streamed(
                "/run/{name}",
                turn,
                head=lambda asked: desk.run_head(_name(asked)),
                make=lambda asked: desk.run(_name(asked)),
            ),
            _streamed(
                "/compare",
                turn,
                head=lambda asked: desk.compared_head(_names(asked)),
                make=lambda asked: desk.compared(_names(asked)),
            ),
            _news("/update", turn, lambda asked: desk.list_news(_seen(asked)[0])),
            _news(
                "/update/run/{name}",
                turn,
                lambda asked: desk.run_news(_name(asked), _seen(asked)[0]),
            ),
            _news(
                "/update/compare",
                turn,
                lambda asked: desk.compared_news(_names(asked), _seen(asked)),
            ),
            *(Route(f"/{name}", _asset) for name in _ASSETS),
        ],
        middleware=[Middleware(GZipMiddleware, compresslevel=LEVEL)],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    return Access(pages, host=host, token=token, headers=_HEADERS)


def _page(path: str, turn: threading.Lock, make: Callable[[Request], Page]) -> Route:
    """A page that is made at once."""

    def endpoint(request: Request) -> Response:
        with turn:
            return Response(_made_html(make, request), media_type="text/html")

    return Route(path, endpoint)


def _streamed(
    path: str,
    turn: threading.Lock,
    *,
    head: Callable[[Request], Page],
    make: Callable[[Request], Page],
) -> Route:
    """A page whose head is sent, and painted, while the rest of it is made."""

    def endpoint(request: Request) -> Response:
        with turn:
            start = _made_html(head, request).partition(_MAIN)[0]

        def parts() -> Iterator[bytes]:
            yield start + _MAIN
            with turn:
                rest = _rest(make, request).partition(_MAIN)[2]
            yield rest

        return in_parts(parts(), request)

    return Route(path, endpoint)


def _rest(make: Callable[[Request], Page], request: Request) -> bytes:
    """The page; or what went wrong, when it is too late to answer with another status."""
    try:
        return _made_html(make, request)
    except HTTPException as error:
        text = error.detail
    except Exception:
        logging.getLogger(__name__).exception("A page could not be made.")
        text = _FAILURE
    return _encoded(Page(title="", verdict=(text,), sections=()))


def _made_html(make: Callable[[Request], Page], request: Request) -> bytes:
    """A page; what its records lack is told on it."""
    # Altair would check every part of every chart against its schema, which takes most of the
    # time; our tests let it.
    with debug_mode(False):
        page, told = _made(make, request)
        return _encoded(replace(page, verdict=(*page.verdict, *told)))


def _news(path: str, turn: threading.Lock, make: Callable[[Request], News]) -> Route:
    """What is new on a page."""

    def endpoint(request: Request) -> Response:
        with turn:
            news, told = _made(make, request)
            if "verdict" in news:
                news = {**news, "verdict": [*news["verdict"], *told]}
            return Response(json.dumps(news), media_type="application/json")

    return Route(path, endpoint)


def _made(make: Callable[[Request], Made], request: Request) -> tuple[Made, list[str]]:
    """What was made, and what was warned of on the way."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        try:
            made = make(request)
        except UnknownRunError as error:
            raise HTTPException(404, str(error)) from None
        except ArgumentError as error:
            raise HTTPException(400, str(error)) from None
        except RunError as error:
            raise HTTPException(500, str(error)) from None
    return made, list(dict.fromkeys(str(warning.message) for warning in found))


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def _names(request: Request) -> list[str]:
    # Forms send a line's end in a name as two characters.
    sent = request.query_params.getlist("run")
    return list(dict.fromkeys(name.replace("\r\n", "\n") for name in sent))


def _seen(request: Request) -> list[str]:
    return request.query_params.getlist("seen") or [""]


def _html(page: Page, status: int = 200) -> Response:
    return Response(_encoded(page), status, media_type="text/html")


def _encoded(page: Page) -> bytes:
    # A name may hold half a character, which JSON can write and UTF-8 can't.
    return served_html(page).encode("utf-8", "replace")


def _refused(_: Request, error: Exception) -> Response:
    """A page with a sentence; whoever asked for news gets the same status."""
    status, text = (
        (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
    )
    texts = {404: "Not found", 400: "That can't be shown", 500: "This run can't be shown"}
    page = Page(title=texts.get(status, "Refused"), verdict=(text,), sections=(), back=_HOME)
    return _html(page, status)


def _failed(_: Request, __: Exception) -> Response:
    """The page for what should not happen; the server's own output has the details."""
    return _html(Page(title="That failed", verdict=(_FAILURE,), sections=(), back=_HOME), 500)


@cache
def _known_asset(name: str) -> tuple[bytes, str, str]:
    content, kind = asset(name)
    return content, kind, f'W/"{hashlib.sha256(content).hexdigest()[:16]}"'


def _asset(request: Request) -> Response:
    """A part of all pages; a browser keeps it, and asks whether it is still the same."""
    content, kind, tag = _known_asset(request.url.path.lstrip("/"))
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
