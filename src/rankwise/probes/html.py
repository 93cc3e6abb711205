"""A probe and a diff as HTML fragments for notebooks, readable on light and dark pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rankwise._text import format_percent, sanitize
from rankwise.probes.diff_text import align_changes, format_changes
from rankwise.probes.summary_text import format_summary
from rankwise.probes.text import (
    find_bar_scale,
    format_metric,
    format_ranks,
    format_shape,
    format_skipped,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rankwise.probes.diff import ProbeDiff
    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.probes.network_figures import NetworkFigures

# Colours are half transparent and text inherits its own, so that either page colour shows through.
_STYLE = """<style>
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
_BLUE = "64,144,220"


def format_probe_html(
    layers: Sequence[LayerMetrics],
    figures: NetworkFigures,
    *,
    title: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Return the probed layers as a table with bars, a summary above, skipped tensors below.

    Everything that comes from a file is escaped; the fragment loads nothing.

    Example:
        >>> import rankwise
        >>> probe = rankwise.Probe("<b>.pt", ())
        >>> print(format_probe_html((), probe.figures, title=probe.source).splitlines()[-1])
        <div class="rankwise"><p><b>&lt;b&gt;.pt</b></p><p>The model holds no tensors.</p></div>
    """
    parts = [f"<p><b>{escape(sanitize(title))}</b></p>"] if title else []
    parts.append(_format_paragraphs(format_summary(layers, figures, width=None)))
    probed = [layer for layer in layers if layer.is_probed]
    if probed:
        titles = ("layer", "shape", "rank", "s", "κ", "q", "noise")
        scale = find_bar_scale(probed, "stable_rank")
        parts.append(_format_table(titles, (_format_row(layer, scale) for layer in probed)))
    head, _, groups = format_skipped(layers, width=None).partition("\n")
    if groups:
        parts.append(
            f"<details><summary>{escape(head)}</summary><pre>{escape(groups)}</pre></details>"
        )
    elif head:
        parts.append(_format_paragraphs(head))
    parts += [f"<p>{escape(sanitize(note))}</p>" for note in notes]
    return _wrap_fragment("".join(parts))


def format_diff_html(diff: ProbeDiff) -> str:
    """Return the table of the layers that changed, and a summary below it."""
    table = ""
    if lines := align_changes(diff, width=None):
        titles, *rows = ([cell.text.strip() for cell in line[::2]] for line in lines)
        cells = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
        table = _format_table(titles, (f"<tr>{row}</tr>" for row in cells))
    return _wrap_fragment(table + _format_paragraphs(format_changes(diff, width=None)))


def _wrap_fragment(body: str) -> str:
    return f'{_STYLE}\n<div class="rankwise">{body}</div>'


def _format_table(titles: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    return (
        '<div class="rankwise-rows"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _format_paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in text.split("\n"))


def _format_row(layer: LayerMetrics, s_scale: float) -> str:
    cells = [
        f"<td>{escape(sanitize(layer.name))}</td>",
        f"<td>{format_shape(layer.shape)}</td><td>{format_ranks(layer)}</td>",
        _format_bar(format_metric(layer.stable_rank), (layer.stable_rank or 0.0) / s_scale),
        f"<td>{format_metric(layer.condition)}</td>",
        f"<td>{format_metric(layer.quality)}{'*' * layer.has_inflated_quality}</td>",
        f"<td>{escape(format_percent(layer.noise_fraction))}</td>",
    ]
    css = ' class="rankwise-empty"' if layer.is_empty else ""
    return f"<tr{css}>{''.join(cells)}</tr>"


def _format_bar(text: str, share: float) -> str:
    end = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    style = f"background-image:linear-gradient(to right,rgba({_BLUE},.4) {end},transparent {end})"
    return f'<td style="{style};min-width:5em">{escape(text)}</td>'
