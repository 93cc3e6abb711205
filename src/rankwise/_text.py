"""Text from a file → text that is safe to show: names and paths may hold anything."""

from __future__ import annotations

import unicodedata

__all__ = ["printable", "quoted"]

# Control (C0, DEL, C1), format (bidirectional overrides, zero-width), lone surrogates, and the
# line and paragraph separators: what can move the cursor, reorder a line or break one.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_LONGEST = 160


def printable(text: str) -> str:
    r"""Replaces every character that could act on a terminal by a visible escape.

    Args:
        text: Text of unknown origin.

    Returns:
        The same text with control, bidirectional, separator and surrogate characters as
        ``\x1b``, ``\u202e`` or ``\U000e0001``.

    Example:
        >>> from rankwise._text import printable
        >>> print(printable("conv\x1b[31m.weight"))
        conv\x1b[31m.weight
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _UNSAFE else c for c in text)


def quoted(text: str) -> str:
    """Gives a name as it appears inside a message: printable, in quotes, of bounded length.

    Args:
        text: A name from a file.

    Returns:
        The name in single quotes, cut after 160 characters.

    Example:
        >>> from rankwise._text import quoted
        >>> print(quoted("conv.weight"))
        'conv.weight'
    """
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return f"'{printable(cut)}'"


def _escape(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
