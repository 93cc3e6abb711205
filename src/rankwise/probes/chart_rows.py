"""Layers of a probe → rows of charts."""

from __future__ import annotations

from collections.abc import Iterable

from rankwise._text import sanitize
from rankwise.charts.layers import EMPTY, RANK_ONE, STRUCTURED, LayerRow
from rankwise.charts.spectrum import Spectrum
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.text import format_ranks, format_shape


def make_rows(
    layers: Iterable[LayerMetrics], random: Iterable[LayerMetrics] = ()
) -> list[LayerRow]:
    """Return a row for every probed layer; `random` has them with random weights.

    Example:
        >>> import torch, rankwise
        >>> result = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> row = make_rows(result, result.at_random())[0]
        >>> row["layer"], row["depth"], row["state"], row["random_stable_rank"]
        ('fc.weight', 1, 'rank 1 (inflated q)', 0.0)
    """
    random_by_name = {layer.name: layer for layer in random if layer.is_probed}
    rows: list[LayerRow] = []
    for layer in layers:
        if not layer.is_probed:
            continue
        row: LayerRow = {
            "layer": sanitize(layer.name),
            "depth": len(rows) + 1,
            "kind": sanitize(layer.kind),
            "shape": format_shape(layer.shape),
            "ranks": format_ranks(layer),
            "state": EMPTY
            if layer.is_empty
            else RANK_ONE
            if layer.has_inflated_quality
            else STRUCTURED,
            "quality": layer.quality,
            "stable_rank": layer.stable_rank,
            "condition": layer.condition,
            "rank_fraction": layer.rank_fraction,
            "noise_fraction": layer.noise_fraction,
        }
        twin = random_by_name.get(layer.name)
        if twin is not None:
            row["random_quality"] = twin.quality
            row["random_stable_rank"] = twin.stable_rank
            row["random_condition"] = twin.condition
            row["random_rank_fraction"] = twin.rank_fraction
            row["random_noise_fraction"] = twin.noise_fraction
        rows.append(row)
    return rows


def make_spectra(
    layers: Iterable[LayerMetrics], random: Iterable[LayerMetrics] = ()
) -> list[Spectrum]:
    """Return the singular values of every layer that has them; `random` has random weights."""
    values_of_random = {
        (layer.name, mode.mode): mode.spectrum.values
        for layer in random
        for mode in layer.modes
        if mode.spectrum
    }
    return [
        Spectrum(
            layer=sanitize(layer.name),
            # A matrix's rows are its outputs, as are those of a convolution's second unfolding.
            side="input" if mode.mode == "input" else "output",
            values=mode.spectrum.values,
            kept=mode.spectrum.kept,
            threshold=mode.spectrum.threshold,
            random=values_of_random.get((layer.name, mode.mode), ()),
        )
        for layer in layers
        for mode in layer.modes
        if mode.spectrum
    ]
