"""Extract LoRAs of full fine-tunes: how much of the gain they keep, by rule and by size.

Each task is fine-tuned with three seeds, all parameters. Adapters are extracted with EVBMF's ranks,
fixed ranks (as mergekit's default) and shares of the energy (as kohya's), and each fixed rank's
size is given to EVBMF's ranks too, and to the directions with most ‖ΔW‖² per byte. PEFT itself
loads each onto the base and merges it; the merged network is scored on the test set.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple, cast
from unittest import mock

import torch
from peft import PeftModel
from torch import nn

from benchmarks.adapters.greedy import choose_greedily
from benchmarks.adapters.records import Records
from benchmarks.adapters.tasks import TASKS, Data, Task, make_base, train
from rankwise.adapters import (
    ExtractionOptions,
    ExtractionPlan,
    plan_extraction,
    write_adapter,
)
from rankwise.errors import ArgumentError, CheckpointError

SEEDS = (1, 2, 3)
RANKS = (4, 8, 16, 32, 64)
SHARES = (0.8, 0.9, 0.95)


class Arm(NamedTuple):
    """A rule for ranks; `like` is the arm whose size it gets."""

    name: str
    options: ExtractionOptions
    like: str | None = None
    is_greedy: bool = False


def list_arms(plan: ExtractionPlan, ranks: Sequence[int] = RANKS) -> Iterator[Arm]:
    """Yield the rules, then those of equal size."""
    yield Arm("auto", ExtractionOptions())
    for share in SHARES:
        yield Arm(f"energy {share:g}", ExtractionOptions(rank=share))
    for rank in ranks:
        yield Arm(f"rank {rank}", ExtractionOptions(rank=rank))
    sizes = {"auto": plan.choose(ExtractionOptions()).bytes}
    for rank in ranks:
        sizes[f"rank {rank}"] = plan.choose(ExtractionOptions(rank=rank)).bytes
    for name, size in sizes.items():
        every = ExtractionOptions(rank=1.0, max_size=size)
        yield Arm(f"most per byte of {name}", every, name, is_greedy=True)
        if name == "auto":
            yield Arm(f"even ranks of {name}", every, name)
        else:
            yield Arm(f"auto of {name}", ExtractionOptions(max_size=size), name)


def measure_extraction(
    names: Sequence[str],
    folder: Path,
    root: Path,
    records: Records,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Fine-tune, extract with every rule, and score; what is recorded already is not repeated."""
    for name in names:
        task = TASKS[name]
        base, data = make_base(task, folder, root)
        for seed in seeds:
            measure_rules(task, base, data, folder, records, seed=seed)


def measure_rules(
    task: Task,
    base: nn.Module,
    data: Data,
    folder: Path,
    records: Records,
    *,
    seed: int,
    ranks: Sequence[int] = RANKS,
) -> None:
    """Measure all rules on one fine-tune."""
    tuned = make_tuned(task, base, data, folder, seed)
    whole = {
        "base": task.score(base, data.test),
        "tuned": task.score(tuned, data.test),
        "full": count_changed(base, tuned),
    }
    measured = plan_extraction(base, tuned, ExtractionOptions(rank=1))
    for arm in list_arms(measured, ranks):
        key = {"task": task.name, "seed": seed, "arm": arm.name}
        if not records.has(key):
            found = measure_arm(task, base, measured, data, arm)
            records.add({**key, **whole, "like": arm.like, **found})


def make_tuned(task: Task, base: nn.Module, data: Data, folder: Path, seed: int) -> nn.Module:
    """Return a fine-tune of all parameters, trained if it is not kept."""
    path = folder / f"{task.name}-tuned-{seed}.pt"
    tuned = deepcopy(base)
    if not path.exists():
        train(tuned, data, task.tuned, seed=seed)
        torch.save(tuned.state_dict(), path)
    tuned.load_state_dict(torch.load(path, weights_only=True))
    return tuned


def measure_arm(
    task: Task, base: nn.Module, measured: ExtractionPlan, data: Data, arm: Arm
) -> dict[str, object]:
    """Extract with a rule, merge by PEFT, and score."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "adapter")
        try:
            with use_greedy() if arm.is_greedy else contextlib.nullcontext():
                chosen = measured.choose(arm.options)
            extraction = write_adapter(chosen, folder)
        except (ArgumentError, CheckpointError) as error:
            return {"error": str(error)}
        merged = merge(base, folder)
    plan = extraction.plan
    return {
        "parameters": plan.parameters,
        "bytes": plan.bytes,
        "kept": plan.kept,
        "measured": extraction.measured,
        "layers": len(plan.adapted),
        "ranks": [layer.rank for layer in plan.layers],
        "score": task.score(merged, data.test),
    }


@contextlib.contextmanager
def use_greedy() -> Iterator[None]:
    """Let `max_size` take the directions with most ‖ΔW‖² per byte instead of even ranks."""
    with mock.patch("rankwise.adapters.extraction.extraction_layers.distribute", choose_greedily):
        yield


def merge(base: nn.Module, adapter: Path) -> nn.Module:
    """Return the base with an adapter, merged by PEFT."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = PeftModel.from_pretrained(deepcopy(base), str(adapter))
        return cast("nn.Module", loaded.merge_and_unload())


def count_changed(base: nn.Module, tuned: nn.Module) -> int:
    """Return how many numbers the tensors that changed have."""
    pairs = zip(base.state_dict().values(), tuned.state_dict().values(), strict=True)
    return sum(new.numel() for old, new in pairs if not torch.equal(old, new))
