"""Checks of host, method and token around a web application, and safe headers.

The host's name is checked because a page of another site can make a browser ask for its own name
at our address (DNS rebinding). Beyond this machine a token is required.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from html import escape
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound to
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:\[\]]+))(?::\d*)?")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that is bound to this host."""
    return host.lower() in LOOPBACK


class AccessGuard:
    """Answer only requests for this host, by GET or HEAD, and with the token if there is one.

    `host` is what the server is bound to. A browser must ask for this name or a loopback name; any
    name will do where the server is bound to all addresses. `headers` are sent with every answer
    that does not set them itself.
    """

    def __init__(
        self, app: ASGIApp, *, host: str, token: str | None, headers: Mapping[str, str]
    ) -> None:
        self.app = app
        self.hosts = None if host in _EVERYWHERE else LOOPBACK | {host.lower()}
        self.token = token
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refuse(Request(scope)) or self.app
        await answer(scope, receive, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        """The response in place of the application's; None where the request is allowed."""
        if self.hosts is not None and _read_host(request) not in self.hosts:
            return PlainTextResponse(
                "Use the name that this server listens on, such as localhost.", 421
            )
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("This server is read-only.", 405, {"Allow": "GET, HEAD"})
        if self.token is None:
            return None
        if self._is_right(request.query_params.get("token", "")):
            return self._set_cookie(request)
        if self._is_right(_read_bearer(request)) or self._is_right(
            request.cookies.get(_name_cookie(request), "")
        ):
            return None
        return PlainTextResponse(
            "A token is required: open the address that `rankwise watch` printed, or send the "
            'token in the header "Authorization: Bearer".',
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), (self.token or "").encode())

    def _set_cookie(self, request: Request) -> Response:
        """Keep the token in a cookie, and lead to the address without it.

        By a page that refreshes itself: after a redirection, browsers withhold a strict cookie from
        those who came by a link on another site, such as a chat or a terminal in a browser.
        """
        kept = [(k, v) for k, v in request.query_params.multi_items() if k != "token"]
        path = "/" + quote(request.url.path.lstrip("/"), safe="/%")  # "//name" would lead elsewhere
        address = path + (f"?{urlencode(kept)}" if kept else "")
        link = f'<!doctype html><title>rankwise</title><a href="{escape(address)}">To the runs</a>'
        answer = HTMLResponse(link, headers={"Refresh": f"0; url={address}"})
        answer.set_cookie(_name_cookie(request), self.token or "", httponly=True, samesite="strict")
        return answer


def _read_host(request: Request) -> str:
    """The requested name without its port; "" for what is not a name."""
    match = _HOST.fullmatch(request.headers.get("host", "").lower())
    return (match[1] or match[2]) if match else ""


def _read_bearer(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _name_cookie(request: Request) -> str:
    """Cookies are shared by all ports of a host, and each server has a token of its own."""
    server = request.scope.get("server") or ("", 0)
    return f"rankwise-{server[1]}"
