"""How a score, and a time, is shown on an axis and in a tooltip."""

from __future__ import annotations

from typing import Any

import altair as alt

__all__ = ["score_format", "score_name", "score_y", "time_unit"]

_NAMES = {"frechet": "Fréchet distance"}


def score_name(score: str) -> str:
    """What a score of the test is called in words.

    Example:
        >>> score_name("accuracy"), score_name("frechet")
        ('test accuracy', 'test Fréchet distance')
    """
    return f"test {_NAMES.get(score, score)}"


def score_format(score: str) -> str:
    """The format of a score in a tooltip."""
    return ".2%" if score == "accuracy" else ".4~g"


def score_y(field: str, score: str, **options: Any) -> alt.Y:  # noqa: ANN401
    """A score upwards; shares in percent, and an axis that need not begin at 0."""
    axis = alt.Axis(format="~%" if score == "accuracy" else "~g", tickCount=6)
    begins: dict[str, Any] = {"nice": False} if "type" in options else {"zero": False}
    scale = alt.Scale(**begins, **options)
    return alt.Y(f"{field}:Q", title=score_name(score), axis=axis, scale=scale)


def time_unit(longest: float) -> tuple[str, float]:
    """The unit that suits a time in seconds, and how many seconds it has.

    Example:
        >>> time_unit(300.0), time_unit(90000.0)
        (('min', 60.0), ('h', 3600.0))
    """
    for name, seconds in (("h", 3600.0), ("min", 60.0)):
        if longest >= 2 * seconds:
            return name, seconds
    return "s", 1.0
