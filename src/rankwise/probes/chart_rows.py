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
    SEVERITIES,
    TOO_SMALL,
    LayerRow,
)
from rankwise.charts.spectrum import Spectrum
from rankwise.numerics.randomness import Verdict
from rankwise.probes.groups import Item, LayerGroup, get_row
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.text import format_ranks, format_shape, name_item

_STATES = {
    Verdict.DIFFERS: DIFFERS,
    Verdict.FLAT: FLAT,
    Verdict.NORMS_ONLY: NORMS_ONLY,
    Verdict.RANDOM: SAME_AS_RANDOM,
    Verdict.TOO_SMALL: TOO_SMALL,
}


def make_rows(
    layers: Iterable[Item],
    random: Iterable[LayerMetrics] = (),
    findings: Mapping[str, str] = MappingProxyType({}),
) -> list[LayerRow]:
    """Return a row for every probed layer and every group of experts, numbered from 1.

    Args:
        layers: The layers; groups of experts are drawn by their medians. A layer that is also a
            member of one of the groups is marked as such.
        random: The layers with random weights.
        findings: The worst severity of what a check found, by the layer's name.

    Example:
        >>> import torch, rankwise
        >>> result = rankwise.probe({"fc.weight": torch.eye(4) + 9})
        >>> row = make_rows(result, result.at_random())[0]
        >>> row["layer"], row["depth"], row["state"], row["random_stable_rank"]
        ('fc.weight', 1, 'too small to tell', 0.0)
    """
    listed = [item for item in layers if get_row(item).is_probed]
    groups = [item for item in listed if isinstance(item, LayerGroup)]
    members = {layer.name for group in groups for layer in group.members}
    random_by_name = {layer.name: layer for layer in random if layer.is_probed}
    rows: list[LayerRow] = []
    for depth, item in enumerate(listed, 1):
        layer, of = get_row(item), get_source(item)
        row: LayerRow = {
            "layer": name_item(item),
            "depth": depth,
            "kind": sanitize(layer.kind),
            "shape": format_shape(layer.shape),
            "ranks": format_ranks(layer),
            "state": NOT_COMPARED if layer.verdict is None else _STATES[layer.verdict],
            "finding": find_worst(item, findings),
            "is_member": item.name in members,
            "has_outliers": isinstance(item, LayerGroup) and bool(item.outliers),
            "rank_one": layer.has_inflated_quality,
            "prominence": layer.prominence,
            "quality": layer.quality,
            "stable_rank": layer.stable_rank,
            "condition": layer.condition,
            "rank_fraction": layer.rank_fraction,
            "noise_fraction": layer.noise_fraction,
        }
        twin = random_by_name.get(of.name)
        if twin is not None:
            row["random_prominence"] = twin.prominence
            row["random_quality"] = twin.quality
            row["random_stable_rank"] = twin.stable_rank
            row["random_condition"] = twin.condition
            row["random_rank_fraction"] = twin.rank_fraction
            row["random_noise_fraction"] = twin.noise_fraction
        rows.append(row)
    return rows


def get_source(item: Item) -> LayerMetrics:
    """Return the layer whose spectrum is drawn for an item: itself, or a group's typical member."""
    return item.typical if isinstance(item, LayerGroup) else item


def find_worst(item: Item, findings: Mapping[str, str]) -> str:
    """Return the worst severity of a layer, or of the members of a group; "" for none."""
    if not isinstance(item, LayerGroup):
        return findings.get(item.name, "")
    found = {findings[layer.name] for layer in item.members if layer.name in findings}
    return next((severity for severity in SEVERITIES if severity in found), "")


def make_spectra(layers: Iterable[Item], random: Iterable[LayerMetrics] = ()) -> list[Spectrum]:
    """Return the singular values of every layer that has them; `random` has random weights.

    Of a group of experts, they are those of its typical member.
    """
    values_of_random = {
        (layer.name, mode.mode): mode.spectrum.values
        for layer in random
        for mode in layer.modes
        if mode.spectrum
    }
    probed = [item for item in layers if get_row(item).is_probed]
    return [
        Spectrum(
            layer=name_item(item),
            depth=depth,
            # A matrix's rows are its outputs, as are those of a convolution's second unfolding.
            side="input" if mode.mode == "input" else "output",
            values=mode.spectrum.values,
            kept=mode.spectrum.kept,
            threshold=mode.spectrum.threshold,
            random=values_of_random.get((get_source(item).name, mode.mode), ()),
        )
        for depth, item in enumerate(probed, 1)
        for mode in get_row(item).modes
        if mode.spectrum
    ]
