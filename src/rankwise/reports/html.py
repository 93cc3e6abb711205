"""A page → HTML: one file with all it needs, or the same page for a server that has its parts.

Everything that comes from a file goes through the template's escaping, or as JSON in which no "<"
is left; and the page's own policy forbids every script but the two it came with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import altair as alt

import rankwise
from rankwise.charts.style import Chart, get_dataset
from rankwise.errors import MissingExtraError
from rankwise.reports.page import Page, Picture, Table

try:
    import jinja2
    import vl_convert
    from markupsafe import Markup
except ImportError as error:
    raise MissingExtraError(error.name or "jinja2", "report", "Writing a report") from error

__all__ = ["CSP_SERVED", "asset", "packed", "page_bytes", "page_html", "rows_html", "served_html"]

_FOLDER = Path(__file__).with_name("assets")
_PARTS = {"page.css": "text/css", "page.js": "text/javascript", "vega.js": "text/javascript"}
_ALWAYS = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
)
CSP_SERVED = (
    f"{_ALWAYS}; script-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'"
)


def page_html(page: Page) -> str:
    """The page as one file that needs nothing else, and no network.

    Example:
        >>> from rankwise.reports.page import Page
        >>> html = page_html(Page(title="<b>", verdict=("Nothing to see.",), sections=()))
        >>> "<h1>&lt;b&gt;</h1>" in html
        True
    """
    vega, script, style = (_own(text) for text in (_vega(), _text("page.js"), _text("page.css")))
    policy = f"{_ALWAYS}; form-action 'none'; script-src {_digest(vega)} {_digest(script)}"
    return _render(page, policy, style=style, vega=vega, script=script)


def page_bytes(page: Page) -> bytes:
    """The same for a file; a name may hold half a character, which UTF-8 can't write."""
    return page_html(page).encode("utf-8", "replace")


def served_html(page: Page) -> str:
    """The page for a server that also serves `asset` and sends `CSP_SERVED` with it."""
    return _render(page, policy="")


def asset(name: str) -> tuple[bytes, str]:
    """A part that served pages load: "page.css", "page.js" or "vega.js"; and its media type.

    Raises:
        KeyError: If there is no such part.
    """
    kind = _PARTS[name]
    text = _vega() if name == "vega.js" else _text(name)
    return text.encode(), f"{kind}; charset=utf-8"


def rows_html(table: Table) -> str:
    """The rows of a table, for a page that is open already."""
    macro: Any = _templates().get_template("table.html").module
    return str(macro.rows(table))


def packed(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows column by column, which takes a third of the space; six digits are enough to draw.

    Example:
        >>> packed([{"layer": "a", "q": 0.12345678}, {"layer": "b"}])
        {'fields': ['layer', 'q'], 'columns': [['a', 'b'], [0.123457, None]]}
    """
    listed = list(rows)
    fields = list(dict.fromkeys(name for row in listed for name in row))
    columns = [[_short(row.get(name)) for row in listed] for name in fields]
    return {"fields": fields, "columns": columns}


def _render(page: Page, policy: str, **parts: str) -> str:
    numbers = {id(picture): number for number, picture in enumerate(page.pictures)}
    return (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            policy=policy,
            version=rankwise.__version__,
            content=_json(_content(page.pictures, page.updates)),
            number=lambda picture: numbers[id(picture)],
            kind_of=lambda item: type(item).__name__,
            **parts,
        )
    )


def _content(pictures: Iterable[Picture], updates: str) -> dict[str, Any]:
    """All figures, their rows stored once under their names."""
    rows: dict[str, Any] = {}
    figures = [_specification(picture.chart, rows) for picture in pictures]
    datasets = {name: packed(found) for name, found in rows.items()}
    return {"figures": figures, "datasets": datasets, "updates": updates}


def _specification(figure: Chart, rows: dict[str, Any]) -> dict[str, Any]:
    """The figure without its rows, which are put to the others; as wide as there is room."""
    name, values = get_dataset(figure), cast("alt.InlineData", figure.data).values
    if rows.setdefault(name, values) is not values and rows[name] != values:
        raise ValueError(f"two figures of one page have different rows called {name!r}")
    bare = figure.copy(deep=False)
    bare.data = alt.NamedData(name=name)
    fit = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    # The tests check every figure against Vega-Lite's schema; to do so here takes half the time.
    return {**bare.to_dict(validate=False), **fit}


def _short(value: object) -> object:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _json(content: object) -> Markup:
    """JSON that can stand in a script element: nothing in it can end the element."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - no tag is left in it


def _own(text: str) -> Markup:
    """A script or style of ours or of Vega's, which stands in the page as it is."""
    if any(end in text.lower() for end in ("</script", "</style", "<!--")):
        raise ValueError("a script that can't stand in a page")
    return Markup(text)  # noqa: S704 - nothing in it comes from a user


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _vega() -> str:
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
