"""Two networks → a plan of the adapter that turns one into the other, before anything is written.

A changed weight becomes a LoRA of a rank that comes from its singular values; what can't be one,
such as norms, is copied whole. Layers are read one after another, and no values are kept but the
singular ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from rankwise._text import format_count, format_name, sanitize
from rankwise.adapters.delta import Delta, measure_delta
from rankwise.adapters.extraction_plan import (
    LORA_TYPES,
    CopiedTensor,
    ExtractionOptions,
    ExtractionPlan,
    LayerPlan,
    LeftOut,
    Place,
)
from rankwise.adapters.pairs import Pair, Pairing, PairStatus, open_pairs
from rankwise.adapters.peft_layout import Form, choose_saved_modules, list_modules
from rankwise.adapters.peft_network import Network, get_owner, is_tied
from rankwise.adapters.peft_tensors import count_bytes, list_specs
from rankwise.adapters.rank_budget import Candidate, choose_rank, distribute
from rankwise.api import Target
from rankwise.errors import ArgumentError, CheckpointError, NotFiniteError
from rankwise.numerics.spectrum import Array

Progress = Callable[[str, int, int], None]

# Weights of one origin point in about the same direction, those of two in none: their cosine is
# about 1/√n. Fine-tuning leaves it close to 1.
_UNRELATED = 0.1


@dataclass
class _Found:
    """What was measured of all pairs."""

    matrices: list[tuple[Pair, Form, Delta]] = field(default_factory=list)
    others: list[tuple[Pair, Delta]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    unchanged: int = 0


def plan_extraction(
    base: Target,
    tuned: Target,
    options: ExtractionOptions | None = None,
    *,
    key: str | None = None,
    base_key: str | None = None,
    progress: Progress | None = None,
) -> ExtractionPlan:
    """Measure how two networks differ and choose the ranks of an adapter; nothing is written.

    Args:
        base: The network that the adapter is for: a module, a state dict or a path.
        tuned: What was made from it.
        options: How large the adapter may be.
        key: The part of a nested checkpoint `tuned` that holds the weights.
        base_key: The same for `base`.
        progress: Called before each tensor with its name, its number and how many there are.

    Raises:
        CheckpointError: If one can't be read, holds NaN or infinity, or is an adapter; if nothing
            changed; if both are unrelated.
        ProbeMismatchError: If they have no name in common.
        ArgumentError: If the adapter can't be as small as `max_size`.

    Example:
        >>> import torch
        >>> from rankwise.adapters import plan_extraction
        >>> _ = torch.manual_seed(0)
        >>> old = {"a.fc.weight": torch.randn(64, 48)}
        >>> change = torch.randn(64, 2) @ torch.randn(2, 48)
        >>> plan = plan_extraction(old, {"a.fc.weight": old["a.fc.weight"] + change})
        >>> [(layer.module, layer.rank) for layer in plan.layers], plan.parameters
        ([('a.fc', 2)], 224)
    """
    options = options or ExtractionOptions()
    pairing = open_pairs(base, tuned, key=key, base_key=base_key)
    network = Network.find(pairing, base, tuned)
    found = _measure_all(pairing, network, progress)
    _refuse(pairing, found)
    modules = list_modules(network.get_name(pair) for pair in pairing.pairs)
    layers = _rank_layers(found.matrices, network, options)
    copied = _copy_others(pairing, network, found, layers)
    if options.max_size is not None:
        layers = _fit(layers, found.matrices, copied, options)
    if not copied and not any(layer.rank for layer in layers):
        raise CheckpointError(
            f"{sanitize(pairing.tuned.source)}: {format_count(len(layers), 'layer')} changed, but "
            "no change has a direction that stands out of noise (or fits into max_size), so the "
            "adapter would be empty. Give a rank, such as 16, to keep the strongest directions."
        )
    return ExtractionPlan(
        base,
        pairing,
        options,
        tuple(layers),
        tuple(copied),
        (*found.left_out, *_list_single(pairing)),
        found.unchanged,
        tuple(modules),
        (*pairing.notes, *_list_notes(pairing, layers)),
    )


def _list_notes(pairing: Pairing, layers: Sequence[LayerPlan]) -> list[str]:
    """Return what the user must know to get the tuned network from the adapter."""
    if is_tied(pairing) and any(layer.form == "embedding" and layer.rank for layer in layers):
        return [
            "The output layer is tied to the embedding, and PEFT puts the LoRA on the embedding "
            "alone: merge the adapter (`merge_and_unload`) to change both."
        ]
    return []


def _measure_all(pairing: Pairing, network: Network, progress: Progress | None) -> _Found:
    found = _Found()
    for number, pair in enumerate(pairing.pairs):
        if progress is not None:
            progress(pair.name, number, len(pairing.pairs))
        if pair.is_comparable:
            _measure(pair, network, found)
        elif pair.status is PairStatus.NOT_FLOATING and _is_same(pair):
            found.unchanged += 1
        elif pair.obstacle is not None and pair.status is not PairStatus.TIED:
            found.left_out.append(LeftOut(pair.name, f"{pair.status}: {pair.obstacle[1]}"))
    return found


def _measure(pair: Pair, network: Network, found: _Found) -> None:
    form = network.find_form(pair)
    try:
        delta = measure_delta(pair, spectrum=form is not None)
    except NotFiniteError as error:
        found.damaged.append(f"{format_name(pair.name)} ({error})")
        return
    if form is not None and delta.cosine is not None:
        found.cosines.append(delta.cosine)
    obstacle = network.find_obstacle(pair)
    if delta.energy == 0:
        found.unchanged += 1
    elif delta.rounding is not None:
        kind = str(delta.rounding).removeprefix("torch.")
        found.left_out.append(LeftOut(pair.name, f"only rounded to {kind}", delta.energy))
    elif obstacle:
        found.left_out.append(LeftOut(pair.name, obstacle, delta.energy))
    elif form is not None:
        found.matrices.append((pair, form, delta))
    elif pair.base.stored is not None or pair.tuned.stored is not None:
        found.left_out.append(LeftOut(pair.name, "quantised, and no layer for a LoRA"))
    else:
        found.others.append((pair, delta))


def _is_same(pair: Pair) -> bool:
    base, tuned = pair.base.load(), pair.tuned.load()
    return base.shape == tuned.shape and bool((base == tuned).all())


def _refuse(pairing: Pairing, found: _Found) -> None:
    """Raise an error where no adapter can be made of what was found."""
    source = sanitize(pairing.tuned.source)
    if found.damaged:
        more = len(found.damaged) - 1
        others = f", and {format_count(more, 'other tensor')}" if more else ""
        raise CheckpointError(
            f"{source}: {found.damaged[0]}{others}. Nothing is extracted from damaged weights."
        )
    if not found.matrices and not found.others:
        why = ""
        if found.left_out:
            first = found.left_out[0]
            why = f" that an adapter can hold ({format_name(first.name)}: {sanitize(first.reason)})"
        raise CheckpointError(
            f"{source}: nothing changed against {sanitize(pairing.base.source)}{why}; "
            "there is nothing to extract."
        )
    if found.cosines and abs(statistics.median(found.cosines)) < _UNRELATED:
        raise CheckpointError(
            f"{source}: unrelated to {sanitize(pairing.base.source)}: the weights of both point in "
            f"different directions (median cosine {statistics.median(found.cosines):.2f}; after "
            "fine-tuning it is close to 1). Give the network that it was made from."
        )


def _rank_layers(
    matrices: Sequence[tuple[Pair, Form, Delta]], network: Network, options: ExtractionOptions
) -> list[LayerPlan]:
    """Return the layers with the ranks that the rule gives."""
    layers = []
    for pair, form, delta in matrices:
        layer = _make_layer(pair, form, delta, network, options)
        rank = choose_rank(_make_candidate(layer, delta), options.rank, options.max_rank)
        layers.append(_set_rank(layer, delta, rank, shrink=options.shrink))
    return layers


def _make_layer(
    pair: Pair, form: Form, delta: Delta, network: Network, options: ExtractionOptions
) -> LayerPlan:
    """Return the record of a layer without a rank."""
    dtype = pair.tuned.dtype if pair.tuned.dtype in LORA_TYPES else torch.float32
    relative = (delta.energy / delta.base_energy) ** 0.5 if delta.base_energy else math.inf
    signal = 0 if delta.signal is None else delta.signal.rank
    return LayerPlan(
        network.get_name(pair),
        form,
        pair.tuned.shape,
        rank=0,
        # One row or column is of rank 1, whatever it holds.
        signal=1 if min(pair.matrix_shape) == 1 else signal,
        energy=delta.energy,
        relative=relative,
        kept=0.0,
        parameters=0,
        dtype=options.dtype or dtype,
        pair=pair,
    )


def _make_candidate(layer: LayerPlan, delta: Delta) -> Candidate:
    cost = sum(layer.pair.matrix_shape) * layer.dtype.itemsize
    return Candidate(_get_values(delta), layer.signal, cost)


def _get_values(delta: Delta) -> Array:
    return np.empty(0) if delta.spectrum is None else delta.spectrum.values


def _set_rank(layer: LayerPlan, delta: Delta, rank: int, *, shrink: bool) -> LayerPlan:
    """Return a layer with its rank and what that keeps; shrunk values exist up to n' only."""
    own = _get_values(delta)
    shrunk = delta.signal.values[:rank] if shrink and delta.signal is not None else None
    rank = rank if shrunk is None else len(shrunk)
    error = own.copy()
    error[:rank] -= own[:rank] if shrunk is None else shrunk
    scale = float(own[0]) or 1.0
    kept = 1 - float(np.square(error / scale).sum() / np.square(own / scale).sum())
    return replace(
        layer,
        rank=rank,
        kept=max(0.0, kept) if rank else 0.0,
        parameters=rank * sum(layer.pair.matrix_shape),
        values=None if shrunk is None else tuple(map(float, shrunk)),
    )


