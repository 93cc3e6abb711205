"""The scale of an adapter's layers: α/r, or α/√r for rsLoRA, from the configuration of PEFT."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from rankwise.weights.parts import Config

_PREFIX = "base_model.model."
_NAME = re.compile(r"(?:[\w-]|\\?\.|\\-)+")  # a module's name, its dots escaped or not
# A regular expression from a file could run without end. These can't: names, alternatives that are
# not repeated, and at most two of `.*`, `.+` and `\d+`.
_SAFE = re.compile(r"(?:[\w|()\-^$]|\\[.\-]|(?:\\d|\.)[*+]?)+")
_REPEATED = re.compile(r"[*+]")
_MAX_REPEATED, _MAX_PATTERNS, _MAX_LENGTH = 2, 16, 200


class AlphaTable:
    """α of every module, by `lora_alpha` and `alpha_pattern` as PEFT reads them.

    Attributes:
        unread: Patterns that are not evaluated, as they could take long.

    Example:
        >>> from rankwise.weights.adapter_scale import AlphaTable
        >>> table = AlphaTable({"lora_alpha": 16, "alpha_pattern": {"fc": 4, "^head$": 2}})
        >>> [table.find(name) for name in ("net.fc", "base_model.model.head", "net.head")]
        [4.0, 2.0, 16.0]
    """

    def __init__(self, config: Config) -> None:
        self._default = _as_number(config.get("lora_alpha", config.get("alpha")))
        self._endings: dict[str, tuple[int, float | None]] = {}
        self._wholes: dict[str, tuple[int, float | None]] = {}
        self._regexes: list[tuple[int, re.Pattern[str], float | None]] = []
        unread = []
        given = config.get("alpha_pattern")
        patterns = given if isinstance(given, Mapping) else {}
        for place, (key, value) in enumerate(patterns.items()):
            pattern, number = str(key), _as_number(value)
            name = pattern.removeprefix("^").removesuffix("$")
            if _NAME.fullmatch(name):
                table = self._wholes if pattern.startswith("^") else self._endings
                table.setdefault(name.replace("\\", ""), (place, number))
            elif regex := self._compile(pattern):
                self._regexes.append((place, regex, number))
            else:
                unread.append(pattern)
        self.unread = tuple(unread)

    def _compile(self, pattern: str) -> re.Pattern[str] | None:
        is_safe = (
            len(pattern) <= _MAX_LENGTH
            and _SAFE.fullmatch(pattern) is not None
            and len(_REPEATED.findall(pattern)) <= _MAX_REPEATED
        )
        if not is_safe or len(self._regexes) >= _MAX_PATTERNS:
            return None
        try:
            return re.compile(rf"(.*\.)?({pattern})$")  # as PEFT matches
        except re.error:
            return None

    def find(self, module: str) -> float | None:
        """Return α of a module; None where the configuration has no such number."""
        # What lies in a base layer, as an attention's output projection, has the settings of the
        # module that was replaced.
        name = module.removeprefix(_PREFIX).split(".base_layer.")[0]
        found = [self._wholes[name]] if name in self._wholes else []
        steps = name.split(".")
        endings = (".".join(steps[place:]) for place in range(len(steps)))
        found += [self._endings[ending] for ending in endings if ending in self._endings]
        found += [
            (place, value)
            for place, regex, value in self._regexes
            if len(name) <= _MAX_LENGTH and regex.match(name)
        ]
        return min(found, key=lambda entry: entry[0])[1] if found else self._default


def compute_scale(alpha: float, rank: int, *, rslora: bool) -> float:
    """Return α/r, or α/√r for rsLoRA.

    Example:
        >>> compute_scale(8, 4, rslora=False), compute_scale(8, 4, rslora=True)
        (2.0, 4.0)
    """
    return alpha / (math.sqrt(rank) if rslora else rank)


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e6 else None
