"""A probe as a self-contained piece of HTML, for notebooks; readable on light and dark pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rankwise._text import format_percent, sanitize
from rankwise.probes.show.summary import format_skipped, format_summary, lifted
from rankwise.probes.show.table import number, ranks, scale, shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwise.probes.results import LayerMetrics

__all__ = ["fragment", "layers_html", "paragraphs", "table_html"]

# Colours are half transparent and text inherits its own, so that either page colour shows through.
STYLE = """<style>
.rankwise{font-size:13px;line-height:1.45;text-align:left}
.rankwise .rankwise-rows{max-height:32em;overflow:auto;margin:.5em 0}
.rankwise table{border-collapse:collapse;margin:0;font-size:inherit;color:inherit;
 font-variant-numeric:tabular-nums}
.rankwise th,.rankwise td{padding:.15em .7em;text-align:right;white-space:nowrap;
 border-bottom:1px solid rgba(128,128,128,.3);background-color:transparent;color:inherit}
.rankwise th:first-child,.rankwise td:first-child{text-align:left;font-family:monospace}
.rankwise tr.rankwise-empty td{opacity:.55}
.rankwise p{margin:.3em 0}
.rankwise pre{white-space:pre-wrap;margin:.3em 0;background:none;color:inherit;font-size:12px}
</style>"""


def layers_html(
    layers: Sequence[LayerMetrics],
    quality: float | None,
    coverage: float,
    *,
    title: str = "",
    notes: Sequence[str] = (),
) -> str:
    """The probed layers as a table with bars, the summary above it, what was skipped below.

    Everything that comes from a file is escaped; the fragment loads nothing.

    Args:
        layers: Rows of a probe.
        quality: Network quality Q, None where nothing was probed.
        coverage: The share of all parameters that stand in probed layers.
        title: The probe's source.
        notes: Sentences to set below.

    Example:
        >>> print(layers_html([], None, 0.0, title="<b>.pt").splitlines()[-1])
        <div class="rankwise"><p><b>&lt;b&gt;.pt</b></p><p>The model holds no tensors.</p></div>
    """
    parts = [f"<p><b>{_text(title)}</b></p>"] if title else []
    parts.append(paragraphs(format_summary(layers, quality, coverage, width=None)))
    probed = [layer for layer in layers if layer.probed]
    if probed:
        heads = ("layer", "shape", "rank", "s", "κ", "q", "noise")
        most = scale(probed, "stable_rank"), scale(probed, "quality")
        parts.append(table_html(heads, [_row(layer, *most) for layer in probed]))
    skipped = format_skipped(layers, width=None)
    if skipped:
        head, _, groups = skipped.partition("\n")
        parts.append(
            f"<details><summary>{escape(head)}</summary><pre>{escape(groups)}</pre></details>"
            if groups
            else paragraphs(head)
        )
    parts += [f"<p>Note: {_text(note)}</p>" for note in notes]
    return fragment("".join(parts))


def fragment(body: str) -> str:
    """A body of escaped HTML with the style it needs."""
    return f'{STYLE}\n<div class="rankwise">{body}</div>'


def table_html(heads: Sequence[str], rows: Sequence[str]) -> str:
    """A table of ready rows (`<tr>…</tr>`) that scrolls where it is long.

    Example:
        >>> table_html(["q"], ["<tr><td>1</td></tr>"]).count("<tr>")
        2
    """
    head = "".join(f"<th>{escape(title)}</th>" for title in heads)
    body = "".join(rows)
    return (
        '<div class="rankwise-rows"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def paragraphs(text: str) -> str:
    """Printable text as HTML, a paragraph a line."""
    return "".join(f"<p>{escape(line)}</p>" for line in text.split("\n"))


def _row(layer: LayerMetrics, most_s: float, most_q: float) -> str:
    quality = number(layer.quality) + "*" * lifted(layer)
    cells = [
        f"<td>{_text(layer.name)}</td><td>{shape(layer.shape)}</td><td>{ranks(layer)}</td>",
        _bar(number(layer.stable_rank), (layer.stable_rank or 0.0) / most_s, "64,144,220"),
        f"<td>{number(layer.condition)}</td>",
        _bar(quality, (layer.quality or 0.0) / most_q, "60,170,110"),
        f"<td>{escape(format_percent(layer.noise_fraction))}</td>",
    ]
    css = ' class="rankwise-empty"' if layer.is_empty else ""
    return f"<tr{css}>{''.join(cells)}</tr>"


def _bar(text: str, share: float, rgb: str) -> str:
    filled = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    style = (
        f"background-image:linear-gradient(to right,rgba({rgb},.4) {filled},transparent {filled})"
    )
    return f'<td style="{style};min-width:5em">{escape(text)}</td>'


def _text(text: str) -> str:
    return escape(sanitize(text))
