"""Rows of charts → columns that take little space in a page; page.js expands them.

A column is a list of values, or one of these, where it is shorter:

- `{"runs": [value, count, value, count, …]}`, as names of layers that repeat in every row;
- `{"steps": [first, difference, difference, …]}`, as numbers that count up;
- `{"logs": [...], "gaps": [...]}`, for singular values: steps of ten thousand times the logarithm,
  so that four digits are right, of which one to three are written. `gaps` says how many rows have
  a value, how many have none, how many have one again, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

PRECISION = 10_000  # steps of a logarithm: values are right to 1 in 20,000


def pack_rows(rows: Iterable[Mapping[str, Any]], *, in_logs: bool = False) -> dict[str, Any]:
    """Return rows column by column, which takes a third of the space or less, with six digits.

    Args:
        rows: The rows; numbers that are not finite count as missing.
        in_logs: Whether numbers with a fraction are positive and need only four digits.

    Example:
        >>> pack_rows([{"layer": "a", "q": 0.12345678}, {"layer": "b"}])
        {'fields': ['layer', 'q'], 'columns': [['a', 'b'], [0.123457, None]]}
        >>> pack_rows([{"layer": "a", "index": 10 + i} for i in range(4)])["columns"]
        [{'runs': ['a', 4]}, {'steps': [10, 1, 1, 1]}]
    """
    listed = list(rows)
    fields = list(dict.fromkeys(name for row in listed for name in row))
    columns = [_pack_column([row.get(name) for row in listed], in_logs) for name in fields]
    return {"fields": fields, "columns": columns}


def _pack_column(values: Sequence[Any], in_logs: bool) -> Any:  # noqa: ANN401
    kinds = {type(value) for value in values}
    runs = [(value, len(list(group))) for value, group in groupby(map(_round, values))]
    if 3 * len(runs) <= len(values):
        return {"runs": [part for run in runs for part in run]}
    if kinds == {int} and len(values) > 2:
        return {"steps": _take_steps(values)}
    if in_logs and kinds <= {float, type(None)}:
        return _pack_logs(values)
    return [_round(value) for value in values]


def _pack_logs(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if _is_positive(value)]
    logs = [round(PRECISION * math.log(value)) for value in known if value is not None]
    # The first count is of values, 0 where the column begins with a gap.
    gaps = [] if _is_positive(values[0]) else [0]
    gaps += [len(list(group)) for _, group in groupby(values, key=_is_positive)]
    return {"logs": _take_steps(logs), "gaps": gaps}


def _is_positive(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


def _take_steps(values: Sequence[int]) -> list[int]:
    """The first value, and from each to the next."""
    return [*values[:1], *(after - before for before, after in pairwise(values))]


def _round(value: object) -> object:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
