"""Student's t distribution: how rare a t is, and the t that is as rare as asked."""

from __future__ import annotations

import math

__all__ = ["critical_t", "two_sided"]

_MOST_TERMS = 10_000
_TINY = 1e-300  # stands for 0 where a fraction would be divided by it
_EXACT = 1e-16


def two_sided(t: float, freedom: int) -> float:
    """The chance of a t at least this far from 0, to either side.

    Args:
        t: Student's t.
        freedom: Degrees of freedom, 1 or more.

    Example:
        >>> round(two_sided(2.776, 4), 3)
        0.05
    """
    if math.isinf(t):
        return 0.0
    square = t * t
    # Each share by itself: 1 - x would lose the digits of a small one.
    return _beta_share(freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square))


def critical_t(chance: float, freedom: int) -> float:
    """The t that `two_sided` gives this chance; found by halving an interval.

    Args:
        chance: Above 0, below 1.
        freedom: Degrees of freedom, 1 or more.

    Example:
        >>> round(critical_t(0.05, 4), 3)
        2.776
    """
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > chance:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if middle in (low, high):  # no float lies between them
            return middle
        low, high = (middle, high) if two_sided(middle, freedom) > chance else (low, middle)


def _beta_share(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function I_x(a, b); `rest` is 1 - x."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction below would converge slowly
        return 1 - _beta_share(b, a, rest, x)
    log_front = a * math.log(x) + b * math.log(rest)
    log_front -= math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(log_front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), from its front by Lentz's two running quotients."""
    value, upper, lower = 1.0, 1.0, 0.0
    for number in range(_MOST_TERMS):
        term = _term(number, a, b, x)
        lower = 1 / _not_zero(1 + term * lower)
        upper = _not_zero(1 + term / upper)
        value *= upper * lower
        if abs(upper * lower - 1) < _EXACT:
            break
    return 1 / value


def _term(number: int, a: float, b: float, x: float) -> float:
    """A numerator of the fraction 1 + d₁ / (1 + d₂ / (1 + …)), counted from 0 for d₁."""
    half = (number + 1) // 2
    if number % 2 == 0:  # d₁, d₃, …
        return -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
    return half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
