"""What a page stores of rows is what its script gets back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.reports.packing import PRECISION, pack_rows

VALUES = st.none() | st.floats(1e-30, 1e30)


def total(steps):
    return [sum(steps[: i + 1]) for i in range(len(steps))]


def expand(column):
    """As page.js does."""
    if isinstance(column, list):
        return column
    if "runs" in column:
        runs = column["runs"]
        return [value for i in range(0, len(runs), 2) for value in [runs[i]] * runs[i + 1]]
    if "steps" in column:
        return total(column["steps"])
    known = iter(total(column["logs"]))
    counts = enumerate(column["gaps"])
    return [
        None if i % 2 else math.exp(next(known) / PRECISION) for i, n in counts for _ in range(n)
    ]


def unpack(rows, **options):
    packed = pack_rows(rows, **options)
    return dict(zip(packed["fields"], map(expand, packed["columns"]), strict=True))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5), VALUES, st.booleans())))
def test_nothing_is_lost_but_digits(rows):
    fields = ("layer", "index", "value", "default")
    found = unpack([dict(zip(fields, row, strict=True)) for row in rows], in_logs=True)
    for place, field in enumerate(fields if rows else ()):
        expected = [row[place] for row in rows]
        if field == "value":
            expected = [None if v is None else pytest.approx(v, rel=5.01e-5) for v in expected]
        assert found[field] == expected


def test_numbers_without_a_logarithm_count_as_missing():
    rows = [{"value": value} for value in (math.nan, 0.0, 2.0, -1.0, math.inf, 3.0)]
    found = unpack(rows, in_logs=True)["value"]
    near = [pytest.approx(value, rel=1e-4) for value in (2.0, 3.0)]
    assert found == [None, None, near[0], None, None, near[1]]


def test_a_name_that_repeats_is_stored_once():
    assert pack_rows([{"layer": "fc"}] * 500)["columns"] == [{"runs": ["fc", 500]}]
