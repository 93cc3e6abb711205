"""Every tensor of a network → what it has learned: the library's main door."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

from torch import Tensor

from rankwise.effective import combine, mark_ties, split_stacks
from rankwise.errors import ArgumentError
from rankwise.files.pages import release, trim
from rankwise.measure import measure, needs_measuring, unfoldings
from rankwise.parallel import Task, run_tasks
from rankwise.probe_result import Probe
from rankwise.results import LayerMetrics
from rankwise.spectrum import Workspace, block_entries
from rankwise.tensors import Weight
from rankwise.unfold import Modes, check_modes
from rankwise.weights import Target, weights_of

__all__ = ["Probe", "Progress", "probe"]

_WORTH_TRIMMING = 4 << 20


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


def probe(
    target: Target,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    p: float = 2.0,
    modes: Modes = "both",
    split: bool = False,
    key: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Probe:
    """Shows what every layer of a network has learned, from its weights alone.

    The model is not changed: nothing is moved, switched or attached. A file is read tensor by
    tensor and nothing in it is run.

    Args:
        target: A module (compiled, wrapped or sharded ones too), a state dict, or the path of a
            checkpoint: .safetensors, .pt/.pth/.bin/.ckpt, .npz, .onnx, or a Hugging Face folder.
        include: Glob or globs; only tensors whose names match one are probed.
        exclude: Glob or globs; tensors whose names match one are not probed.
        p: The power in the stable rank: 2 is Eq. 2, 1 the nuclear-norm reading.
        modes: Which unfoldings of a convolution to take: "both", "input" or "output" channels.
        split: Whether to probe each gate of a recurrent layer, and q, k and v of a stacked
            attention projection, by itself.
        key: The dotted name of the part of a nested checkpoint that holds the weights.
        progress: Called after each layer.

    Returns:
        A row for every tensor, probed or with the reason why not, and the network's quality.

    Raises:
        CheckpointError: If the target can't be read as weights.
        ArgumentError: If an option is out of range.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> planted = torch.randn(64, 5) @ torch.randn(5, 128)
        >>> found = rankwise.probe({"fc.weight": planted + torch.randn(64, 128)})
        >>> found.layers[0].rank
        5.0
    """
    if not (isinstance(p, int | float) and 0 < p < math.inf):
        raise ArgumentError(f"Expected p > 0 (2 for Eq. 2, 1 for the nuclear norm), got {p!r}.")
    check_modes(modes)
    source = weights_of(target, key=key)
    stored = combine(source.tensors)
    chosen = _filtered(split_stacks(stored) if split else stored, include, exclude)
    mapped = isinstance(target, str | os.PathLike)
    layers = _measure_all(mark_ties(chosen), float(p), modes, progress, mapped=mapped)
    return Probe(source.source, tuple(layers), float(p), source.notes)


def _filtered(
    weights: Sequence[Weight],
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
) -> list[Weight]:
    wanted, unwanted = _globs(include), _globs(exclude)

    def mark(weight: Weight) -> Weight:
        if weight.obstacle is not None:
            return weight
        if wanted and not any(fnmatchcase(weight.name, glob) for glob in wanted):
            return dataclasses.replace(weight, obstacle=("filtered", "not among the included"))
        if hit := next((glob for glob in unwanted if fnmatchcase(weight.name, glob)), None):
            return dataclasses.replace(weight, obstacle=("filtered", f"excluded by {hit}"))
        return weight

    return [mark(weight) for weight in weights]


def _globs(given: str | Sequence[str] | None) -> Sequence[str]:
    return [given] if isinstance(given, str) else given or ()


def _measure_all(
    weights: Sequence[Weight],
    p: float,
    modes: Modes,
    progress: Callable[[Progress], None] | None,
    *,
    mapped: bool,
) -> list[LayerMetrics]:
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
        row = measure(locked, p=p, modes=modes, workspace=own.workspace)
        if mapped and loaded:
            release(loaded[0])
            if loaded[0].nbytes > _WORTH_TRIMMING:
                trim()
        return row

    at = [i for i, weight in enumerate(weights) if needs_measuring(weight, modes)]
    tasks = [Task(partial(run, weights[i]), *_needs(weights[i], modes)) for i in at]
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


def _needs(weight: Weight, modes: Modes) -> tuple[float, int, bool]:
    """What measuring a weight takes: work, memory, and whether it must be done in order."""
    sides = [(u.rows, u.columns) for u in unfoldings(weight, modes)]
    # A Gram matrix takes L²M/2 multiplications, its eigenvalues 4L³/3 at a third of the speed.
    cost = math.fsum(rows * rows * (columns / 2 + 4 * rows) for rows, columns in sides)
    largest = max(16 * rows * rows + 8 * block_entries(rows, columns) for rows, columns in sides)
    return cost, largest + math.prod(weight.shape) * weight.dtype.itemsize, weight.alone
