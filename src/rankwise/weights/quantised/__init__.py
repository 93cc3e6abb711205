"""Quantised weights: codes, scales and zero points → the weight that a network computes with."""

from __future__ import annotations

from rankwise.weights.parts import Rule
from rankwise.weights.quantised.fp4 import FP4_RULES
from rankwise.weights.quantised.scaled import SCALED_RULES

QUANTISED_RULES: tuple[Rule, ...] = (*FP4_RULES, *SCALED_RULES)
