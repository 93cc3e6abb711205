"""All weights of a network → their rows, measured in parallel."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from rankwise.numerics.spectrum import Workspace
from rankwise.numerics.unfold import Modes
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.measure import can_measure, estimate_cost, measure_weight
from rankwise.probes.workers import Resources, Task, run_tasks
from rankwise.weights.tensor import Weight


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a probe has come.

    Attributes:
        done: Work done, in the same unit as `total`.
        total: All work.
        name: The layer that was just finished.
        cached: How many layers so far were taken from the cache.

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
    cached: int = 0


class LoadingTask:
    """What one task has loaded, and the memory of its thread.

    Attributes:
        workspace: That of the thread.
        tensors: Those loaded so far.
    """

    def __init__(self, workspace: Workspace, load: Callable[[Weight], Tensor]) -> None:
        self.workspace = workspace
        self.tensors: list[Tensor] = []
        self._load = load

    def attach(self, weight: Weight) -> Weight:
        """Return a weight that is loaded for this task."""

        def load() -> Tensor:
            self.tensors.append(self._load(weight))
            return self.tensors[-1]

        return dataclasses.replace(weight, load=load)


class SharedLoading:
    """Load tensors on many threads: one reads at a time, and one uses an accelerator.

    Args:
        release: Called with each loaded tensor when its task has ended.
    """

    def __init__(self, release: Callable[[Tensor], None] | None = None) -> None:
        self._loading = threading.Lock()  # readers need not be thread-safe, and reading is fast
        self._on_device = threading.RLock()  # an accelerator has its own memory
        self._local = threading.local()  # holds one workspace per thread, freed with this
        self._release = release

    @contextmanager
    def start(self, workers: int) -> Iterator[LoadingTask]:
        """Begin a task on this thread, of so many at the same time; at its end, free memory."""
        local = self._local
        local.workspace = getattr(local, "workspace", None) or Workspace(workers)
        with ExitStack() as stack:

            def load(weight: Weight) -> Tensor:
                with self._loading:
                    tensor = weight.load()
                if tensor.device.type != "cpu":
                    stack.enter_context(self._on_device)
                return tensor

            task = LoadingTask(local.workspace, load)
            yield task
        if self._release is not None:
            for tensor in task.tensors:
                self._release(tensor)


def measure_weights(
    weights: Sequence[Weight],
    *,
    p: float = 2.0,
    modes: Modes = "both",
    spectra: bool = False,
    compare: bool = False,
    inspect: Callable[[Weight, Tensor], object] | None = None,
    progress: Callable[[Progress], None] | None = None,
    release: Callable[[Tensor], None] | None = None,
    resources: Resources | None = None,
) -> list[LayerMetrics]:
    """Measure many weights in parallel; return their rows in the same order.

    `compare` asks for a verdict on each layer: does it differ from random weights? `inspect` is
    called with every weight that is measured, on the worker's thread, while its tensor is loaded;
    `release` with each loaded tensor when it is no longer needed.
    """
    resources = resources or Resources()
    cache = resources.open_cache()
    measure = partial(
        measure_weight, p=p, modes=modes, spectra=spectra, compare=compare, cache=cache
    )
    loading = SharedLoading(release)

    def run(weight: Weight, workers: int) -> LayerMetrics:
        with loading.start(workers) as task:
            row = measure(task.attach(weight), workspace=task.workspace)
            if inspect is not None and task.tensors:
                inspect(weight, task.tensors[0])
        return row

    places = [i for i, weight in enumerate(weights) if can_measure(weight, modes)]
    tasks = [
        Task(partial(run, weights[i]), *estimate_cost(weights[i], modes), weights[i].collective)
        for i in places
    ]
    total = math.fsum(task.cost for task in tasks)
    done = 0.0

    def on_done(index: int) -> None:
        nonlocal done
        done += tasks[index].cost
        if progress is not None:
            hits = 0 if cache is None else cache.hits
            progress(Progress(min(done, total), total, weights[places[index]].name, hits))

    rows = dict(zip(places, run_tasks(tasks, on_done, resources), strict=True))
    return [
        rows[i] if i in rows else measure_weight(weight, p=p, modes=modes)
        for i, weight in enumerate(weights)
    ]
