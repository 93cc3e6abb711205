"""EVBMF written plainly from METHOD §2: every term as printed, a dense grid, then Brent.

Slow and literal on purpose. It works in extended precision; and since a minimum found by comparing
values of F is known to the square root of their precision only, a root of dF/dσ², differentiated
term by term, makes the last digits sure.
"""

import math
from fractions import Fraction

import numpy as np
from scipy.linalg import svdvals
from scipy.optimize import brentq, minimize_scalar

Long = np.longdouble


def reference_evbmf(matrix, grid=4000):
    """Returns d (descending), σ² of a matrix, or of its singular values with `matrix=(s, M)`."""
    if isinstance(matrix, tuple):
        s, M = matrix
        L = len(s)
    else:
        L, M = sorted(matrix.shape)
        s = np.sort(svdvals(matrix))[::-1]
    s = s.astype(Long)
    lam = s**2
    alpha = Long(L) / M
    tau_bar = Long("2.5129") * np.sqrt(alpha)
    x_bar = (1 + tau_bar) * (1 + alpha / tau_bar)

    def tau(x):
        return ((x - (1 + alpha)) + np.sqrt((x - (1 + alpha)) ** 2 - 4 * alpha)) / 2

    def free_energy(sigma2):
        x = lam / (M * sigma2)
        small, large = x[x <= x_bar], x[x > x_bar]
        small_logs = np.log(small[small > 0])  # ln 0 does not depend on σ²
        t = tau(large)
        logs = np.log((t + 1) / large) + alpha * np.log(t / alpha + 1)
        # Each zero's x − ln x still holds + ln σ².
        zeros = np.log(sigma2) * np.count_nonzero(small == 0)
        return np.sum(small) - np.sum(small_logs) + zeros + np.sum(large - t + logs)

    def slope(sigma2):
        """σ² · dF/dσ² = −Σ x · dF/dx."""
        x = lam / (M * sigma2)
        small, large = x[x <= x_bar], x[x > x_bar]
        t = tau(large)
        dt = (1 + (large - (1 + alpha)) / np.sqrt((large - (1 + alpha)) ** 2 - 4 * alpha)) / 2
        by_x = 1 - dt + dt / (t + 1) - 1 / large + alpha * dt / (t + alpha)
        return -np.sum(small - 1) - np.sum(large * by_x)

    upper = np.sum(lam) / (L * M)
    k = math.ceil(Fraction(L) / (1 + Fraction(L, M))) - 1  # exact: 20 / (1 + 20 / 30) is not 12
    lower = max(lam[k] / (M * x_bar), np.mean(lam[k:]) / M)
    sigma2 = upper
    if lower < upper:
        sigma2 = _minimum(free_energy, lower, upper, lam / (M * x_bar), grid)
        sigma2 = _polished(slope, sigma2)
    kept = s[s > np.sqrt(M * sigma2 * x_bar)]
    x = kept**2 / (M * sigma2)
    y = 1 - (1 + alpha) / x
    d = kept / 2 * (y + np.sqrt(y**2 - 4 * alpha / x**2))
    return d.astype(float), float(sigma2)


def _minimum(function, lower, upper, breakpoints, grid):
    points = np.exp(np.linspace(np.log(lower), np.log(upper), grid))
    inside = breakpoints[(breakpoints > lower) & (breakpoints < upper)]
    points = np.concatenate((points, inside * (1 - Long("1e-15")), inside * (1 + Long("1e-15"))))
    points = np.sort(np.clip(points, lower, upper))
    values = np.array([function(point) for point in points])
    best = int(np.argmin(values))
    low, high = points[max(best - 1, 0)], points[min(best + 1, len(points) - 1)]
    found = minimize_scalar(
        # As a share of the bracket, and from the best value on, so that doubles lose nothing.
        lambda t: float(function(low + Long(t) * (high - low)) - values[best]),
        bounds=(0, 1),
        method="bounded",
        options={"xatol": 1e-14, "maxiter": 500},
    )
    return low + Long(found.x) * (high - low) if found.fun < 0 else points[best]


def _polished(slope, sigma2):
    """The root of the slope beside a minimum, where there is one: not at a bound or a jump."""
    low, high = sigma2 * (1 - Long("1e-5")), sigma2 * (1 + Long("1e-5"))

    def share(t):
        return low + Long(t) * (high - low)

    if not slope(low) < 0 < slope(high):
        return sigma2
    return share(brentq(lambda t: float(slope(share(t))), 0, 1, xtol=1e-15, rtol=1e-15))
