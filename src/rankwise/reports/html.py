"""A page → HTML: one file with all it needs, or the same page for a server that has its parts.

Everything that comes from a file goes through the template's escaping, or as JSON in which no "<"
is left; and the page's own policy forbids every script but the two it came with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

import altair as alt

import rankwise
from rankwise.charts.style import Chart, get_dataset, shows_one_layer
from rankwise.errors import MissingExtraError
from rankwise.reports.packing import pack_rows
from rankwise.reports.page import ChartPanel, Page, Table

try:
    import jinja2
    import vl_convert
    from markupsafe import Markup
except ImportError as error:
    raise MissingExtraError(error.name or "jinja2", "report", "Writing a report") from error

_FOLDER = Path(__file__).with_name("assets")
_MEDIA_TYPES = {"page.css": "text/css", "page.js": "text/javascript", "vega.js": "text/javascript"}
_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
)
SERVED_POLICY = (
    f"{_POLICY}; script-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'"
)


def render_page(page: Page) -> str:
    """Return the page as one file that needs nothing else, and no network.

    Example:
        >>> from rankwise.reports.page import Page
        >>> html = render_page(Page(title="<b>", summary=("Nothing to see.",), sections=()))
        >>> "<h1>&lt;b&gt;</h1>" in html
        True
    """
    vega, script, style = map(_trust, (_read_vega(), _read("page.js"), _read("page.css")))
    policy = f"{_POLICY}; form-action 'none'; script-src {_hash(vega)} {_hash(script)}"
    return _render(page, policy, style=style, vega=vega, script=script)


def encode_page(page: Page) -> bytes:
    """Return the same for a file; a name may hold half a character, which UTF-8 can't write."""
    return render_page(page).encode("utf-8", "replace")


def render_served_page(page: Page) -> bytes:
    """Return the page for a server that has `read_asset` and sends `SERVED_POLICY` with it."""
    return _render(page, policy="").encode("utf-8", "replace")


def read_asset(name: str) -> tuple[bytes, str]:
    """Return "page.css", "page.js" or "vega.js", which served pages load, and its media type."""
    media_type = _MEDIA_TYPES[name]
    text = _read_vega() if name == "vega.js" else _read(name)
    return text.encode(), f"{media_type}; charset=utf-8"


def render_table_rows(table: Table) -> str:
    """Return the rows of a table as HTML, for a page that is open already."""
    macro: Any = _load_templates().get_template("table.html").module
    return str(macro.rows(table))


def make_breakable(text: str) -> Markup:
    """Return a name as HTML that a browser may break after a dot, a slash or an underscore.

    Example:
        >>> make_breakable("layer1.0.conv<b>")
        Markup('layer1.<wbr>0.<wbr>conv&lt;b&gt;')
    """
    return Markup("<wbr>").join(re.split(r"(?<=[./_])(?=[^./_])", text))


def _render(page: Page, policy: str, **parts: str) -> str:
    numbers = {id(panel): number for number, panel in enumerate(page.charts)}
    template = _load_templates().get_template("page.html")
    return template.render(
        page=page,
        policy=policy,
        version=rankwise.__version__,
        content=_encode_json(_collect_content(page.charts, page.updates)),
        number=lambda panel: numbers[id(panel)],
        kind_of=lambda item: type(item).__name__,
        **parts,
    )


def _collect_content(panels: Iterable[ChartPanel], updates: str) -> dict[str, Any]:
    """All charts, their rows stored once under their names."""
    rows: dict[str, Any] = {}
    listed = list(panels)
    charts = [_strip_rows(panel.chart, rows) for panel in listed]
    spectra = {get_dataset(panel.chart) for panel in listed if shows_one_layer(panel.chart)}
    datasets = {name: pack_rows(values, in_logs=name in spectra) for name, values in rows.items()}
    return {"charts": charts, "datasets": datasets, "updates": updates}


def _strip_rows(chart: Chart, rows: dict[str, Any]) -> dict[str, Any]:
    """The chart without its rows, which are added to the others; as wide as there is room."""
    name, values = get_dataset(chart), cast("alt.InlineData", chart.data).values
    if rows.setdefault(name, values) is not values and rows[name] != values:
        raise ValueError(f"two charts of one page have different rows called {name!r}")
    bare = chart.copy(deep=False)
    bare.data = alt.NamedData(name=name)
    fit = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    # The tests check every chart against Vega-Lite's schema; to do so here takes half the time.
    return {**bare.to_dict(validate=False), **fit}


def _encode_json(content: object) -> Markup:
    """JSON that can be put in a script element: nothing in it can end the element."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - no tag is left in it


def _trust(text: str) -> Markup:
    """A script or style of ours or of Vega's, which is put in the page as it is."""
    if any(end in text.lower() for end in ("</script", "</style", "<!--")):
        raise ValueError("a script that can't be put in a page")
    return Markup(text)  # noqa: S704 - nothing in it comes from a user


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _read_vega() -> str:
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _load_templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = make_breakable
    environment.filters["brief"] = "{:.9g}".format  # enough to sort by
    return environment
