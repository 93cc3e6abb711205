"""An answer in parts: each is sent, and can be read, while the next is made."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

__all__ = ["LEVEL", "in_parts"]

LEVEL = 1  # of gzip: pages are mostly numbers, and more takes long and saves little
_GZIP = 31  # zlib's word for gzip's head and checksum


def in_parts(parts: Iterator[bytes], request: Request) -> Response:
    """An HTML page in parts, packed where the browser can unpack it."""
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return StreamingResponse(parts, media_type="text/html")
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return StreamingResponse(_packed(parts), media_type="text/html", headers=headers)


def _packed(parts: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(LEVEL, wbits=_GZIP)
    for part in parts:
        yield packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()
