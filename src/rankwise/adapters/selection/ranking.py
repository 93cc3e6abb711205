"""Choose the layers to fine-tune, and a LoRA rank for each, from the weights alone.

The criterion is the share of signal, ‖Ŵ‖²/‖W‖²: the part of a layer's squared norm that EVBMF calls
low rank. The share depends on the kind and the shape of a layer, so layers compete with those of
their own role (the same name but for its numbers) and shape; each such group gives the same share
of its layers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from rankwise._text import format_count, quote
from rankwise.api import Target, probe
from rankwise.errors import ArgumentError, TargetError
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.results import Probe
from rankwise.weights.kinds import find_role

_KINDS = frozenset({"linear", "attention", "conv1d", "conv2d", "conv3d", "stack"})


@dataclass(frozen=True, slots=True)
class RankedLayer:
    """A layer that could be fine-tuned.

    Attributes:
        name: Its weight.
        role: The name without its numbers.
        kind: As in `LayerMetrics.kind`.
        shape: Of the weight as it is stored.
        signal: ‖Ŵ‖²/‖W‖², the criterion.
        rank: n', EVBMF's rank; the mean over the unfoldings of a convolution.
        is_chosen: Whether it is among those to fine-tune.
        lora_rank: r of a LoRA on it, in proportion to n' among the chosen; 0 if it is not chosen.
    """

    name: str
    role: str
    kind: str
    shape: tuple[int, ...]
    signal: float
    rank: float
    is_chosen: bool = False
    lora_rank: int = 0

    @property
    def group(self) -> tuple[str, tuple[int, ...]]:
        """What it shares with those that it competes with."""
        return self.role, self.shape

    @property
    def module(self) -> str | None:
        """The module's name, where the weight is called so; None for other parameters."""
        return self.name[: -len(".weight")] if self.name.endswith(".weight") else None


@dataclass(frozen=True, slots=True)
class Selection:
    """The layers to fine-tune.

    Attributes:
        source: The checkpoint's name.
        layers: All layers that competed, in the network's order.
        left_out: Weight matrices that did not compete, each with the reason.
        budget: The share of layers to choose.
    """

    source: str
    layers: tuple[RankedLayer, ...]
    left_out: tuple[tuple[str, str], ...]
    budget: float

    def __repr__(self) -> str:
        chosen = sum(layer.is_chosen for layer in self.layers)
        layers = format_count(len(self.layers), "layer")
        return f"<Selection of {quote(self.source)}: {chosen} of {layers} chosen>"

    @property
    def chosen(self) -> tuple[RankedLayer, ...]:
        """The layers to fine-tune, in the network's order."""
        return tuple(layer for layer in self.layers if layer.is_chosen)


def select_layers(
    target: Target | Probe,
    budget: float = 0.25,
    *,
    rank: int = 16,
    alone: bool = False,
) -> Selection:
    """Choose layers of a checkpoint to fine-tune; in our tests no better than random ones.

    Args:
        target: A module, a state dict, a path, or a probe; only what was probed competes.
        budget: The share of layers to choose, above 0 and at most 1.
        rank: r of a LoRA with equal ranks that would have as many parameters.
        alone: Whether layers without siblings, such as a head, may be chosen as well.

    Raises:
        ArgumentError: If an option is out of range.
        TargetError: If no layer can be chosen.

    Example:
        >>> import torch
        >>> from rankwise.adapters import select_layers
        >>> _ = torch.manual_seed(0)
        >>> weights = {f"blocks.{i}.fc.weight": torch.randn(32, 64) for i in range(4)}
        >>> weights["blocks.2.fc.weight"] += 3 * torch.ones(32, 64)
        >>> [layer.name for layer in select_layers(weights, 0.25).chosen]
        ['blocks.2.fc.weight']
    """
    if not (isinstance(budget, int | float) and 0 < budget <= 1):
        raise ArgumentError(f"Expected a budget above 0 and at most 1, got {budget!r}.")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ArgumentError(f"Expected a whole number of at least 1 as rank, got {rank!r}.")
    probed = target if isinstance(target, Probe) else probe(target)
    layers, left_out = _list_candidates(probed, alone=alone)
    if not layers:
        raise TargetError(
            f"{probed.source}: no layer to choose from: a layer competes with others of the same "
            "name (but for its numbers) and shape, and there are none. Allow others with "
            "`alone=True` (--include on the command line)."
        )
    chosen = choose_share([(layer.group, layer.signal) for layer in layers], budget)
    ranked = _assign_ranks(layers, chosen, rank)
    return Selection(probed.source, tuple(ranked), tuple(left_out), float(budget))