def _fit(
    layers: Sequence[LayerPlan],
    matrices: Sequence[tuple[Pair, Form, Delta]],
    copied: Sequence[CopiedTensor],
    options: ExtractionOptions,
) -> list[LayerPlan]:
    """Return the layers with ranks that fit into `max_size`, none above those that they have."""
    limit = options.max_size or 0
    # The header of the file counts too: at most what it is with all layers in it.
    specs = list_specs(layers, copied)
    factors = sum(layer.parameters * layer.dtype.itemsize for layer in layers)
    fixed = count_bytes(specs) - factors
    if fixed > limit:
        raise ArgumentError(
            f"Expected max_size of at least {fixed} bytes, got {limit}: so much is needed for "
            f"{format_count(len(copied), 'tensor')} that can't be a LoRA, such as norms and biases."
        )
    deltas = [delta for _, _, delta in matrices]
    candidates = [_make_candidate(*one) for one in zip(layers, deltas, strict=True)]
    ranks = distribute(candidates, [layer.rank for layer in layers], limit - fixed)
    rows = zip(layers, deltas, ranks, strict=True)
    return [_set_rank(layer, delta, rank, shrink=options.shrink) for layer, delta, rank in rows]


def _copy_others(
    pairing: Pairing, network: Network, found: _Found, layers: Sequence[LayerPlan]
) -> list[CopiedTensor]:
    """Return the tensors to store whole, with all others of their modules."""
    by_name = {network.get_name(pair): pair for pair in pairing.pairs}
    energies = {network.get_name(pair): delta.energy for pair, delta in found.others}
    modules = list_modules(by_name)
    adapted = [layer.module for layer in layers if layer.rank]
    wanted = [get_owner(name) for name in energies if not _is_bias(name)]
    saved = choose_saved_modules(
        [module for module in dict.fromkeys(wanted) if module],
        modules,
        {*adapted, *_list_partial(pairing, network, found)},
    )
    copied = []
    for name, pair in by_name.items():
        if get_owner(name) in saved:
            copied.append(CopiedTensor(name, "module", energies.get(name, 0.0), pair.tuned))
        elif name in energies:
            place: Place = "bias" if _is_bias(name) else "tensor"
            copied.append(CopiedTensor(name, place, energies[name], pair.tuned))
    stored = {by_name[tensor.name].name for tensor in copied}
    found.left_out = [item for item in found.left_out if item.name not in stored]
    return copied


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


def _list_partial(pairing: Pairing, network: Network, found: _Found) -> set[str]:
    """Return modules that can't be stored whole: not all of their tensors are in both networks."""
    counters = {p.name for p in pairing.pairs if p.status is PairStatus.NOT_FLOATING}
    left_out = {item.name for item in found.left_out} - counters
    partial = {get_owner(network.get_name(p)) for p in pairing.pairs if p.name in left_out}
    single = (*pairing.only_base, *pairing.only_tuned)
    return partial | {get_owner(weight.name) for weight in single}


def _list_single(pairing: Pairing) -> list[LeftOut]:
    """Return what only one of the networks has; a tied output layer needs no storing."""
    sides = (
        (pairing.only_tuned, "only in the tuned network"),
        (pairing.only_base, "only in the base"),
    )
    return [LeftOut(weight.name, reason) for weights, reason in sides for weight in weights]
