"""Two networks → how each tensor changed: measured pair by pair, on all cores, in bounded memory.

METHOD §10: ΔW = W_tuned − W_base is factorised like a weight. The rank that EVBMF finds in it is
that of the change; what is beyond looks like noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rankwise._text import quote
from rankwise.adapters.deltas.change_records import ChangeStatus, NetworkChange, TensorChange
from rankwise.adapters.deltas.storage_errors import (
    StorageErrors,
    compute_norm,
    find_errors,
    is_rounding,
)
from rankwise.adapters.pair_filter import filter_pairs
from rankwise.adapters.pairs import Pair, Pairing, PairStatus, find_form, open_pairs, subtract
from rankwise.api import Target, find_release
from rankwise.errors import NotFiniteError
from rankwise.numerics.evbmf import LowRank, factorise
from rankwise.numerics.spectrum import Spectrum, Workspace
from rankwise.probes.measure import estimate_cost
from rankwise.probes.parallel import Progress, SharedLoading
from rankwise.probes.workers import Resources, Task, run_tasks
from rankwise.weights.tensor import LOAD_ERRORS, Weight

_STATUSES = {PairStatus.TIED: ChangeStatus.TIED, PairStatus.RESHAPED: ChangeStatus.RESHAPED}
_ROUNDED = 0.1  # of the expected rounding errors, beyond the rank: less means there were none


def measure_changes(
    base: Target,
    tuned: Target,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    resources: Resources | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> NetworkChange:
    """Measure how every tensor changed from a base to a network that was made from it.

    Files are read tensor by tensor; a tensor that can't be compared gets a record with the reason.

    Args:
        base: A module, a state dict or a path.
        tuned: What was made from it.
        include: Glob or globs; only tensors whose names match one are compared.
        exclude: Glob or globs; tensors whose names match one are not compared.
        resources: How many layers to measure at once, and in how much memory.
        progress: Called after each tensor that was loaded.

    Raises:
        ArgumentError: If a glob of `include` matches no tensor, or they leave none.
        CheckpointError: If one of them can't be read, or is an adapter instead of a network.
        ProbeMismatchError: If they have no name in common.
        TargetError: If one of them is no network.

    Example:
        >>> import torch
        >>> from rankwise.adapters import measure_changes
        >>> _ = torch.manual_seed(0)
        >>> base = {"fc.weight": torch.randn(64, 32), "fc.bias": torch.zeros(64)}
        >>> lora = torch.randn(64, 3) @ torch.randn(3, 32)
        >>> change = measure_changes(base, base | {"fc.weight": base["fc.weight"] + lora})
        >>> [(x.name, x.status.value, x.rank) for x in change.tensors]
        [('fc.weight', 'changed', 3), ('fc.bias', 'unchanged', None)]
    """
    pairing = filter_pairs(open_pairs(base, tuned), include, exclude)
    release = find_release(base, tuned)
    return measure_pairing(pairing, resources=resources, progress=progress, release=release)


def measure_pairing(
    pairing: Pairing,
    *,
    resources: Resources | None = None,
    progress: Callable[[Progress], None] | None = None,
    release: Callable[[Tensor], None] | None = None,
) -> NetworkChange:
    """Measure the pairs of two networks that are open, as many at once as fit into memory."""
    loading = SharedLoading(release)
    places = [place for place, pair in enumerate(pairing.pairs) if pair.is_comparable]
    tasks = [_make_task(pairing.pairs[place], loading) for place in places]
    total = math.fsum(task.cost for task in tasks)
    done = 0.0

    def on_done(index: int) -> None:
        nonlocal done
        done += tasks[index].cost
        if progress is not None:
            progress(Progress(min(done, total), total, pairing.pairs[places[index]].name))

    measured = dict(zip(places, run_tasks(tasks, on_done, resources), strict=True))
    tensors = [
        measured[place] if place in measured else _describe_obstacle(pair)
        for place, pair in enumerate(pairing.pairs)
    ]
    tensors += [_make_record(weight, ChangeStatus.NEW) for weight in pairing.only_tuned]
    tensors += [
        replace(_make_record(weight, ChangeStatus.MISSING), base_name=weight.name)
        for weight in pairing.only_base
    ]
    sides = (("base", pairing.base), ("tuned network", pairing.tuned))
    notes = [f"{quote(x.source)} ({side}): {note}" for side, x in sides for note in x.notes]
    return NetworkChange(
        pairing.base.source,
        pairing.tuned.source,
        tuple(tensors),
        pairing.renamed_prefix,
        (*pairing.notes, *notes),
    )


def measure_pair(pair: Pair, workspace: Workspace | None = None) -> TensorChange:
    """Measure the change of a pair that can be compared. What fails becomes the record's status.

    Example:
        >>> import torch
        >>> from rankwise.adapters.pairs import open_pairs
        >>> (pair,) = open_pairs({"a": torch.eye(4)}, {"a": torch.eye(4) + 1}).pairs
        >>> measure_pair(pair).rank
        1
    """
    try:
        return factorise_change(pair, workspace).record
    except NotFiniteError as error:
        return _make_pair_record(pair, ChangeStatus.NOT_FINITE, str(error))
    except LOAD_ERRORS as error:  # a record, never the end of a comparison
        reason = " ".join(str(error).split()) or repr(error)
        return _make_pair_record(pair, ChangeStatus.NOT_COMPARABLE, reason)


@dataclass(frozen=True, slots=True)
class FactorisedChange:
    """What was measured of a pair, with the singular values.

    Attributes:
        record: The figures.
        tuned_norm: ‖W‖ of the tuned network.
        spectrum: Of ΔW, for matrices that changed by more than rounding.
        signal: What EVBMF keeps of it.
    """

    record: TensorChange
    tuned_norm: float
    spectrum: Spectrum | None = None
    signal: LowRank | None = None

    @property
    def cosine(self) -> float | None:
        """Of the angle between both tensors; None where one is zero, or nothing was measured."""
        old, new, moved = self.record.base_norm, self.tuned_norm, self.record.norm
        if not old or not new or moved is None:
            return None
        return (old / new + new / old - (moved / old) * (moved / new)) / 2


def factorise_change(pair: Pair, workspace: Workspace | None = None) -> FactorisedChange:
    """Measure the change of a pair that can be compared; what fails raises its error.

    Raises:
        NotFiniteError: If one side holds NaN or infinity.
        RankwiseError: If a file changed or is damaged; also what else LOAD_ERRORS lists.
    """
    with torch.no_grad():
        return _measure(pair, *pair.load(), workspace or Workspace())


def _measure(pair: Pair, base: Tensor, tuned: Tensor, workspace: Workspace) -> FactorisedChange:
    record = _make_pair_record(pair, ChangeStatus.CHANGED, _list_caveats(pair))
    record = replace(record, base_norm=compute_norm(base))
    tuned_norm = compute_norm(tuned)
    change = subtract(base, tuned)
    if not bool(change.any()):
        unchanged = replace(record, status=ChangeStatus.UNCHANGED, norm=0.0)
        return FactorisedChange(unchanged, tuned_norm)
    before, after = find_errors(pair.base, base), find_errors(pair.tuned, tuned)
    is_rounded = is_rounding(change, before, after)
    record = replace(record, norm=compute_norm(change))
    rounding = replace(record, status=ChangeStatus.ROUNDING, reason=_name_types(pair))
    is_certain = after.are_bounded and after.epsilon > before.epsilon
    if is_rounded and (is_certain or pair.form != "matrix"):
        return FactorisedChange(rounding, tuned_norm)
    if pair.form != "matrix":
        return FactorisedChange(record, tuned_norm)
    spectrum, part = _factorise(pair, change, before, after, workspace)
    if is_rounded and part.rank == 0:
        return FactorisedChange(rounding, tuned_norm)
    energy = np.square(spectrum.values / spectrum.values[0])
    # A single row or column that changed is of rank 1, though EVBMF can't tell it from noise.
    rank = 1 if float(energy[1:].sum()) < np.finfo(np.float64).eps else part.rank
    share = float(energy[:rank].sum() / energy.sum())
    record = replace(record, rank=rank, low_rank_share=min(share, 1.0))
    return FactorisedChange(record, tuned_norm, spectrum, part)


def _factorise(
    pair: Pair, change: Tensor, before: StorageErrors, after: StorageErrors, workspace: Workspace
) -> tuple[Spectrum, LowRank]:
    """Factorise ΔW; errors of storing the tuned network, and if need be the base, are noise."""
    matrix = pair.unfold(change)

    def run(errors: StorageErrors) -> tuple[Spectrum, LowRank]:
        rounded = pair.unfold(errors.numbers)
        return factorise(matrix, errors.stored, workspace, rounded=rounded, rank_only=True)

    spectrum, part = run(after)
    if not part.rank or before.epsilon <= after.epsilon:
        return spectrum, part
    # Either the network was tuned from the stored base, which then is exact, or from a finer one.
    # Then the errors of the base are in ΔW, and their energy is beyond its rank.
    beyond = math.hypot(*spectrum.values[part.rank :])
    return run(before) if beyond > _ROUNDED * before.estimate_norm() else (spectrum, part)


def _make_task(pair: Pair, loading: SharedLoading) -> Task[TensorChange]:
    numbers = math.prod(pair.tuned.shape)
    work, memory = float(numbers), 0
    if pair.form == "matrix":
        # A product of thin factors is formed, so it costs as much as any other matrix.
        work, memory = estimate_cost(replace(pair.tuned, singular_values=None), "output")
    # Both tensors and their difference, in float64 at most.
    memory += numbers * (pair.base.dtype.itemsize + pair.tuned.dtype.itemsize + 8)
    in_order = pair.base.collective or pair.tuned.collective
    return Task(partial(_run, pair, loading), work, memory, in_order)


def _run(pair: Pair, loading: SharedLoading, workers: int) -> TensorChange:
    with loading.start(workers) as task:
        own = replace(pair, base=task.attach(pair.base), tuned=task.attach(pair.tuned))
        return measure_pair(own, task.workspace)


def _list_caveats(pair: Pair) -> str:
    sides = (("base", pair.base), ("tuned network", pair.tuned))
    return "; ".join(
        f"{weight.stored} in the {side}: the change holds its rounding errors"
        for side, weight in sides
        if weight.stored is not None
    )


def _name_types(pair: Pair) -> str:
    return " → ".join(_name_type(weight) for weight in (pair.base, pair.tuned))


def _name_type(weight: Weight) -> str:
    return weight.stored or str(weight.dtype).removeprefix("torch.")


def _describe_obstacle(pair: Pair) -> TensorChange:
    status, reason = pair.obstacle or (PairStatus.UNREADABLE, "")
    return _make_pair_record(pair, _STATUSES.get(status, ChangeStatus.NOT_COMPARABLE), reason)


def _make_pair_record(pair: Pair, status: ChangeStatus, reason: str) -> TensorChange:
    record = replace(_make_record(pair.tuned, status), base_name=pair.base.name, reason=reason)
    return replace(record, form=pair.form, sides=pair.matrix_shape)


def _make_record(weight: Weight, status: ChangeStatus) -> TensorChange:
    return TensorChange(
        name=weight.name,
        status=status,
        form=find_form(weight),
        shape=weight.shape,
        dtype=_name_type(weight),
        bytes=math.prod(weight.shape) * weight.dtype.itemsize,
        group=weight.group,
    )
