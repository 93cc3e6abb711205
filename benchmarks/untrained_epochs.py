"""A layer that was never trained, in a network whose other layers were trained for k epochs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from rankwise.checks.check import check_inspection
from rankwise.checks.findings import Severity
from rankwise.checks.inspection import inspect_target
from rankwise.checks.sibling_checks import Layer, list_matrices
from rankwise.lab.networks import NetworkSpec, build_network

_EPOCHS = (1, 2, 3, 5, 10, 20)
_SEEDS = 3
_BATCH = 32


@dataclass(frozen=True, slots=True)
class UntrainedLayer:
    """One layer with its initial values after some epochs of training of the others."""

    epochs: int
    siblings: int
    severity: Severity | None  # what "looks-untrained" says


def measure_untrained_epochs() -> list[UntrainedLayer]:
    """Train ResNets on digits, put each layer back to its start, and see whether that is found."""
    return [row for seed in range(_SEEDS) for row in _train(seed)]


def _train(seed: int) -> Iterator[UntrainedLayer]:
    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    network = build_network("resnet20", NetworkSpec(classes=10, channels=1, size=8, width=2.0))
    start = {name: weight.detach().clone() for name, weight in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(_EPOCHS))
    for epoch in range(1, max(_EPOCHS) + 1):
        for batch in torch.split(torch.randperm(len(images)), _BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimizer.step()
        schedule.step()
        if epoch in _EPOCHS:
            yield from _put_back(epoch, network.state_dict(), start)


def _put_back(
    epoch: int, trained: dict[str, Tensor], start: dict[str, Tensor]
) -> Iterator[UntrainedLayer]:
    whole = inspect_target(trained, spectra=False)
    for name, weight in start.items():
        facts = whole.facts.get(name)
        if facts is None or min(facts.filters, facts.inputs) < 32:
            continue
        inspection = inspect_target({**trained, name: weight}, spectra=False)
        severities = [
            finding.severity
            for finding in check_inspection(inspection)
            if finding.layer == name and finding.kind == "looks-untrained"
        ]
        siblings = _count_siblings(list_matrices(inspection), name)
        yield UntrainedLayer(epoch, siblings, severities[0] if severities else None)


def _count_siblings(layers: list[Layer], name: str) -> int:
    (own,) = (layer for layer in layers if layer.name == name)
    return sum(x.role == own.role and x.row.shape == own.row.shape for x in layers) - 1
