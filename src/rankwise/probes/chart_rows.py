"""Layers of a probe → rows of charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rankwise._text import sanitize
from rankwise.charts.layers import (
    DIFFERS,
    FLAT,
    NORMS_ONLY,
    NOT_COMPARED,
    SAME_AS_RANDOM,
    TOO_SMALL,
    LayerRow,
)
from rankwise.charts.spectrum import Spectrum
from rankwise.numerics.randomness import Verdict
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.text import format_ranks, format_shape

_STATES = {
    Verdict.DIFFERS: DIFFERS,
    Verdict.FLAT: FLAT,
    Verdict.NORMS_ONLY: NORMS_ONLY,
    Verdict.RANDOM: SAME_AS_RANDOM,
    Verdict.TOO_SMALL: TOO_SMALL,
}


def make_rows(
    layers: Iterable[LayerMetrics],
    random: Iterable[LayerMetrics] = (),
    findings: Mapping[str, str] = MappingProxyType({}),
) -> list[LayerRow]:
    """Return a row for every probed layer, numbered from 1.

    Args:
        layers: The layers.
        random: The same with random weights.
        findings: The worst severity of what a check found, by the layer's name.

    Example:
        >>> import torch, rankwise
        >>> result = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> row = make_rows(result, result.at_random())[0]
        >>> row["layer"], row["depth"], row["state"], row["random_stable_rank"]
        ('fc.weight', 1, 'too small to tell', 0.0)
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
            "state": NOT_COMPARED if layer.verdict is None else _STATES[layer.verdict],
            "finding": findings.get(layer.name, ""),
            "rank_one": layer.has_inflated_quality,
            "prominence": layer.prominence,
            "quality": layer.quality,
            "stable_rank": layer.stable_rank,
            "condition": layer.condition,
            "rank_fraction": layer.rank_fraction,
            "noise_fraction": layer.noise_fraction,
        }
        twin = random_by_name.get(layer.name)
        if twin is not None:
            row["random_prominence"] = twin.prominence
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
    probed = [layer for layer in layers if layer.is_probed]
    return [
        Spectrum(
            layer=sanitize(layer.name),
            depth=depth,
            # A matrix's rows are its outputs, as are those of a convolution's second unfolding.
            side="input" if mode.mode == "input" else "output",
            values=mode.spectrum.values,
            kept=mode.spectrum.kept,
            threshold=mode.spectrum.threshold,
            random=values_of_random.get((layer.name, mode.mode), ()),
        )
        for depth, layer in enumerate(probed, 1)
        for mode in layer.modes
        if mode.spectrum
    ]
