"""The rows that random weights of the same shapes and norms would have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from rankwise.numerics.evbmf import LowRank, evbmf
from rankwise.numerics.random_matrix import check_seed, draw_gaussian_spectrum
from rankwise.numerics.randomness import Verdict
from rankwise.numerics.spectrum import Spectrum
from rankwise.numerics.unfold import Unfolding
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.measure import fill_row, list_rank_caveats, measure_mode


def measure_random_layers(
    layers: Iterable[LayerMetrics], *, p: float, seed: int
) -> list[LayerMetrics]:
    """Return the rows that Gaussian weights of the same shapes and norms would have.

    Layers that were not probed stay as they are; unfoldings of one size get one spectrum.
    """
    check_seed(seed)
    spectra: dict[tuple[int, int], tuple[Spectrum, LowRank]] = {}

    def factorise_random(rows: int, columns: int, norm: float) -> tuple[Spectrum, LowRank]:
        if (rows, columns) not in spectra:
            values = draw_gaussian_spectrum(rows, columns, seed)
            values = values / np.linalg.norm(values)
            spectra[rows, columns] = Spectrum(values, columns, 0.0), evbmf(values, columns=columns)
        unit, part = spectra[rows, columns]
        variance = part.noise_variance * norm * norm
        scaled = LowRank(part.values * norm, variance, part.threshold * norm)
        return Spectrum(unit.values * norm, columns, 0.0), scaled

    def measure_random(layer: LayerMetrics) -> LayerMetrics:
        norm = layer.frobenius_norm or 1.0  # a layer of zeros has no scale to keep
        modes = []
        for mode in layer.modes:
            unfolding = Unfolding((mode.mode,), 0, mode.rows, mode.columns)
            spectrum, part = factorise_random(mode.rows, mode.columns, norm)
            keep = mode.spectrum is not None
            modes.append(measure_mode(unfolding, spectrum, part, p=p, spectra=keep))
        reason = "; ".join(list_rank_caveats(modes))
        judged = layer.verdict not in (None, Verdict.TOO_SMALL)
        row = dataclasses.replace(
            layer,
            reason=reason,
            verdict=Verdict.RANDOM if judged else layer.verdict,
            chance=None,
            overlap=None,
        )
        return fill_row(row, modes, norm)

    return [measure_random(layer) if layer.is_probed and layer.modes else layer for layer in layers]
