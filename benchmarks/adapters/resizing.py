"""Shrink LoRAs that were trained here: what a smaller adapter loses of the task's score.

A LoRA on all layers of the body (linear ones; convolutions where there are no others) is trained on
each task, with rates chosen on held-out data, then made smaller in four ways:

- rankwise: the least ranks for one error everywhere; the error is searched that gives the size;
- most per byte: the directions with the largest gain in ‖ΔW‖² per byte, over all layers together;
- equal ranks: each layer is truncated to the same rank by its SVD;
- PEFT's `convert_to_lora`, to a rank and to a share of the squares (linear layers only).

The score of each is recorded next to those of the base and of the adapter before.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import peft
import torch
from peft.tuners.lora.conversion import convert_to_lora
from torch import Tensor, nn

from benchmarks.adapters.greedy import choose_greedily
from benchmarks.adapters.records import Records
from benchmarks.adapters.tasks import TASKS, Data, Task, make_base, train
from rankwise.adapters import Resizing, resize_adapter, write_resized
from rankwise.adapters.extraction.rank_budget import Candidate
from rankwise.numerics.thin_product import decompose_product

RANK = 16
SHARES = (0.7, 0.5, 0.35, 0.25)  # of the bytes of the adapter before
ERRORS = (0.001, 0.01, 0.05)  # of rankwise, whatever size they give
SEEDS = (1, 2, 3)
RATES = (1e-3, 3e-3, 1e-2)
_HALVINGS = 30


class Smaller(NamedTuple):
    """A smaller adapter."""

    arm: str
    target: float | None  # the share of the bytes that was asked for
    share: float  # the share that it has
    load: Callable[[nn.Module], nn.Module]  # puts it onto a base


def measure_resizing(names: Sequence[str], folder: Path, root: Path, records: Records) -> None:
    """Train and resize for every task and seed; what is recorded already is not repeated."""
    for name in names:
        task = TASKS[name]
        base, data = make_base(task, folder, root)
        rate = _choose_rate(task, base, data, records)
        for seed in SEEDS:
            measure_seed(task, base, data, records, rate=rate, seed=seed)


def measure_seed(
    task: Task, base: nn.Module, data: Data, records: Records, *, rate: float, seed: int
) -> None:
    """Train one adapter and record the score of each smaller one."""
    done = {"task": task.name, "seed": seed, "arm": "done"}
    if records.has(done):
        return
    model = tune(task, base, data, rate=rate, seed=seed)
    scores = {"base": task.score(base, data.test), "full": task.score(model, data.test)}
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(f"{place}/full")
        for smaller in list_smaller(model, Path(place)):
            key = {"task": task.name, "seed": seed, "arm": smaller.arm, "target": smaller.target}
            if not records.has(key):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of peft, about names of modules
                    score = task.score(smaller.load(copy.deepcopy(base)), data.test)
                records.add({**key, **scores, "share": smaller.share, "score": score, "rate": rate})
    records.add({**done, **scores})


def tune(task: Task, base: nn.Module, data: Data, *, rate: float, seed: int) -> peft.PeftModel:
    """Train a LoRA on the layers of the body."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list_targets(task, base))
    model = peft.get_peft_model(copy.deepcopy(base), config)
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    train(model, data, replace(task.tuned, rate=rate), seed=seed, parameters=chosen)
    return model


def list_targets(task: Task, network: nn.Module) -> list[str]:
    """Return the linear layers outside of the head; the convolutions if there are none."""
    kinds: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d)
    for kind in kinds:
        names = [name for name, module in network.named_modules() if isinstance(module, kind)]
        body = [name for name in names if not f"{name}.".startswith(f"{task.head}.")]
        if body:
            return body
    raise ValueError(f"{task.name} has no layer that a LoRA could be put on")


def list_smaller(model: peft.PeftModel, place: Path) -> Iterator[Smaller]:
    """Yield smaller adapters of the one that is saved in the folder `full`."""
    source = place / "full"
    for error in ERRORS:
        yield _make_ours(resize_adapter(source, error=error), f"rankwise, error {error:g}", None)
    for target in SHARES:
        ours = find_size(lambda error: resize_adapter(source, error=error), target)
        yield _make_ours(ours, "rankwise", target)
        yield _make_ours(shrink_by_bytes(source, target), "most per byte", target)
        rank = max(1, int(target * RANK))
        equal = resize_adapter(source, error=1e-12, max_rank=rank)
        yield _make_ours(equal, "equal ranks", target)
        if any(len(tensor.shape) > 2 for tensor in equal.factors.values()):
            continue  # PEFT converts no convolutions
        yield _convert(model, rank, "PEFT, rank", target)
        yield _convert(model, 1 - ours.error, "PEFT, share of squares", target)


def find_size(resize: Callable[[float], Resizing], share: float) -> Resizing:
    """Return the adapter with the least error whose size is at most a share of the old one."""
    low, high = 0.0, 1.0  # the first is too large
    best = resize(1 - 1e-9)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = resize(middle)
        if found.new_bytes <= share * found.old_bytes:
            high, best = middle, found
        else:
            low = middle
    return best


def shrink_by_bytes(source: Path, share: float) -> Resizing:
    """Return the adapter that keeps most of Σ‖ΔW‖² within a share of the bytes."""
    whole = resize_adapter(source, error=0)
    layers = whole.folder.layers
    products = [decompose_product(*layer.load()) for layer in layers]
    candidates = [
        Candidate(row.scale * product.values.numpy(), row.rank, row.old_bytes // row.rank)
        for row, product in zip(whole.layers, products, strict=True)
    ]
    most = [len(product.values) for product in products]
    ranks = choose_greedily(candidates, most, int(share * whole.old_bytes))
    factors, rows = {}, []
    for layer, row, product, rank in zip(layers, whole.layers, products, ranks, strict=True):
        size = rank * (row.old_bytes // row.rank)
        rows.append(replace(row, new_rank=rank, new_bytes=size))
        if rank:
            b, a = (side.float() for side in product.truncate(rank))
            factors[layer.down.name] = a.reshape(rank, *layer.down.shape[1:])
            factors[layer.up.name] = b.reshape(len(b), rank, *layer.up.shape[2:])
    return replace(whole, layers=tuple(rows), factors=factors)


def _make_ours(resizing: Resizing, arm: str, target: float | None) -> Smaller:
    def load(base: nn.Module) -> nn.Module:
        with tempfile.TemporaryDirectory() as place:
            write_resized(resizing, Path(place, "new"))
            return peft.PeftModel.from_pretrained(base, Path(place, "new"))

    return Smaller(arm, target, resizing.new_bytes / resizing.old_bytes, load)


def _convert(model: peft.PeftModel, rank: float, arm: str, target: float) -> Smaller:
    """Convert by PEFT's own function: to a rank, or to a share of the squares."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that the adapter is a LoRA already
        config, tensors = convert_to_lora(model, rank)
    before = peft.get_peft_model_state_dict(model)

    def load(base: nn.Module) -> nn.Module:
        smaller = peft.get_peft_model(base, config)
        peft.set_peft_model_state_dict(smaller, tensors)
        return smaller

    return Smaller(arm, target, _count_bytes(tensors) / _count_bytes(before), load)


def _count_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _choose_rate(task: Task, base: nn.Module, data: Data, records: Records) -> float:
    def measure(rate: float) -> float:
        return task.score(tune(task, base, data, rate=rate, seed=0), data.held_out)

    return records.choose_rate({"task": task.name, "arm": "full"}, RATES, measure)
