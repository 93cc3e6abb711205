"""Rules by which other tools tell signal from noise in a spectrum, written from their formulas.

- Spectrum (Hartford, Atkins, Fernandes Neto and Golchinfar, "Spectrum: Targeted Training on Signal
  to Noise Ratio", 2024; repository cognitivecomputations/spectrum, `spectrum.py`) chooses the
  layers to train by the signal-to-noise ratio of their singular values. It takes the interquartile
  range of the singular values, divided by 1.349, as the noise's σ, and σ(1 + √β) as the edge of
  Marchenko and Pastur's law, β being the ratio of the sides. That edge holds for σ√M, with the
  standard deviation σ of an *entry*; the spread of the singular values is another quantity.
- PEFT's `KappaTuneSelector` (`peft/helpers.py`, after arXiv:2506.16289) ranks linear layers by
  κ = s_1 / (s_L + 1e-8), the lowest first.
- Gavish and Donoho ("The optimal hard threshold for singular values is 4/√3", 2014) is the rule of
  the statistical literature for unknown noise: ω(β) times the median singular value, where the
  paper approximates ω(β) = 0.56β³ − 0.95β² + 1.82β + 1.43. It minimises the error of the denoised
  matrix, which is not the same as finding its rank.
- The edge of Marchenko and Pastur's law, σ√M(1 + √β), with σ from the median singular value by the
  same paper: σ√M = median · ω(β) / λ(β), where λ(β)² = 2(β + 1) + 8β / (β + 1 + √(β² + 14β + 1)).
  This is what Spectrum's formula is meant to be.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_IQR_OF_STANDARD_NORMAL = 1.349
_OMEGA = (0.56, -0.95, 1.82, 1.43)


def count_spectrum_signal(values: Values, columns: int) -> int:
    """Count the singular values that Spectrum calls signal.

    Args:
        values: All singular values of the matrix.
        columns: Its larger side.
    """
    return int(np.count_nonzero(values > find_spectrum_edge(values, columns)))


def find_spectrum_edge(values: Values, columns: int) -> float:
    """Return the singular value above which Spectrum speaks of signal."""
    lower, upper = np.quantile(values, (0.25, 0.75))
    sigma = (upper - lower) / _IQR_OF_STANDARD_NORMAL
    return float(sigma * (1 + math.sqrt(len(values) / columns)))


def count_above_median_rule(values: Values, columns: int) -> int:
    """Count the singular values above Gavish and Donoho's threshold for unknown noise."""
    threshold = np.polyval(_OMEGA, len(values) / columns) * np.median(values)
    return int(np.count_nonzero(values > threshold))


def count_above_edge(values: Values, columns: int) -> int:
    """Count the singular values above the edge of noise whose σ is taken from the median."""
    beta = len(values) / columns
    root = math.sqrt(beta * beta + 14 * beta + 1)
    optimal = math.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + root))
    noise = np.median(values) * np.polyval(_OMEGA, beta) / optimal  # σ√M
    return int(np.count_nonzero(values > noise * (1 + math.sqrt(beta))))


def compute_kappa(values: Values) -> float:
    """Compute the condition number by which PEFT ranks layers; `values` are descending."""
    return float(values[0] / (values[-1] + 1e-8))
