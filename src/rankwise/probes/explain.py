"""`rankwise explain`: a metric in plain text."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from rankwise._text import explain_unknown, wrap
from rankwise.errors import ArgumentError
from rankwise.probes.glossary import ENTRIES, Explanation

if TYPE_CHECKING:
    from collections.abc import Mapping

EXPLANATIONS: Mapping[str, Explanation] = MappingProxyType({entry.name: entry for entry in ENTRIES})

_ALIASES = {
    "n'": "rank",
    "n'/n": "rank_fraction",
    "s": "stable_rank",
    "κ": "condition",
    "kappa": "condition",
    "q": "quality",
    "Q": "network_quality",
    "S": "stable_rank_by_width",
    "Σ n'": "total_rank",
    "differs from random": "verdict",
    "noise": "noise_fraction",
    "σ²": "noise_variance",
    "sigma2": "noise_variance",
}


def explain(metric: str | None = None, *, width: int | None = 80) -> str:
    """Explain a metric, or list all of them with a line each.

    Args:
        metric: A name such as "stable_rank" or its symbol (s, κ or kappa, q, S, Q); None lists all.
        width: Where to break lines; None for never.

    Raises:
        ArgumentError: If there is no such metric.

    Example:
        >>> print(explain("coverage"))
        coverage
          Formula: parameters in probed layers / all parameters, biases and norms
                   included
          Meaning: How much of the model the metrics cover.
          Range:   0 to 1
          Reading: Where it is far below 1, look at what was skipped and why.
    """
    if metric is None:
        return "\n".join(_format_line(entry, width) for entry in ENTRIES)
    return _format_entry(EXPLANATIONS[_find_name(metric)], width)


def _find_name(metric: str) -> str:
    if metric.strip() in _ALIASES:  # before lower(): q and Q are two metrics
        return _ALIASES[metric.strip()]
    name = metric.strip().lower().replace("-", "_").replace(" ", "_")
    name = _ALIASES.get(name, name)
    if name in EXPLANATIONS:
        return name
    raise ArgumentError(explain_unknown("metric", metric, list(EXPLANATIONS)))


def _format_line(entry: Explanation, width: int | None) -> str:
    first, _, _ = entry.meaning.partition(". ")
    return wrap(f"{entry.name:<20} {first.rstrip('.')}.", width, " " * 21)


def _format_entry(entry: Explanation, width: int | None) -> str:
    lines = [
        f"  Formula: {entry.formula}",
        f"  Meaning: {entry.meaning}",
        f"  Range:   {entry.range}",
        f"  Reading: {entry.reading}",
        *(f"  Caveat:  {caveat}" for caveat in entry.caveats),
    ]
    title = f"{entry.name} ({entry.symbol})" if entry.symbol else entry.name
    return "\n".join([title, *(wrap(line, width, " " * 11) for line in lines)])
