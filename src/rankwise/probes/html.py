"""A probe and a diff as HTML fragments for notebooks, readable on light and dark pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rankwise._text import format_count, format_percent, sanitize
from rankwise.probes.diff_text import align_changes, format_changes
from rankwise.probes.groups import LayerGroup, get_row, group_layers
from rankwise.probes.summary_text import format_summary
from rankwise.probes.text import (
    MOST_ROWS,
    find_bar_scale,
    format_metric,
    format_ranks,
    format_shape,
    format_skipped,
    name_item,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rankwise.probes.diff import ProbeDiff
    from rankwise.probes.groups import Item
    from rankwise.probes.layer_metrics import LayerMetrics
    from rankwise.probes.network_figures import NetworkFigures
    from rankwise.probes.text import Line

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
.rankwise small{opacity:.7}
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

    Experts of one role and shape are one row with medians, and their ranges below these.
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
        items = group_layers(probed)
        rows = (_format_row(item, scale) for item in items[:MOST_ROWS])
        parts.append(_format_table(titles, rows))
        if (hidden := len(items) - MOST_ROWS) > 0:
            parts.append(f"<p>… {format_count(hidden, 'more layer')}</p>")
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
    lines = align_changes(diff, top=MOST_ROWS, width=None)
    return format_lines_html("", lines, format_changes(diff, width=None))


def format_lines_html(above: str, lines: Sequence[Line], below: str) -> str:
    """Return a table that `align_cells` has laid out, with sentences above and below it."""
    table = ""
    if lines:
        titles, *rows = ([cell.text.strip() for cell in line[::2]] for line in lines)
        cells = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
        table = _format_table(titles, (f"<tr>{row}</tr>" for row in cells))
    sentences = (_format_paragraphs(text) if text else "" for text in (above, below))
    return _wrap_fragment(table.join(sentences))


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


def _format_row(item: Item, s_scale: float) -> str:
    row = get_row(item)

    def cell(format_value: Callable[[LayerMetrics], str]) -> str:
        text = escape(format_value(row))
        if isinstance(item, LayerGroup):
            text += f"<br><small>{escape(format_value(item.low))} … "
            text += f"{escape(format_value(item.high))}</small>"
        return text

    s = cell(lambda row: format_metric(row.stable_rank))
    cells = [
        f"<td>{escape(name_item(item))}</td>",
        f"<td>{format_shape(row.shape)}</td><td>{cell(format_ranks)}</td>",
        _format_bar(s, (row.stable_rank or 0.0) / s_scale),
        f"<td>{cell(lambda row: format_metric(row.condition))}</td>",
        f"<td>{cell(lambda row: format_metric(row.quality))}{'*' * row.has_inflated_quality}</td>",
        f"<td>{cell(lambda row: format_percent(row.noise_fraction))}</td>",
    ]
    css = ' class="rankwise-empty"' if row.is_empty else ""
    return f"<tr{css}>{''.join(cells)}</tr>"


def _format_bar(text: str, share: float) -> str:
    end = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    style = f"background-image:linear-gradient(to right,rgba({_BLUE},.4) {end},transparent {end})"
    return f'<td style="{style};min-width:5em">{text}</td>'
