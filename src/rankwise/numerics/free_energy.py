"""The free energy of a spectrum under "low rank + noise", and its global minimum.

Nakajima et al., "Global analytic solution of fully-observed variational Bayesian matrix
factorization" (JMLR 2013) and "Perfect dimensionality recovery by variational Bayesian PCA"
(NIPS 2012). A matrix is taken as low rank + Gaussian noise of unknown variance σ². Its free energy,
with λ_i = s_i², v = Mσ², x_i = λ_i/v and τ_i = τ(x_i), is

    F = Σ_{x_i ≤ x̄} (x_i − ln x_i) + Σ_{x_i > x̄} [x_i − τ_i + ln((τ_i+1)/x_i) + α ln(τ_i/α+1)].

Its global minimum over v is exact and cheap to find, since

* Σ ln λ_i does not depend on v, so zeros among the λ_i do no harm, and x − τ = 1 + α + α/τ:
  F = S/v + L ln v + Σ_{x_i > x̄} [1 + α + α/τ_i + ln(τ_i+1) + α ln(τ_i/α+1)] + constant,
  where S is the sum of the λ_i that are not kept;
* d(x − τ + …)/dx leaves h(v) = v·F'(v) = L − S/v − Σ_{x_i > x̄} (1 + α + α/τ_i): no logarithm,
  and no difference of large numbers;
* between two breakpoints v = λ_i/x̄, where the sum gains a term, h first rises and then falls
  (v·h' decreases), so F has at most one minimum inside: the first root of h.

τ̄ is itself an approximation, so F jumps a little at each breakpoint and its infimum may lie at one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

# Pairs (v, λ_i) evaluated in one block: bounds the memory, and a block stays in the cache.
_BLOCK = 1 << 16
# Newton needs about three steps; bisection alone, from any bracket of doubles, fewer than this.
_ITERATIONS = 200
_LAST_STEP = 1e-9


def compute_limits(alpha: float) -> tuple[float, float]:
    """Return τ̄ and x̄: where keeping a value starts to pay."""
    tau_bar = 2.5129 * math.sqrt(alpha)
    return tau_bar, (1 + tau_bar) * (1 + alpha / tau_bar)


@dataclass(frozen=True, slots=True)
class FreeEnergy:
    """F and its slope, for many v at once; `count` says how many λ_i are kept at each."""

    lam: Array  # (L,) λ_i/λ_1, descending
    rest: Array  # (L+1,) rest[c] = Σ_{i ≥ c} λ_i
    columns: int  # M
    alpha: float
    tau_bar: float
    x_bar: float

    @classmethod
    def from_spectrum(cls, lam: Array, columns: int) -> FreeEnergy:
        """Build the free energy of the spectrum λ_i/λ_1, descending, of a matrix with M columns."""
        alpha = len(lam) / columns
        # Far below float64's resolution at 1, and large enough that τ³ does not overflow.
        lam = np.where(lam > 1e-90, lam, 0.0)
        # Summed from the smallest up, so that a huge λ_1 does not absorb the rest.
        rest = np.concatenate((np.cumsum(lam[::-1])[::-1], [0.0]))
        return cls(lam, rest, columns, alpha, *compute_limits(alpha))

    def find_bounds(self) -> tuple[float, float]:
        """Return the interval that contains the minimiser, in units of v (METHOD §2)."""
        L, M = len(self.lam), self.columns
        k = -(-L * M // (L + M)) - 1  # ⌈L/(1+α)⌉ − 1 in integers: for 20 × 30, floats give 12
        lower = max(self.lam[k] / self.x_bar, self.rest[k] / (L - k))
        return float(lower), float(self.rest[0] / L)

    def find_minimum(self, lower: float, upper: float) -> tuple[float, int]:
        """Return the minimiser v of F between two bounds, and how many λ_i are kept there."""
        # No noise at all: F → −∞ as v → 0, and everything that isn't zero is kept.
        if lower == 0.0:
            return 0.0, int(np.count_nonzero(self.lam))
        if lower >= upper:  # A flat spectrum, as of an orthogonal matrix: nothing stands out.
            return upper, int(np.count_nonzero(self.lam > upper * self.x_bar))
        v, count = self._list_candidates(lower, upper)
        best = int(np.argmin(self.value(v, count)))
        return float(v[best]), int(count[best])

    def _list_candidates(self, lower: float, upper: float) -> tuple[Array, Counts]:
        """Return every v where F can have its infimum: inside an interval, or at an edge."""
        breakpoints = self.lam[::-1] / self.x_bar  # ascending
        inside = breakpoints[(breakpoints > lower) & (breakpoints < upper)]
        edges = np.concatenate(([lower], inside, [upper]))
        edges = edges[np.concatenate(([True], edges[1:] > edges[:-1]))]  # np.unique sorts again
        at = len(self.lam) - np.searchsorted(breakpoints, edges, side="right")
        below = len(self.lam) - np.searchsorted(breakpoints, edges, side="left")
        below[0] = at[0]  # nothing below the lower bound is searched
        slope = self.slope(edges, at)
        slope_below = slope + (below - at) * self.tau_bar  # a λ at its own breakpoint has τ = τ̄
        # From −S/v the slope can gain this much up to the next edge; all else lowers it.
        headroom = self.rest[at[:-1]] * (1 / edges[:-1] - 1 / edges[1:])
        roots, counts = self._find_minima(edges, at[:-1], slope[:-1], slope_below[1:], headroom)
        low, high = np.minimum(slope[:-1], slope_below[1:]), slope[:-1] + headroom
        possible = self._find_undominated(edges, below - at, low, high)
        v = np.concatenate((roots, edges[possible], edges[possible]))
        return v, np.concatenate((counts, at[possible], below[possible]))

    def _find_undominated(self, edges: Array, here: Counts, low: Array, high: Array) -> Mask:
        """Return which edges may hold the infimum, from bounds of the slope, without a logarithm.

        Args:
            edges: The edges, ascending.
            here: How many λ_i have their breakpoint at each edge.
            low: A lower bound of the slope from each edge to the next.
            high: An upper bound of it.
        """
        # Let E be the better of F's two sides at an edge; just below it F is larger by `jump`.
        jump = here * (1 + self.alpha + self._kept_term(self.tau_bar) - self.x_bar)
        leap = np.maximum(-jump[:-1], 0) - np.maximum(jump[1:], 0)
        width = np.log(edges[1:] / edges[:-1])
        least = np.concatenate(([0.0], np.cumsum(low * width + leap)))  # E_j − E_0 ≥ least_j
        most = np.concatenate(([0.0], np.cumsum(high * width + leap)))
        rounding = 1e-9 * len(self.lam)
        by_an_earlier = least > np.minimum.accumulate(least) + rounding
        by_a_later = most > np.minimum.accumulate(most[::-1])[::-1] + rounding
        return ~(by_an_earlier | by_a_later)

    def _find_minima(
        self, edges: Array, count: Counts, slope_left: Array, slope_right: Array, headroom: Array
    ) -> tuple[Array, Counts]:
        """Return F's minima strictly between two edges: where the slope goes from − to +."""
        left, right = edges[:-1], edges[1:].copy()
        has_root = (slope_left < 0) & (slope_right > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = slope_left / (slope_left - slope_right)  # where a chord over 1/v meets zero
            start = 1 / ((1 - share) / left + share / right)
        # Negative at both ends, the slope may still be positive in between.
        for j in np.flatnonzero(
            (slope_left < 0) & (slope_right <= 0) & (slope_left + headroom > 0)
        ):
            rise = self._find_rise(left[j], right[j], count[j : j + 1])
            has_root[j] = rise is not None
            start[j] = right[j] = rise or right[j]
        return self._find_roots(
            left[has_root], right[has_root], start[has_root], count[has_root]
        ), count[has_root]

    def _find_rise(self, low: float, high: float, count: Counts) -> float | None:
        """Return a v with positive slope between two edges with negative slope, if there is one."""
        rest = float(self.rest[count[0]])
        while low < (middle := math.sqrt(low) * math.sqrt(high)) < high:
            slope, bend = (float(f[0]) for f in self._slope_and_bend(np.array([middle]), count))
            if slope > 0:
                return middle
            low, high = (middle, high) if bend > 0 else (low, middle)
            if bend > 0 and slope + rest * (1 / low - 1 / high) <= 0:
                return None
        return None

    def _find_roots(self, low: Array, high: Array, start: Array, count: Counts) -> Array:
        """Return the slope's roots, one in each bracket, by Newton's method with bisection.

        In 1/v the slope is nearly straight, since −S/v is most of it; so Newton steps in 1/v.
        """
        v = start
        for _ in range(_ITERATIONS if len(v) else 0):
            slope, bend = self._slope_and_bend(v, count)
            low, high = np.where(slope < 0, v, low), np.where(slope < 0, high, v)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                newton = v / (1 + slope / bend)
            inside = (low <= newton) & (newton <= high)
            before, v = v, np.where(inside, newton, np.sqrt(low) * np.sqrt(high))
            # Newton's error is squared in each step, so after such a step it is below rounding.
            if (np.abs(v - before) <= _LAST_STEP * before).all():
                break
        return v

    def value(self, v: Array, count: Counts) -> Array:
        """Return F(v) up to a constant."""
        (kept,) = self._sum_kept(v, count, self._kept_term)
        return self.rest[count] / v + len(self.lam) * np.log(v) + count * (1 + self.alpha) + kept

    def _kept_term(self, tau: Array | float) -> Array:
        return self.alpha / tau + np.log1p(tau) + self.alpha * np.log1p(tau / self.alpha)

    def slope(self, v: Array, count: Counts) -> Array:
        """Return h(v) = v·F'(v)."""
        (kept,) = self._sum_kept(v, count, np.reciprocal)
        return self._slope(v, count, kept)

    def _slope(self, v: Array, count: Counts, kept: Array) -> Array:
        return len(self.lam) - self.rest[count] / v - count * (1 + self.alpha) - self.alpha * kept

    def _slope_and_bend(self, v: Array, count: Counts) -> tuple[Array, Array]:
        """Return h(v) and v·h'(v); the latter decreases with v between two breakpoints."""
        kept, bent = self._sum_kept(v, count, np.reciprocal, self._bend_term)
        return self._slope(v, count, kept), self.rest[count] / v - bent

    def _bend_term(self, tau: Array) -> Array:
        return (tau + 1) * (tau + self.alpha) / (tau * (tau * tau / self.alpha - 1))

    def shrinkage(self, v: float, count: int) -> Array:
        """Return d_i/s_i = τ_i/x_i for the λ_i that are kept."""
        if v == 0.0:
            return np.ones(count)
        x = self.lam[:count] / v
        return self.tau(x) / x

    def tau(self, x: Array) -> Array:
        """Return the larger root of (1 + τ)(1 + α/τ) = x, for x ≥ (1 + √α)²."""
        root = math.sqrt(self.alpha)
        # As factors, the discriminant loses no digits where x is close to (1 + √α)².
        return 0.5 * (x - (1 + self.alpha) + np.sqrt((x - (1 + root) ** 2) * (x - (1 - root) ** 2)))

    def _sum_kept(self, v: Array, count: Counts, *terms: Callable[[Array], Array]) -> Array:
        """Return Σ_{i < count} term(τ(λ_i/v)) for each term and each v."""
        sums = np.zeros((len(terms), len(v)))
        widest = int(count.max(initial=0))
        if widest == 0:
            return sums
        step = max(1, _BLOCK // widest)
        for start in range(0, len(v), step):
            block = slice(start, start + step)
            widest = int(count[block].max())
            kept = np.arange(widest) < count[block, None]
            # x̄ replaces the λ that are not kept: τ is real there, and the sum leaves it out.
            tau = self.tau(np.where(kept, self.lam[:widest] / v[block, None], self.x_bar))
            for i, term in enumerate(terms):
                sums[i, block] = np.einsum("vi,vi->v", term(tau), kept)
        return sums
