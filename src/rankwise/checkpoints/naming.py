"""Names as stored → names that are each used once, so that no tensor hides another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["unique_names"]


def unique_names(names: Iterable[str]) -> list[str]:
    """Gives repeated names a number.

    Args:
        names: Names, in order.

    Returns:
        The same names, those met before with ``#2``, ``#3``, … after them.

    Example:
        >>> from rankwise.checkpoints.naming import unique_names
        >>> unique_names(["w", "w", "b"])
        ['w', 'w#2', 'b']
    """
    wanted = list(names)
    taken = set(wanted)
    met: dict[str, int] = {}
    result = []
    for name in wanted:
        met[name] = met.get(name, 0) + 1
        result.append(name if met[name] == 1 else _free(name, met, taken))
    return result


def _free(name: str, met: dict[str, int], taken: set[str]) -> str:
    # A stored name may itself end in "#2".
    while (candidate := f"{name}#{met[name]}") in taken:
        met[name] += 1
    taken.add(candidate)
    return candidate
