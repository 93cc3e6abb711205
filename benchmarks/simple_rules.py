"""The best simple rules that need no spectrum, as a baseline: norms, kurtosis, outliers.

Each looks at one number of a layer, or at how far it is from the median of the layers of the same
kind and shape. A rule's limit is the value that one network in a hundred exceeds, of those that
limits are chosen on, so that all rules give as many false alarms as the check may.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_FALSE_ALARMS = 0.01


@dataclass(frozen=True, slots=True)
class Moments:
    """What the simple rules see of a layer."""

    group: str  # kind and shape
    log_norm: float  # ln of the root mean square
    kurtosis: float
    peak: float  # ln of the largest absolute value over the median


def compute_moments(group: str, weight: Tensor) -> Moments | None:
    """Compute a layer's moments; None where they do not exist."""
    w = weight.detach().double().flatten()
    if not bool(torch.isfinite(w).all()) or not bool(w.any()):
        return None
    w = w / w.abs().max()
    center = w - w.mean()
    variance = float((center**2).mean())
    median = float(w.abs().median())
    if variance == 0:
        return None
    scale = math.log(float(weight.detach().double().abs().max()))
    return Moments(
        group,
        0.5 * math.log(float((w**2).mean())) + scale,
        float((center**4).mean()) / variance**2,
        -math.log(median) if median else math.inf,
    )


def _from_siblings(value: Callable[[Moments], float]) -> Callable[..., float]:
    def deviation(layer: Moments, siblings: Sequence[Moments]) -> float:
        if len(siblings) < 2:
            return 0.0
        return abs(value(layer) - statistics.median(map(value, siblings)))

    return deviation


# The larger, the more suspicious.
_RULES: Mapping[str, Callable[[Moments, Sequence[Moments]], float]] = {
    "norm against siblings": _from_siblings(lambda m: m.log_norm),
    "kurtosis against siblings": _from_siblings(lambda m: math.log(m.kurtosis)),
    "kurtosis of an initialisation": lambda m, _: (
        -min(abs(m.kurtosis - 3.0), abs(m.kurtosis - 1.8))
    ),
    "largest over median": lambda m, _: m.peak,
}


@dataclass(frozen=True)
class SimpleRules:
    """The rules with their limits."""

    limits: Mapping[str, float]

    @classmethod
    def choose(cls, networks: Sequence[Mapping[str, Moments]]) -> SimpleRules:
        """Choose limits that one in a hundred of these networks exceeds."""
        worst = defaultdict(list)
        for layers in networks:
            for name, rule in _RULES.items():
                scores = [rule(m, _list_siblings(layers, key)) for key, m in layers.items()]
                worst[name].append(max(scores, default=-math.inf))
        return cls(
            {n: float(np.quantile(v, 1 - _FALSE_ALARMS, method="higher")) for n, v in worst.items()}
        )

    def find(self, layers: Mapping[str, Moments], name: str, moments: Moments | None) -> set[str]:
        """Return the rules that notice a layer; all do where it has no moments."""
        if moments is None:
            return set(_RULES)
        siblings = _list_siblings({**layers, name: moments}, name)
        return {
            rule for rule, score in _RULES.items() if score(moments, siblings) > self.limits[rule]
        }


def _list_siblings(layers: Mapping[str, Moments], name: str) -> list[Moments]:
    group = layers[name].group
    return [m for other, m in layers.items() if other != name and m.group == group]
