"""Claim: watching all layers once an epoch takes less than a hundredth of it.

An epoch is 390 batches: of 32 images of 32 × 32 for ResNet18, of 16 texts of 64 tokens for a GPT of
6 blocks and width 256. A batch is forward, backward and a step of AdamW; its time is the best of a
few. "Entries" is what an update within a budget always does: finite, scale, dead filters. The last
column is `LayerMonitor(budget=0.02)`, called after every batch of a run of its own: the share of
the time spent in `update`. The first update of a run is not counted: it has no time to share yet.
One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import rankwise
from benchmarks.networks import build_resnet
from benchmarks.timing import format_table, limit_threads, time_best
from rankwise.api import open_target
from rankwise.checks.inspection import inspect_facts

_EPOCH = 390
_RUN = 120  # batches that a monitor with a budget follows
_WORDS, _TOKENS, _WIDTH = 4096, 64, 256


class _Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, 0.0, batch_first=True)
        self.embedding = nn.Embedding(_WORDS, _WIDTH)
        self.blocks = nn.TransformerEncoder(block, 6, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, _WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(_TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.blocks(self.embedding(tokens), mask=self.mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


def run() -> str:
    """The table."""
    heads = (
        "network",
        "layers",
        "a batch",
        "entries",
        "`update`",
        "share of an epoch",
        "budget 2 %",
    )
    torch.manual_seed(0)
    images, classes = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    tokens = torch.randint(_WORDS, (16, _TOKENS))
    with limit_threads(1):
        rows = [
            _row("ResNet18", build_resnet("ResNet18"), images, classes),
            _row("GPT, 6 blocks", _Texts(), tokens, tokens.roll(-1, 1).flatten()),
        ]
    return format_table(heads, rows)


def _row(name: str, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[str, ...]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def batch() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(inputs), labels))
        optimizer.step()

    batch()
    monitor = rankwise.LayerMonitor()
    weights = open_target(model).tensors
    contestants: dict[str, Callable[[], object]] = {
        "batch": batch,
        "entries": lambda: inspect_facts(weights),
        "update": lambda: monitor.update(model),
    }
    best = time_best(contestants, rounds=3)
    return (
        name,
        str(len(rankwise.probe(model).probed)),
        f"{best['batch']:.2f} s",
        f"{best['entries']:.2f} s",
        f"{best['update']:.2f} s",
        f"{best['update'] / (_EPOCH * best['batch']):.2%}",
        f"{_follow(model, batch):.2%}",
    )


def _follow(model: nn.Module, batch: Callable[[], None]) -> float:
    """Return the share of a run's time that a monitor with a budget takes."""
    monitor = rankwise.LayerMonitor(budget=0.02)
    monitor.update(model)
    start, spent = time.perf_counter(), 0.0
    for _ in range(_RUN):
        batch()
        before = time.perf_counter()
        monitor.update(model)
        spent += time.perf_counter() - before
    return spent / (time.perf_counter() - start)


if __name__ == "__main__":
    print(run())
