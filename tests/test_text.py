from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise._text import (
    display_width,
    escape_formula,
    format_name,
    join_lines,
    quote,
    sanitize,
    shorten,
    shorten_all,
    suggest_globs,
    suggest_names,
    wrap,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv1.weight", "conv1.weight"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\r\tc", "a\\x0ab\\x0d\\x09c"),
        ("\x7f\x85\x9b", "\\x7f\\x85\\x9b"),
        ("\u202egnp.exe\u2069", "\\u202egnp.exe\\u2069"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("größe σ 重み <b>", "größe σ 重み <b>"),
    ],
)
def test_what_acts_on_a_terminal_becomes_visible(text: str, shown: str) -> None:
    assert sanitize(text) == shown


@given(st.text(st.characters()))
def test_nothing_unsafe_is_left_and_all_else_stays(text: str) -> None:
    shown = sanitize(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode("utf-8")
    assert sanitize(shown) == shown


def test_quoted_names_are_short() -> None:
    assert quote("w") == "'w'"
    assert len(quote("w" * 10**6)) < 200


def test_lines_are_joined_and_sanitized() -> None:
    assert join_lines(" a\n\tb\u2028\x1b ") == "a b \\x1b"


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


@given(st.lists(st.text(), min_size=1), st.integers(5, 60))
def test_wrapped_lines_fit(words, width):
    text = " ".join(word.replace("\n", "").replace("\r", "") for word in words)
    assert all(display_width(line) <= width for line in wrap(text, width).split("\n"))


def test_wrap_loses_no_word():
    text = "31 of 52 layers hold structure and that is that"
    assert wrap(text, 18).split() == text.split()
    assert wrap(text, None) == text


@given(st.text(st.characters()))
def test_no_cell_begins_as_a_formula(text):
    cell = escape_formula(text)
    assert not cell.lstrip().startswith(("=", "+", "-", "@"))
    assert not cell.startswith(("\t", "\r"))
    assert cell in {sanitize(text), f"'{sanitize(text)}"}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "＝1"])
def test_formulas_get_an_apostrophe(text):
    assert escape_formula(text) == f"'{text}"


@pytest.mark.parametrize("text", ["conv1.weight", "a=b", "", "\t=1"])
def test_other_cells_stay_as_they_are_shown(text):
    assert escape_formula(text) == sanitize(text)


@given(st.text(st.characters(), max_size=400))
def test_names_are_shown_whole_unless_they_are_absurd(name):
    shown = format_name(name)
    assert display_width(shown) <= 300
    if len(sanitize(name)) <= 150:
        assert shown == sanitize(name)


def test_an_absurd_name_keeps_both_ends():
    shown = format_name("start" + "n" * 1_000_000 + "end")
    assert len(shown) <= 300
    assert shown.startswith("start")
    assert shown.endswith("end")
    assert shown.count("…") == 1


def test_names_are_suggested_whatever_their_case_and_hyphens():
    assert suggest_names("RMSGD", ["rmsgd", "sgd"]) == " Did you mean rmsgd or sgd?"
    assert suggest_names("temp_balance", ["temp-balance"]) == " Did you mean temp-balance?"
    assert suggest_names("xyz", ["rmsgd"]) == ""


def test_suggestions_from_a_hostile_file_are_short_and_safe():
    names = ["conv\x1b[31m.weight", "c" * 10**6, *(f"l{i}" for i in range(10**5))]
    assert "\x1b" not in suggest_names("conv[31m.weight", names)
    assert len(suggest_globs("c" * 10**6, names)) < 1000
    assert "\x1b" not in suggest_globs("conv*.wieght", names)


@pytest.mark.parametrize(
    ("glob", "suggestion"),
    [
        ("cnov*", "'conv.*'"),
        ("conv", "'conv.*'"),
        ("layers.0.atn.*", "'layers.0.attn.*'"),
        ("*.atn.*", "'*.attn.*'"),
        ("*.wieght", "'*.weight'"),
        ("conv.wieght", "'conv.weight'"),
    ],
)
def test_globs_are_suggested_that_match(glob, suggestion):
    names = ["conv.weight", "layers.0.attn.q.weight", "layers.1.attn.q.weight"]
    assert suggest_globs(glob, names).startswith(f" Did you mean {suggestion}")


@pytest.mark.parametrize("glob", ["*", "", "???", "nothing"])
def test_no_glob_is_suggested_where_none_is_similar(glob):
    assert suggest_globs(glob, ["conv.weight"]) == ""