def _list_candidates(
    probed: Probe, *, alone: bool
) -> tuple[list[RankedLayer], list[tuple[str, str]]]:
    """Return the layers that compete, and those matrices that do not, with the reason."""
    stacks: dict[str, list[LayerMetrics]] = {}
    left_out: list[tuple[str, str]] = []
    for row in probed.layers:
        if row.is_probed and row.kind not in _KINDS:
            left_out.append((row.name, f"kind {row.kind}"))
        elif row.is_probed:
            stacks.setdefault(row.group or row.name, []).append(row)
    layers = [_rank_layer(name, rows) for name, rows in stacks.items()]
    if not alone:
        counts = Counter(layer.group for layer in layers)
        single = [layer for layer in layers if counts[layer.group] < 2]
        left_out += [(layer.name, "no other of its role and shape") for layer in single]
        layers = [layer for layer in layers if counts[layer.group] > 1]
    return layers, left_out


def _rank_layer(name: str, rows: Sequence[LayerMetrics]) -> RankedLayer:
    """Return a weight with its criterion; of stacked experts the means over them."""
    signal = [1 - row.noise_fraction for row in rows if row.noise_fraction is not None]
    ranks = [row.rank for row in rows if row.rank is not None]
    first = rows[0]
    shape = (len(rows), *first.shape) if first.group else first.shape
    return RankedLayer(
        name,
        find_role(name),
        "stack" if first.group else first.kind,
        shape,
        math.fsum(signal) / max(len(signal), 1),
        math.fsum(ranks) / max(len(ranks), 1),
    )


def choose_share(layers: Sequence[tuple[Hashable, float]], share: float) -> set[int]:
    """Return the places of the best layers: of each group the same share, by the largest remainder.

    Args:
        layers: The group and the score of each.
        share: Of the layers, rounded to a whole number of them but at least one.

    Example:
        >>> sorted(choose_share([("a", 0.1), ("a", 0.3), ("b", 0.9), ("b", 0.2)], 0.5))
        [1, 2]
    """
    groups: dict[Hashable, list[int]] = {}
    for place, (group, _) in enumerate(layers):
        groups.setdefault(group, []).append(place)
    # Rounded first: 0.1 × 30 is a little more than 3 in floating point.
    quotas = {group: round(share * len(places), 9) for group, places in groups.items()}
    counts = {group: math.floor(quota) for group, quota in quotas.items()}
    total = max(1, round(share * len(layers)))
    by_remainder = sorted(groups, key=lambda group: counts[group] - quotas[group])
    for group in by_remainder[: total - sum(counts.values())]:
        counts[group] += 1
    return {
        place
        for group, places in groups.items()
        for place in sorted(places, key=lambda place: -layers[place][1])[: counts[group]]
    }


def _assign_ranks(layers: Sequence[RankedLayer], chosen: set[int], rank: int) -> list[RankedLayer]:
    """Return the layers with a LoRA rank for each that is chosen, in proportion to n'.

    Together they have about as many parameters as with `rank` everywhere.
    """
    sides = [get_sides(layer) for layer in layers]
    shares = {place: layers[place].rank for place in chosen}
    if not any(shares.values()):
        shares = dict.fromkeys(chosen, 1.0)
    weighted = math.fsum(shares[place] * sum(sides[place]) for place in chosen)
    factor = rank * sum(sum(sides[place]) for place in chosen) / weighted

    def assign(place: int) -> int:
        return min(max(1, round(factor * shares[place])), *sides[place])

    return [
        replace(layer, is_chosen=True, lora_rank=assign(place)) if place in chosen else layer
        for place, layer in enumerate(layers)
    ]


def get_sides(layer: RankedLayer) -> tuple[int, int]:
    """Return the sides of a layer's matrix, whose sum is what a rank of a LoRA costs."""
    shape = layer.shape[-2:] if layer.kind == "stack" else layer.shape
    return shape[0], math.prod(shape[1:])
