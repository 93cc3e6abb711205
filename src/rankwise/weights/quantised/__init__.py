"""Quantised weights: codes, scales and zero points → the weight that a network computes with."""

from __future__ import annotations

from rankwise.weights.parts import Rule
from rankwise.weights.quantised.bitsandbytes import BITSANDBYTES_RULES
from rankwise.weights.quantised.fp4 import FP4_RULES
from rankwise.weights.quantised.gptq import GPTQ_RULES
from rankwise.weights.quantised.packed import PACKED_RULES
from rankwise.weights.quantised.scaled import SCALED_RULES
from rankwise.weights.quantised.unknown import LAYOUT_RULES, UNKNOWN_RULES

QUANTISED_RULES: tuple[Rule, ...] = (
    *LAYOUT_RULES,
    *FP4_RULES,
    *BITSANDBYTES_RULES,
    *PACKED_RULES,
    *GPTQ_RULES,
    *SCALED_RULES,
    *UNKNOWN_RULES,
)
