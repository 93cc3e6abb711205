from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise._text import printable, quoted


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
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_nothing_unsafe_is_left_and_all_else_stays(text: str) -> None:
    shown = printable(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode("utf-8")
    assert printable(shown) == shown


def test_quoted_names_are_short() -> None:
    assert quoted("w") == "'w'"
    assert len(quoted("w" * 10**6)) < 200
