"""A target → its probe and the facts of every tensor, each loaded once; changes against a base."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rankwise.api import Target, open_target
from rankwise.checkpoints.memory import release_memory
from rankwise.checks.facts import TensorFacts, find_sum_type, gather_facts, split_filters
from rankwise.probes.adapter_layers import AdapterLayer, measure_adapter
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.parallel import Progress, measure_weights
from rankwise.probes.results import Probe
from rankwise.probes.workers import Resources
from rankwise.weights.combine import mark_ties
from rankwise.weights.tensor import LOAD_ERRORS, Status, Weight, Weights

# Tensors that are not probed but hold numbers that can be damaged.
_ALSO_READ = {Status.VECTOR, Status.TOO_SMALL, Status.NOT_A_WEIGHT}
# Singular values of so many layers are kept for pages; of thousands of experts they take gigabytes.
_MAX_SPECTRA = 4096
_CHECKED = {Status.PROBED, Status.NOT_FINITE}


@dataclass(frozen=True, slots=True)
class Change:
    """How far a tensor is from the base's of the same name and shape.

    Attributes:
        distance: ‖W − W_base‖ / ‖W_base‖; infinite where the base is zero and this is not.
        cosine: Of the angle between the two; 0 where one of them is zero.
    """

    distance: float
    cosine: float


@dataclass(frozen=True)
class Inspection:
    """What the checks look at.

    Attributes:
        probe: The metrics of every tensor.
        facts: By name, of the floating tensors that could be read.
        changes: By name, of those that the base has in the same shape.
        config: What the network's configuration says.
        adapter: The layers of an adapter, where there is one.
    """

    probe: Probe
    facts: Mapping[str, TensorFacts]
    changes: Mapping[str, Change] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    adapter: tuple[AdapterLayer, ...] = ()

    def list_layers(self) -> list[tuple[LayerMetrics, TensorFacts]]:
        """Return the weights that were probed, with their facts."""
        return [(row, self.facts[row.name]) for row in self.probe.probed if row.name in self.facts]


def inspect_target(
    target: Target,
    *,
    key: str | None = None,
    base: Weights | None = None,
    spectra: bool = True,
    resources: Resources | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Inspection:
    """Open a target, and inspect its weights."""
    is_file = isinstance(target, str | os.PathLike)
    weights = open_target(target, key)
    return inspect_weights(
        weights,
        base=base,
        spectra=spectra,
        resources=resources,
        progress=progress,
        is_file=is_file,
    )


def inspect_weights(
    weights: Weights,
    *,
    is_file: bool,
    base: Weights | None = None,
    spectra: bool = True,
    resources: Resources | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Inspection:
    """Probe weights and gather the facts of each tensor while it is loaded."""
    earlier = {} if base is None else {weight.name: weight for weight in base.tensors}
    facts: dict[str, TensorFacts] = {}
    changes: dict[str, Change] = {}
    unreadable: dict[str, str] = {}
    loading = threading.Lock()  # readers need not be thread-safe

    def inspect(weight: Weight, tensor: Tensor | None = None) -> None:
        try:
            tensor = weight.load() if tensor is None else tensor
            facts[weight.name] = _gather_facts(weight, tensor)
        except LOAD_ERRORS as error:
            unreadable[weight.name] = " ".join(str(error).split()) or repr(error)
            return
        other = earlier.get(weight.name)
        is_finite = facts[weight.name].not_finite == 0
        if other is not None and is_finite and _is_comparable(weight, other):
            with loading:
                reference = other.load()
            changes[weight.name] = measure_change(tensor, reference)

    marked = mark_ties(weights.tensors)
    rows = measure_weights(
        marked,
        spectra=spectra and len(marked) <= _MAX_SPECTRA,
        compare=True,
        inspect=inspect,
        progress=progress,
        release=release_memory if is_file else None,
        resources=resources,
    )
    for weight, row in zip(marked, rows, strict=True):
        if row.status in _ALSO_READ and weight.dtype.is_floating_point:
            inspect(weight)
    rows = [
        replace(row, status=Status.UNREADABLE, reason=unreadable[row.name])
        if row.name in unreadable
        else row
        for row in rows
    ]
    probe = Probe(weights.source, tuple(rows), notes=weights.notes, order=weights.order)
    adapter = tuple(measure_adapter(weights.tensors))
    return Inspection(probe, facts, changes, weights.config, adapter)


def has_measured(probe: Probe) -> bool:
    """Return whether the values of any layer were looked at; NaN and Inf are values too."""
    return any(row.status in _CHECKED for row in probe.layers)


def measure_coverage(probe: Probe) -> float:
    """Return the share of a network's parameters in layers whose values were looked at.

    Example:
        >>> import torch, rankwise
        >>> from rankwise.checks.inspection import measure_coverage
        >>> measure_coverage(rankwise.probe({"fc.weight": torch.full((4, 4), torch.nan)}))
        1.0
    """
    checked = sum(row.parameters for row in probe.layers if row.status in _CHECKED)
    constants = sum(
        row.parameters
        for row in probe.layers
        if row.dtype == "bool" or row.status is Status.NOT_A_WEIGHT
    )
    return checked / max(1, probe.figures.parameters - constants)


def inspect_facts(weights: Iterable[Weight]) -> dict[str, TensorFacts]:
    """Gather the facts of every floating tensor that can be read, and measure none."""
    facts: dict[str, TensorFacts] = {}
    for weight in weights:
        is_product = weight.singular_values is not None  # of factors; it is never formed
        if weight.obstacle is None and weight.dtype.is_floating_point and not is_product:
            with contextlib.suppress(*LOAD_ERRORS):
                facts[weight.name] = _gather_facts(weight, weight.load())
    return facts


def _gather_facts(weight: Weight, tensor: Tensor) -> TensorFacts:
    if weight.obstacle is not None:  # no weight matrix: its numbers are looked at like a bias's
        return gather_facts(tensor.reshape(-1))
    return gather_facts(tensor, weight.output_axis)


def _is_comparable(weight: Weight, other: Weight) -> bool:
    return weight.shape == other.shape and other.dtype.is_floating_point and other.obstacle is None


def measure_change(tensor: Tensor, base: Tensor) -> Change:
    """Measure how far a tensor is from another of the same shape, block by block.

    Example:
        >>> import torch
        >>> from rankwise.checks.inspection import measure_change
        >>> measure_change(torch.ones(2, 2), torch.full((2, 2), 2.0))
        Change(distance=0.5, cosine=1.0)
    """
    moved = own = theirs = both = 0.0
    with torch.no_grad():
        pairs = zip(split_filters(tensor), split_filters(base.to(tensor.device)), strict=True)
        for own_block, base_block in pairs:
            # Squares of float32 can overflow.
            a, b = (block.to(find_sum_type(tensor)) for block in (own_block, base_block))
            moved += float(((a - b) ** 2).sum())
            own += float((a * a).sum())
            theirs += float((b * b).sum())
            both += float((a * b).sum())
    if moved == 0.0:
        return Change(0.0, 1.0)
    if not math.isfinite(moved):  # the base is broken
        return Change(math.inf, 0.0)
    distance = math.sqrt(moved / theirs) if theirs else math.inf
    norms = math.sqrt(own) * math.sqrt(theirs)
    return Change(distance, max(-1.0, min(1.0, both / norms)) if norms else 0.0)
