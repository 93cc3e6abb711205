"""The links of a built site: each leads to a page, an anchor or a file that is there.

The generator checks the links between pages in Markdown. This checks the HTML, with images, links
in generated pages and what a page loads. Addresses of other sites are not asked, only read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches when it shows the page.
_LOADS = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


@dataclass
class _Page(HTMLParser):
    """The anchors of a page, its links and what it loads."""

    anchors: set[str] = field(default_factory=lambda: {"", "__skip"})
    links: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif (tag, name) in _LOADS and value:
                self.loads.add(value)
            elif name == "href" and value:
                self.links.add(value)


def find_broken_links(site: Path) -> Iterator[str]:
    """Yield a sentence for every broken link, and for everything that another site would serve."""
    pages = {path.relative_to(site).as_posix(): _Page() for path in sorted(site.rglob("*.html"))}
    for name, page in pages.items():
        page.feed((site / name).read_text(encoding="utf-8"))
    for name, page in pages.items():
        for link in sorted(page.loads | page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if problem := _judge_address(link, loaded=link in page.loads):
                    yield f"{name}: {problem}"
                continue
            path = posixpath.join("/", posixpath.dirname(name), unquote(parts.path))
            target = posixpath.normpath(path).lstrip("/") if parts.path else name
            if not (site / target).is_file():
                yield f"{name}: {link} leads to no file of the site"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {link} leads to no heading of {target}"


def _judge_address(link: str, *, loaded: bool) -> str:
    """Return what is wrong with an address of another site."""
    parts = urlsplit(link)
    if parts.scheme in ("data", "mailto"):
        return ""
    if loaded:
        return f"{link} would be loaded from another site"
    if parts.scheme != "https" or "." not in parts.netloc:
        return f"{link}: expected an address that begins with https:// and a host"
    return ""
