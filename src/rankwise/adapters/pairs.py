"""Two networks → pairs of their tensors: a base's, and a tuned network's of the same name."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from rankwise._text import format_count, format_name, quote, sanitize
from rankwise.api import Target, open_target
from rankwise.errors import CheckpointError, NotFiniteError, ProbeMismatchError, TargetError
from rankwise.numerics.unfold import plan_unfoldings
from rankwise.probes.diff import match_names
from rankwise.probes.results import Probe
from rankwise.weights.tensor import Status, Weight, Weights

Side = Literal["base", "tuned network"]
# Matrices and convolutions; biases, norm scales and other vectors; tables that multiply no input.
Form = Literal["matrix", "vector", "other"]

_PRODUCTS = ("lora", "loha", "lokr")  # kinds of the products of an adapter's factors
# Tensors whose values can be compared, though some of them are not probed.
_READABLE = (Status.NOT_A_WEIGHT, Status.TIED, Status.VECTOR, Status.TOO_SMALL)
# As in the checkpoints of bert-base-uncased and others of its time.
_LEGACY = re.compile(r"(?:.*[._])?(?:LayerNorm|layer_norm)\.(gamma|beta)", re.DOTALL)
_MAX_LEGACY = 100  # characters at the end of a name that are read
_MERGE = (
    "Merge it into its base first, in PEFT by `PeftModel.from_pretrained(base, ADAPTER)"
    ".merge_and_unload()` and `save_pretrained(FOLDER)`, and give that"
)


class PairStatus(str, Enum):
    """Whether the two tensors of a pair can be compared, or why not."""

    COMPARABLE = "comparable"
    TIED = "tied"  # on both sides the same memory as an earlier pair
    RESHAPED = "reshaped"
    UNREADABLE = "unreadable"  # quantised in an unknown way, without data, damaged
    NOT_FLOATING = "not floating"  # indices, masks, counters, complex numbers
    EMPTY = "empty"  # it holds no numbers

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor that both networks have.

    Attributes:
        name: The tensor's name in the tuned network.
        base: As the base has it; its name may differ by a prefix.
        tuned: As the tuned network has it.
        form: What it is.
        obstacle: Why it can't be compared, with the reason in words; None where it can.
    """

    name: str
    base: Weight
    tuned: Weight
    form: Form
    obstacle: tuple[PairStatus, str] | None = None

    @property
    def status(self) -> PairStatus:
        """The obstacle's, else COMPARABLE."""
        return PairStatus.COMPARABLE if self.obstacle is None else self.obstacle[0]

    @property
    def is_comparable(self) -> bool:
        """Whether both sides can be loaded and have one shape."""
        return self.obstacle is None

    @property
    def output_axis(self) -> int:
        """The stored axis that counts outputs: 1 for GPT-2's Conv1D and transposed convolutions."""
        return self.tuned.output_axis or self.base.output_axis

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The sides of the matrix that `unfold` returns: outputs × all other axes."""
        shape = self.tuned.shape
        if len(shape) < 2:
            return math.prod(shape), 1
        outputs = shape[self.output_axis]
        return outputs, math.prod(shape) // max(1, outputs)

    def unfold(self, tensor: Tensor) -> Tensor:
        """Return a tensor of this shape as outputs × all other axes; a vector as one column."""
        if tensor.ndim < 2:
            return tensor.reshape(-1, 1)
        return tensor.movedim(self.output_axis, 0).flatten(1)

    def load(self) -> tuple[Tensor, Tensor]:
        """Load both sides as they are stored, the base first.

        Raises:
            NotFiniteError: If one of them holds NaN or infinity.
            RankwiseError: If a file changed or is damaged; also what else LOAD_ERRORS lists.
        """
        base, tuned = _load_side(self.base, "base"), _load_side(self.tuned, "tuned network")
        if base.shape != tuned.shape:
            raise CheckpointError(
                f"{format_name(self.name)}: its values have the shape {tuple(base.shape)} in the "
                f"base and {tuple(tuned.shape)} in the tuned network."
            )
        return base.to(tuned.device), tuned

    def load_change(self) -> Tensor:
        """Load tuned − base, without a rounding that counts: float64, or float32 of short types.

        Raises:
            NotFiniteError: If one of them holds NaN or infinity.
        """
        return subtract(*self.load())


@dataclass(frozen=True)
class Pairing:
    """The tensors of two networks, matched by name.

    Attributes:
        base: The base, with its name, notes and configuration.
        tuned: The tuned network.
        pairs: Tensors that both have, in the tuned network's order.
        only_base: Tensors that only the base has; parts of a larger weight are not listed.
        only_tuned: Tensors that only the tuned network has.
        renamed_prefix: As in `ProbeDiff.renamed_prefix`.
        notes: Sentences about the whole, such as that both are one file.
    """

    base: Weights
    tuned: Weights
    pairs: tuple[Pair, ...]
    only_base: tuple[Weight, ...] = ()
    only_tuned: tuple[Weight, ...] = ()
    renamed_prefix: str = ""
    notes: tuple[str, ...] = ()

    @property
    def comparable(self) -> tuple[Pair, ...]:
        """The pairs whose change can be measured, tied tensors once."""
        return tuple(pair for pair in self.pairs if pair.is_comparable)


def open_pairs(
    base: Target, tuned: Target, *, key: str | None = None, base_key: str | None = None
) -> Pairing:
    """Open two networks and match their tensors by name; no values are read yet.

    Args:
        base: A module, a state dict or a path.
        tuned: What was made from it.
        key: The part of a nested checkpoint `tuned` that holds the weights.
        base_key: The same for `base`.

    Raises:
        CheckpointError: If one of them can't be read, or is an adapter instead of a network.
        ProbeMismatchError: If they have no name in common.
        TargetError: If one of them is no network.

    Example:
        >>> import torch
        >>> from rankwise.adapters.pairs import open_pairs
        >>> old = {"fc.weight": torch.ones(4, 4), "fc.bias": torch.ones(4)}
        >>> new = {"model.fc.weight": torch.eye(4), "model.fc.bias": torch.ones(3)}
        >>> [(pair.name, pair.form, pair.status.value) for pair in open_pairs(old, new).pairs]
        [('model.fc.weight', 'matrix', 'comparable'), ('model.fc.bias', 'vector', 'reshaped')]
    """
    for target in (base, tuned):
        if isinstance(target, Probe):
            raise TargetError("Expected a network with its weights, got a probe, which has none.")
    first, second = open_target(base, base_key), open_target(tuned, key)
    same = ("Both are the same: nothing can have changed.",) if _is_same(base, tuned) else ()
    pairing = pair_weights(first, second)
    return dataclasses.replace(pairing, notes=(*same, *pairing.notes))


def pair_weights(base: Weights, tuned: Weights) -> Pairing:
    """Match the tensors of two networks that are open.

    Raises:
        CheckpointError: If one of them is an adapter, and the other is not.
        ProbeMismatchError: If they have no name in common.
    """
    _refuse_adapters(base, tuned)
    before, after = _drop_parts(base.tensors), _drop_parts(tuned.tensors)
    try:
        alignment = match_names(
            [_modernise(weight.name) for weight in before],
            [_modernise(weight.name) for weight in after],
        )
    except ProbeMismatchError as error:
        names = (f"{quote(weights[0].name)}" for weights in (before, after) if weights)
        raise ProbeMismatchError(f"{error} The first names are {' and '.join(names)}.") from error
    matched = [(before[i], after[j]) for i, j in alignment.pairs]
    left, right = {i for i, _ in alignment.pairs}, {j for _, j in alignment.pairs}
    only_base = [weight for i, weight in enumerate(before) if i not in left]
    only_tuned = [weight for j, weight in enumerate(after) if j not in right]
    return Pairing(
        base,
        tuned,
        tuple(_make_pairs(matched)),
        tuple(only_base),
        tuple(only_tuned),
        alignment.prefix,
        tuple(_describe_fused(only_base, only_tuned)),
    )


def _modernise(name: str) -> str:
    """Return the name that transformers gives a norm's tensor that TensorFlow's BERT named."""
    match = _LEGACY.fullmatch(name[-_MAX_LEGACY:])
    if match is None:
        return name
    return name[: -len(match[1])] + {"gamma": "weight", "beta": "bias"}[match[1]]


def subtract(base: Tensor, tuned: Tensor) -> Tensor:
    """Return tuned − base in float32 if both have at most 16 bits, else in float64.

    Numbers of 16 bits have at most 11 significant ones: where two of them are close enough for the
    small one to count, their difference is exact in float32.

    Example:
        >>> import torch
        >>> from rankwise.adapters.pairs import subtract
        >>> subtract(torch.ones(1, dtype=torch.bfloat16), torch.ones(1)).dtype
        torch.float64
    """
    short = max(base.dtype.itemsize, tuned.dtype.itemsize) <= 2
    wide = torch.float32 if short or tuned.device.type == "mps" else torch.float64
    difference = tuned.detach().to(wide, copy=True)
    difference -= base.detach().to(wide)
    return difference


def _load_side(weight: Weight, side: Side) -> Tensor:
    tensor = weight.load().detach()
    probe = tensor.float() if tensor.dtype.itemsize == 1 else tensor
    ends = probe.aminmax() if probe.numel() else None
    if ends is not None and not all(bool(torch.isfinite(end)) for end in ends):
        raise NotFiniteError(f"the {side} holds NaN or infinity")
    return tensor


def _drop_parts(weights: Iterable[Weight]) -> list[Weight]:
    """Return the weights without those that are parts of another one, such as codes and scales."""
    return [w for w in weights if w.obstacle is None or w.obstacle[0] is not Status.MERGED]


def _make_pairs(matched: Sequence[tuple[Weight, Weight]]) -> list[Pair]:
    first: dict[tuple[Hashable, Hashable], str] = {}
    pairs = []
    for base, tuned in matched:
        pair = Pair(tuned.name, base, tuned, find_form(tuned), _find_obstacle(base, tuned))
        # Both must be tied: an output layer that is stored apart may have been trained apart.
        if base.identity is not None and tuned.identity is not None and pair.is_comparable:
            earlier = first.setdefault((base.identity, tuned.identity), tuned.name)
            if earlier != tuned.name:
                tie = (PairStatus.TIED, f"tied to {earlier}")
                pair = dataclasses.replace(pair, obstacle=tie)
        pairs.append(pair)
    return pairs


def find_form(weight: Weight) -> Form:
    """Return whether a tensor is a matrix that has a rank, a vector, or neither.

    Example:
        >>> import torch
        >>> from rankwise.adapters.pairs import find_form
        >>> from rankwise.weights.module import describe_tensor
        >>> [find_form(describe_tensor("w", torch.zeros(s))) for s in [(4, 3), (4,), (1, 3)]]
        ['matrix', 'vector', 'other']
    """
    if len(weight.shape) < 2:
        return "vector"
    is_weight = weight.obstacle is None or weight.obstacle[0] is not Status.NOT_A_WEIGHT
    has_rank = plan_unfoldings(weight.shape, modes="output", transposed=weight.output_axis == 1)
    return "matrix" if is_weight and has_rank else "other"


def _find_obstacle(base: Weight, tuned: Weight) -> tuple[PairStatus, str] | None:
    sides: tuple[tuple[Side, Weight], ...] = (("base", base), ("tuned network", tuned))
    for side, weight in sides:
        if weight.obstacle is not None and weight.obstacle[0] not in _READABLE:
            status, reason = weight.obstacle
            return PairStatus.UNREADABLE, f"{status} in the {side}: {reason}"
    for side, weight in sides:
        if not weight.dtype.is_floating_point:
            kind = str(weight.dtype).removeprefix("torch.")
            return PairStatus.NOT_FLOATING, f"{kind} in the {side}"
    if base.shape != tuned.shape:
        shapes = " and ".join("×".join(map(str, w.shape)) or "a scalar" for w in (base, tuned))
        turned = len(base.shape) == 2 and base.shape == tuned.shape[::-1]
        hint = ": one is stored transposed" if turned else ""
        return PairStatus.RESHAPED, f"{shapes}{hint}"
    if 0 in tuned.shape:
        return PairStatus.EMPTY, "it holds no numbers"
    return None


def _refuse_adapters(base: Weights, tuned: Weights) -> None:
    """Raise an error for a network that is compared with an adapter, or has one next to weights."""
    sides: dict[Side, Weights] = {"base": base, "tuned network": tuned}
    counts = {side: _count_products(weights) for side, weights in sides.items()}
    if all(products for products, _ in counts.values()):
        return  # two adapters, or two states of one training, can be compared with each other
    for side, (products, others) in counts.items():
        if not products:
            continue
        source = sanitize(sides[side].source)
        if others:
            raise CheckpointError(
                f"{source}: {format_count(products, 'layer')} of the {side} "
                f"{'has' if products == 1 else 'have'} an adapter next to the weight. {_MERGE}."
            )
        raise CheckpointError(
            f"{source}: an adapter of {format_count(products, 'layer')}, not a network. {_MERGE}."
        )


def _count_products(weights: Weights) -> tuple[int, int]:
    """Return how many layers have an adapter, and how many weights next to them are whole."""
    products = [weight for weight in weights.tensors if weight.kind in _PRODUCTS]
    wholes = [weight for weight in weights.tensors if ".base_layer." in weight.name]
    return len(products), len(wholes)


def _is_same(base: Target, tuned: Target) -> bool:
    if isinstance(base, nn.Module | Mapping):
        return base is tuned
    if not isinstance(base, str | os.PathLike) or not isinstance(tuned, str | os.PathLike):
        return False
    if os.fspath(base) == os.fspath(tuned):
        return True
    try:
        return Path(base).samefile(tuned)
    except OSError:  # of the hub, or not there
        return False


def _describe_fused(only_base: Sequence[Weight], only_tuned: Sequence[Weight]) -> list[str]:
    """Say where one side stores in one matrix what the other stores in several, as q, k and v."""
    before, after = _group_by_owner(only_base), _group_by_owner(only_tuned)
    notes = []
    for whole, parts, side in ((before, after, "base"), (after, before, "tuned network")):
        fused = [
            (weights[0].name, parts[owner])
            for owner, weights in whole.items()
            if owner in parts and _is_stacked(weights, parts[owner])
        ]
        if fused:
            name, pieces = fused[0]
            separate = ", ".join(format_name(piece.name) for piece in pieces)
            notes.append(
                f"The {side} stores several weights in one matrix where the other stores them "
                f"separately ({len(fused)} in all; {format_name(name)} holds {separate}). "
                "They can't be compared; convert one of the two."
            )
    return notes


def _group_by_owner(weights: Sequence[Weight]) -> dict[str, list[Weight]]:
    """Return the matrices of each parent of modules: q_proj.weight belongs to self_attn."""
    owners: dict[str, list[Weight]] = defaultdict(list)
    for weight in weights:
        if len(weight.shape) == 2:
            owners[weight.name.removesuffix(".weight").rpartition(".")[0]].append(weight)
    return owners


def _is_stacked(whole: Sequence[Weight], parts: Sequence[Weight]) -> bool:
    """Return whether one matrix has the rows of several together."""
    if len(whole) != 1 or len(parts) < 2:
        return False
    rows, columns = whole[0].shape
    same = all(part.shape[1] == columns for part in parts)
    return same and sum(part.shape[0] for part in parts) == rows
