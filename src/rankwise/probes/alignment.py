"""Which names of two models mean the same layer, also where one stands behind a prefix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Alignment", "align_names"]


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of indices that belong together.

    Attributes:
        pairs: Indices into the names before and after, in the order of those after.
        prefix: "+model." where the names after have a prefix more, "-model." where they have it
            less, "" where names are the same.
        candidates: The prefixes between which there was no clear choice.
    """

    pairs: tuple[tuple[int, int], ...]
    prefix: str = ""
    candidates: tuple[str, ...] = ()


def align_names(before: Sequence[str], after: Sequence[str]) -> Alignment:
    """Pair equal names; where few are, pair the rest across the one prefix that explains them.

    Example:
        >>> align_names(["fc1.weight", "fc2.weight"], ["net.fc1.weight", "net.fc2.weight"])
        Alignment(pairs=((0, 0), (1, 1)), prefix='+net.', candidates=())
    """
    exact = _pairs(before, after, "", range(len(before)), range(len(after)))
    if 2 * len(exact) >= min(len(before), len(after)):
        return Alignment(tuple(exact))
    left = _rest(len(before), (i for i, _ in exact))
    right = _rest(len(after), (j for _, j in exact))
    candidates = _prefixes([before[i] for i in left], [after[j] for j in right])
    if len(candidates) != 1:
        return Alignment(tuple(exact), candidates=tuple(candidates))
    found = _pairs(before, after, candidates[0], left, right)
    pairs = sorted([*exact, *found], key=lambda pair: pair[1])
    return Alignment(tuple(pairs), candidates[0])


def _pairs(
    before: Sequence[str],
    after: Sequence[str],
    prefix: str,
    left: Iterable[int],
    right: Iterable[int],
) -> list[tuple[int, int]]:
    """Index pairs of the names that are equal once the prefix is added to one of them."""
    gained = prefix[1:] if prefix.startswith("+") else ""
    lost = prefix[1:] if prefix.startswith("-") else ""
    places = {gained + before[i]: i for i in reversed(list(left))}
    found = [(places.pop(lost + after[j], None), j) for j in right]
    return [(i, j) for i, j in found if i is not None]


def _prefixes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The prefix that explains most names; several where none stands out, none where none does."""
    votes = Counter("+" + prefix for prefix in _votes(before, after))
    votes.update("-" + prefix for prefix in _votes(after, before))
    needed = min(len(before), len(after)) / 2
    best = max(votes.values(), default=0)
    if best < needed or best == 0:
        return []
    # A runner-up with more than half the votes is a second model of the same build in there.
    return sorted(prefix for prefix, count in votes.items() if 2 * count > best)


def _votes(short: Sequence[str], long: Sequence[str]) -> Iterable[str]:
    """Every prefix that makes one of the short names one of the long."""
    known = set(short)
    for name in long:
        for place, character in enumerate(name):
            if character == "." and name[place + 1 :] in known:
                yield name[: place + 1]


def _rest(size: int, taken: Iterable[int]) -> list[int]:
    used = set(taken)
    return [index for index in range(size) if index not in used]
