"""Claim: `epoch_step()`, which measures every layer, takes less than a hundredth of an epoch.

A CIFAR-sized epoch: 390 batches of 128 images of 32 × 32. A batch is forward, backward and step;
its time is the best of a few, times 390. On a faster device a batch takes less and the share is
larger, as the layers are measured on the CPU.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

import rankwise
from benchmarks.networks import NETWORKS, build_resnet
from benchmarks.timing import format_table, time_best

_BATCHES = 390
_IMAGES = 128


def run() -> str:
    """The table."""
    heads = ("network", "layers", "`epoch_step()`", "a batch", "share of an epoch")
    return format_table(heads, [_row(network) for network in NETWORKS])


def _row(network: str) -> tuple[str, ...]:
    torch.manual_seed(0)
    model = build_resnet(network)
    optimizer = rankwise.RMSGD(model.named_parameters(), beta=0.98)
    images, labels = torch.randn(_IMAGES, 3, 32, 32), torch.randint(10, (_IMAGES,))

    def batch() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(images), labels))
        optimizer.step()

    def end() -> None:
        for group in optimizer.param_groups:
            group["stepped"] = True  # or the second call would have nothing to do
        optimizer.epoch_step()

    batch()
    best = time_best({"batch": batch, "end": end}, rounds=3)
    share = best["end"] / (_BATCHES * best["batch"])
    return (
        network,
        str(len(optimizer.param_groups)),
        f"{best['end']:.2f} s",
        f"{best['batch']:.2f} s",
        f"{share:.2%}",
    )


if __name__ == "__main__":
    print(run())
