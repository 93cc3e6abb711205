"""Two networks → a plan of the adapter that turns one into the other, before anything is written.

A changed weight becomes a LoRA of a rank that comes from its singular values; what can't be one,
such as norms, is copied whole. Layers are read one after another, and no values are kept but the
singular ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rankwise._text import format_count, format_name, sanitize
from rankwise.adapters.deltas.change_records import ChangeStatus
from rankwise.adapters.deltas.changes import factorise_change
from rankwise.adapters.extraction.copied_tensors import copy_tensors
from rankwise.adapters.extraction.extraction_layers import MatrixChange, fit_layers, rank_layers
from rankwise.adapters.extraction.extraction_plan import (
    CopiedTensor,
    ExtractionOptions,
    ExtractionPlan,
    LayerPlan,
    LeftOut,
)
from rankwise.adapters.extraction.peft_network import Network, find_tied, get_owner, is_tied
from rankwise.adapters.pairs import Pair, Pairing, PairStatus, open_pairs
from rankwise.api import Target
from rankwise.errors import CheckpointError, NotFiniteError

Progress = Callable[[str, int, int], None]

# Weights of one origin point in about the same direction, those of two in none: their cosine is
# about 1/√n. Fine-tuning leaves it close to 1.
_UNRELATED = 0.1


@dataclass
class _Found:
    """What was measured of all pairs."""

    matrices: list[MatrixChange] = field(default_factory=list)
    others: dict[str, float] = field(default_factory=dict)  # ‖Δ‖² by name
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
    if any(pair.tuned.factors is not None for pair in pairing.pairs):
        raise CheckpointError(
            f"{sanitize(pairing.tuned.source)}: an adapter; expected two networks. "
            "`rankwise lora resize` makes a smaller adapter of one."
        )
    network = Network.find(pairing, base, tuned)
    found = _measure_all(pairing, network, progress)
    _refuse(pairing, found)
    return _choose(base, pairing, network, found, options)


def _choose(
    base: Target, pairing: Pairing, network: Network, found: _Found, options: ExtractionOptions
) -> ExtractionPlan:
    """Return the plan that options make of what was measured."""
    layers = rank_layers(found.matrices, options)
    copied = copy_tensors(pairing, network, found.others, [x for x in layers if x.rank])
    if options.max_size is not None:
        layers = fit_layers(layers, found.matrices, copied, options)
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
        _list_left_out(pairing, network, found, copied),
        found.unchanged,
        tuple(network.list_modules(pairing)),
        partial(_choose, base, pairing, network, found),
        (*pairing.notes, *_list_notes(pairing, layers)),
    )


def _list_notes(pairing: Pairing, layers: Sequence[LayerPlan]) -> list[str]:
    """Return what the user must know to get the tuned network from the adapter."""
    adapted = [layer for layer in layers if layer.rank]
    tied = find_tied(pairing)
    names = [x.module for x in adapted if x.form == "embedding" or x.pair.name in tied]
    notes = []
    if names and (tied or is_tied(pairing)):
        notes.append(
            f"{format_name(names[0])} is tied to another layer, as to the output layer, and PEFT "
            "puts the LoRA on one of them: merge the adapter (`merge_and_unload`) to change both."
        )
    modules = {layer.module for layer in adapted}
    parents = {get_owner(layer.module) for layer in adapted if layer.form == "attention"}
    if any(f"{parent}.linear1" in modules for parent in parents):
        notes.append(
            "torch.nn.TransformerEncoderLayer has a fast path that no LoRA reaches: merge the "
            "adapter, or call torch.backends.mha.set_fastpath_enabled(False)."
        )
    return notes


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
        change = factorise_change(pair)
    except NotFiniteError as error:
        found.damaged.append(f"{format_name(pair.name)}: {error}")
        return
    record, obstacle = change.record, network.find_obstacle(pair)
    energy = (record.norm or 0.0) ** 2
    if form is not None and change.cosine is not None:
        found.cosines.append(change.cosine)
    if record.status is ChangeStatus.UNCHANGED:
        found.unchanged += 1
    elif record.status is ChangeStatus.ROUNDING:
        found.left_out.append(LeftOut(pair.name, f"rounding only, {record.reason}"))
    elif obstacle:
        found.left_out.append(LeftOut(pair.name, obstacle, energy))
    elif form is not None:
        found.matrices.append(MatrixChange(pair, network.get_name(pair), form, change))
    elif pair.base.stored is not None or pair.tuned.stored is not None:
        found.left_out.append(LeftOut(pair.name, "quantised, and no layer for a LoRA", energy))
    else:
        found.others[network.get_name(pair)] = energy


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


def _list_left_out(
    pairing: Pairing, network: Network, found: _Found, copied: Sequence[CopiedTensor]
) -> tuple[LeftOut, ...]:
    """Return what is not in the adapter; counters are in it where their module is stored whole."""
    names = {tensor.name for tensor in copied}
    stored = {pair.name for pair in pairing.pairs if network.get_name(pair) in names}
    left_out = [item for item in found.left_out if item.name not in stored]
    left_out += [LeftOut(w.name, "only in the tuned network") for w in pairing.only_tuned]
    left_out += [LeftOut(w.name, "only in the base") for w in pairing.only_base]
    return tuple(left_out)
