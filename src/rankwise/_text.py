"""Text for terminals and pages: escape what could act on them, measure, shorten and wrap."""

from __future__ import annotations

import unicodedata
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Control (C0, DEL, C1), format (bidirectional overrides, zero-width), lone surrogates, and the
# line and paragraph separators: what can move the cursor, reorder a line or break one.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_MAX_QUOTED = 160
_MAX_KNOWN = 5000  # names that one is compared with
# Of a name in a table or a sentence that nothing else limits. Real names have up to about 150.
LONGEST_NAME = 300
# How a cell starts that a spreadsheet takes for a formula, in ASCII and in full width.
_FORMULA = tuple("=+-@＝＋－＠")
_ELLIPSIS = "…"
_COMMON_ENDING = ".weight"


def sanitize(text: str) -> str:
    r"""Replace every character that could act on a terminal or a page by a visible escape.

    All text from files, names and paths goes through this function before it is shown. HTML needs
    `html.escape` as well.

    Returns:
        The text with control, bidirectional, separator and surrogate characters as
        ``\x1b``, ``\u202e`` or ``\U000e0001``.

    Example:
        >>> print(sanitize("conv\x1b[31m.weight"))
        conv\x1b[31m.weight
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _UNSAFE else c for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def join_lines(text: str) -> str:
    r"""Put a text on one line: every run of whitespace becomes a space, the rest is escaped.

    Example:
        >>> print(join_lines("ResNet\n  on\tCIFAR\x1b"))
        ResNet on CIFAR\x1b
    """
    return sanitize(" ".join(text.split()))


def quote(text: str) -> str:
    """Put a name from a file in single quotes, escaped and cut after 160 characters.

    Example:
        >>> print(quote("conv.weight"))
        'conv.weight'
    """
    cut = text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + _ELLIPSIS
    return f"'{sanitize(cut)}'"


def format_name(name: str) -> str:
    r"""Return the name of a tensor as it is shown: safe, and cut in its middle where it is absurd.

    Example:
        >>> print(format_name("conv\x1b.weight"), len(format_name("n" * 100_000)))
        conv\x1b.weight 299
    """
    if len(name) > LONGEST_NAME:  # escapes are longer than what they stand for, never shorter
        half = (LONGEST_NAME - 1) // 2
        name = f"{name[:half]}{_ELLIPSIS}{name[-half:]}"
    return shorten(sanitize(name), LONGEST_NAME)


def escape_formula(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would read as a formula.

    Tabs and line breaks, which can start one too, become visible escapes.

    Example:
        >>> escape_formula("=1+1"), escape_formula("-0.5"), escape_formula("conv1")
        ("'=1+1", "'-0.5", 'conv1')
    """
    line = sanitize(text)
    return f"'{line}" if line.lstrip().startswith(_FORMULA) else line


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where needed.

    Example:
        >>> format_count(1, "layer"), format_count(3, "layer")
        ('1 layer', '3 layers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_percent(share: float | None) -> str:
    """Return a share in percent; 0 and 100 only where it is exactly that.

    Example:
        >>> format_percent(0.5), format_percent(0.9999), format_percent(1.0)
        ('50 %', '>99 %', '100 %')
    """
    if share is None:
        return "–"
    rounded = f"{100 * share:.0f} %"
    if rounded == "100 %" and share < 1:
        return ">99 %"
    return "<1 %" if rounded == "0 %" and share > 0 else rounded


def format_change(share: float | None) -> str:
    """Return a relative change in percent, with two digits where it is small.

    Example:
        >>> format_change(0.000123), format_change(0.031), format_change(2.5), format_change(0.0)
        ('0.012 %', '3.1 %', '250 %', '0 %')
    """
    if share is None:
        return "–"
    return f"{100 * share:,.0f} %" if share >= 0.1 or not share else f"{100 * share:.2g} %"


def format_bytes(count: int) -> str:
    """Return a size with a decimal prefix and three digits.

    Example:
        >>> format_bytes(999), format_bytes(4_912_345), format_bytes(13_500_000_000)
        ('999 B', '4.91 MB', '13.5 GB')
    """
    size, prefix = float(count), ""
    for larger in "kMGTP":
        if size < 999.5:
            break
        size, prefix = size / 1000, larger
    return f"{size:.3g} {prefix}B"


@lru_cache(maxsize=4096)
def _character_width(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def display_width(text: str) -> int:
    """Return how many terminal columns a text takes: wide characters two, combining marks none.

    Example:
        >>> display_width("conv"), display_width("層")
        (4, 2)
    """
    return len(text) if text.isascii() else _measure_width(text)


@lru_cache(maxsize=4096)  # shapes such as "768×768" come again and again in a table
def _measure_width(text: str) -> int:
    return sum(map(_character_width, text))


def _head(text: str, width: int) -> str:
    """Return the longest start of a text that is at most `width` wide."""
    if text.isascii():
        return text[:width]
    used = 0
    for index, character in enumerate(text):
        used += _character_width(character)
        if used > width:
            return text[:index]
    return text


def shorten(text: str, width: int, head: int | None = None) -> str:
    """Cut a text in its middle to at most `width`; keep `head` columns of its start.

    Example:
        >>> shorten("encoder.layer.0.query.weight", 15)
        'encoder….weight'
    """
    if display_width(text) <= width:
        return text
    if width < 1:
        return ""
    head = (width - 1) // 2 if head is None else min(head, width - 1)
    start = _head(text, head)
    end = _head(text[::-1], width - 1 - display_width(start))[::-1]
    return start + _ELLIPSIS + end


def shorten_all(names: Sequence[str], width: int) -> list[str]:
    """Cut names to `width` at the place that leaves the most of them different.

    Cutting `encoder.layer.0.query.weight` and `encoder.layer.1.query.weight` in the very middle
    would make them equal; the cut moves away from the middle only as far as it helps.

    Example:
        >>> shorten_all(["encoder.layer.0.query.weight", "encoder.layer.1.query.weight"], 14)
        ['encod…0.query…', 'encod…1.query…']
    """
    if all(display_width(name) <= width for name in names):
        return list(names)
    trimmed = [_trim_ending(name, width) for name in names]
    middle = (width - 1) // 2
    heads = sorted({*range(0, width, max(width // 8, 1)), middle}, key=lambda h: abs(h - middle))
    best: list[str] = []
    for head in heads:
        cut = [shorten(name, width, head) for name in trimmed]
        best = max(best, cut, key=lambda names: len(set(names)))
        if len(set(best)) == len(set(names)):
            break
    return best


def _trim_ending(name: str, width: int) -> str:
    """Drop the ending that most names share from a name that is too long."""
    if display_width(name) <= width or not name.endswith(_COMMON_ENDING):
        return name
    return name.removesuffix(_COMMON_ENDING) + _ELLIPSIS


def wrap(text: str, width: int | None, indent: str = "  ") -> str:
    """Break a sentence at spaces into lines of at most `width`; indent all but the first.

    Words wider than a line are cut in their middle. With `width=None` nothing is broken.

    Example:
        >>> print(wrap("31 of 52 layers hold structure.", 20))
        31 of 52 layers hold
          structure.
    """
    if width is None:
        return text
    room = max(width - len(indent), 1)
    line, *words = (shorten(word, room) for word in text.split(" "))
    lines = []
    for word in words:
        if display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}"
    return "\n".join([*lines, line])


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean …?" with the most similar known names, or an empty string.

    Case, "-" and "_" do not count.

    Example:
        >>> suggest_names("ResNet180", ["resnet18", "vgg16"])
        ' Did you mean resnet18?'
    """
    names = {_fold(one): one for one in islice(known, _MAX_KNOWN) if len(one) <= LONGEST_NAME}
    similar = get_close_matches(_fold(name[:LONGEST_NAME]), names)
    if not similar:
        return ""
    return f" Did you mean {' or '.join(sanitize(names[key]) for key in similar)}?"


def _fold(name: str) -> str:
    return name.casefold().replace("_", "-")


def explain_unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Return that there is no such name, the most similar ones, and all of them.

    Example:
        >>> explain_unknown("optimizer", "rmsdg", ["rmsgd", "sgd"])
        "There is no optimizer 'rmsdg'. Did you mean rmsgd? Choose one of: rmsgd, sgd."
    """
    hint = suggest_names(name, known)
    return f"There is no {kind} {quote(name)}.{hint} Choose one of: {', '.join(known)}."


def suggest_globs(glob: str, names: Iterable[str]) -> str:
    """Return " Did you mean …?" with globs that match a name, similar to one that matches none.

    Example:
        >>> suggest_globs("*.atn.*", ["layers.0.attn.weight", "layers.1.attn.weight"])
        " Did you mean '*.attn.*'?"
    """
    words = glob[:LONGEST_NAME].strip("*.?")
    length = words.count(".") + 1
    found: dict[str, str] = {}
    for name in islice((one for one in names if len(one) <= LONGEST_NAME), _MAX_KNOWN):
        parts = name.split(".")
        for start in range(len(parts) - length + 1):
            before = "*." if start else ""
            after = ".*" if start + length < len(parts) else ""
            inner = ".".join(parts[start : start + length])
            found.setdefault(_fold(inner), f"{before}{inner}{after}")
    similar = get_close_matches(_fold(words), found) if words else []
    if not similar:
        return ""
    return f" Did you mean {' or '.join(quote(found[key]) for key in similar)}?"


def list_globs(globs: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return one glob or several as a tuple; None stays None."""
    return (globs,) if isinstance(globs, str) else None if globs is None else tuple(globs)
