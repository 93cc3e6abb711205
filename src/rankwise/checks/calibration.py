"""How sure the checks are: rates measured on real networks by `python -m benchmarks.check`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

_FILE = "calibration.json"


@dataclass(frozen=True, slots=True)
class WidthRates:
    """Error rates of "differs from random" for layers of some width.

    Attributes:
        least: The smallest width that they hold for.
        random: How many random layers were compared.
        random_differ: How many of them were said to differ.
        trained: How many layers of trained networks.
        trained_random: In how many of them no direction stands out.
    """

    least: int
    random: int
    random_differ: int
    trained: int
    trained_random: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Rates on healthy networks that had no part in choosing the limits.

    Attributes:
        networks: How many there are.
        families: Of how many authors or packages.
        alarms: (kind, severity) → the number of networks with such a finding.
        widths: Error rates by width, ascending.
    """

    networks: int
    families: int
    alarms: dict[tuple[str, str], int]
    widths: tuple[WidthRates, ...]


@lru_cache(maxsize=1)
def load_calibration() -> Calibration:
    """Load the rates that belong to this version of the checks."""
    data: dict[str, Any] = json.loads(files(__package__).joinpath(_FILE).read_text("utf-8"))
    return Calibration(
        data["networks"],
        data["families"],
        {(row["kind"], row["severity"]): row["networks"] for row in data["alarms"]},
        tuple(WidthRates(**row) for row in data["widths"]),
    )


def describe_alarms(kind: str, severity: str) -> str:
    """Say how many healthy networks have such a finding."""
    known = load_calibration()
    if not known.networks:
        return ""
    count = known.alarms.get((kind, severity), 0)
    verb = "has" if count == 1 else "have"
    return f"{count} of {known.networks} healthy networks {verb} such {_ARTICLES[severity]}."


_ARTICLES = {"error": "an error", "warning": "a warning", "note": "a note"}


def describe_width(width: int) -> str:
    """Say how often random and trained layers of this width are taken for the other.

    Example:
        >>> from rankwise.checks.calibration import describe_width
        >>> describe_width(8)
        'Below a width of 16 the two can not be distinguished.'
    """
    rates = [rates for rates in load_calibration().widths if rates.least <= width]
    if not rates:
        return "Below a width of 16 the two can not be distinguished."
    last = rates[-1]
    return (
        f"At this width {_percent(last.random_differ, last.random)} of {last.random:,} random "
        f"layers differ, and {_percent(last.trained_random, last.trained)} of {last.trained:,} "
        "layers of healthy networks do not."
    )


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:.2g} %" if total else "none"
