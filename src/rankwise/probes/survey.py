"""Many weights → their rows: measured side by side, each thread in a workspace of its own."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from rankwise.checkpoints.memory import release_memory
from rankwise.numerics.spectrum import Workspace, block_entries
from rankwise.numerics.unfold import Modes
from rankwise.probes.measure import measure, needs_measuring, unfoldings
from rankwise.probes.parallel import Task, run_tasks
from rankwise.probes.results import LayerMetrics
from rankwise.probes.tensor import Weight

__all__ = ["Progress", "needs", "survey"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a probe has come.

    Attributes:
        done: Work done, in the same unit as `total`.
        total: All work.
        name: The layer that was just finished.

    Example:
        >>> import torch, rankwise
        >>> seen = []
        >>> _ = rankwise.probe({"w": torch.ones(4, 4)}, progress=seen.append)
        >>> (seen[-1].name, seen[-1].done == seen[-1].total)
        ('w', True)
    """

    done: float
    total: float
    name: str


def survey(
    weights: Sequence[Weight],
    *,
    p: float,
    modes: Modes,
    spectra: bool = False,
    progress: Callable[[Progress], None] | None = None,
    mapped: bool = False,
) -> list[LayerMetrics]:
    """The rows of many weights, in their order; `mapped` ones are pages of a file.

    Their singular values are kept where `spectra` says so.
    """
    loading = threading.Lock()  # readers need not be thread-safe, and mapped files load in no time
    own = threading.local()  # each thread's workspace, gone with the probe

    def run(weight: Weight, side_by_side: int) -> LayerMetrics:
        own.workspace = getattr(own, "workspace", None) or Workspace(side_by_side)
        loaded: list[Tensor] = []

        def load() -> Tensor:
            with loading:
                loaded.append(weight.load())
            return loaded[0]

        locked = dataclasses.replace(weight, load=load)
        row = measure(locked, p=p, modes=modes, spectra=spectra, workspace=own.workspace)
        if mapped and loaded:
            release_memory(loaded[0])
        return row

    at = [i for i, weight in enumerate(weights) if needs_measuring(weight, modes)]
    tasks = [Task(partial(run, weights[i]), *needs(weights[i], modes)) for i in at]
    total = math.fsum(task.cost for task in tasks)
    done = 0.0

    def on_done(index: int) -> None:
        nonlocal done
        done += tasks[index].cost
        if progress is not None:
            progress(Progress(min(done, total), total, weights[at[index]].name))

    measured = dict(zip(at, run_tasks(tasks, on_done), strict=True))
    return [
        measured[i] if i in measured else measure(weight, p=p, modes=modes)
        for i, weight in enumerate(weights)
    ]


def needs(weight: Weight, modes: Modes) -> tuple[float, int, bool]:
    """What measuring a weight takes: work, memory, and whether it must be done in order."""
    sides = [(u.rows, u.columns) for u in unfoldings(weight, modes)]
    # A Gram matrix takes L²M/2 multiplications, its eigenvalues 4L³/3 at a third of the speed.
    cost = math.fsum(rows * rows * (columns / 2 + 4 * rows) for rows, columns in sides)
    largest = max(16 * rows * rows + 8 * block_entries(rows, columns) for rows, columns in sides)
    return cost, largest + math.prod(weight.shape) * weight.dtype.itemsize, weight.alone
