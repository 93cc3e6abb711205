import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise._table import (
    Cell,
    Column,
    align,
    bar,
    display_width,
    join,
    shorten,
    shorten_all,
    wrap,
)


def column(title, *texts, keep=5, left=False):
    return Column(title, tuple(Cell(text) for text in texts), keep, left)


@pytest.mark.parametrize(
    ("text", "width"), [("", 0), ("conv", 4), ("層a", 3), ("e\u0301", 1), ("Ｗ", 2), ("…", 1)]
)
def test_display_width(text, width):
    assert display_width(text) == width


@given(st.text(), st.integers(0, 40))
def test_shortened_text_fits(text, width):
    short = shorten(text, width)
    assert display_width(short) <= width
    if display_width(text) <= width:
        assert short == text


def test_shorten_keeps_both_ends():
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abcdefghij", 1) == "…"


def test_names_stay_different_when_shortened():
    names = [f"encoder.layer.{i}.attention.self.query.weight" for i in range(12)]
    short = shorten_all(names, 30)
    assert len(set(short)) == 12
    assert all(display_width(name) <= 30 for name in short)


def test_names_that_fit_stay_whole():
    assert shorten_all(["conv1", "層"], 5) == ["conv1", "層"]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "  "), (1.0, "██"), (0.5, "█ "), (1e-9, "▏ "), (9.0, "██"), (float("nan"), "  ")],
)
def test_bar(share, expected):
    assert bar(share, 2) == expected


def test_least_kept_column_goes_first():
    columns = [
        column("layer", "a" * 20, left=True),
        column("shape", "1×2×3", keep=1),
        column("q", "0.123", keep=9),
    ]
    assert join(align(columns, 34)).splitlines()[0].split() == ["layer", "shape", "q"]
    assert join(align(columns, 29)).splitlines()[0].split() == ["layer", "q"]
    assert join(align(columns, 20)).splitlines()[0].split() == ["layer"]


def test_wide_names_align_by_display_width():
    lines = align([column("layer", "層層", "abc", left=True), column("q", "1", "2")], 40)
    widths = {display_width("".join(cell.text for cell in line)) for line in lines}
    assert len(widths) == 1


def test_unlimited_width_shows_whole_names():
    name = "n" * 500
    assert name in join(align([column("layer", name, left=True), column("q", "1")], None))


@given(st.lists(st.text(), min_size=1), st.integers(5, 60))
def test_wrapped_lines_fit(words, width):
    text = " ".join(word.replace("\n", "").replace("\r", "") for word in words)
    assert all(display_width(line) <= width for line in wrap(text, width).split("\n"))


def test_wrap_loses_no_word():
    text = "31 of 52 layers hold structure and that is that"
    assert wrap(text, 18).split() == text.split()
    assert wrap(text, None) == text
