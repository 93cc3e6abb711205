"""What the tests of quantised weights share."""

from collections import defaultdict

import torch

import rankwise
from rankwise import api
from rankwise.weights.combine import combine_parts


def plant(rows, columns, *, rank=6, noise=0.2, scale=0.02):
    """Return a matrix of a known rank with noise, as small as weights are."""
    low = torch.randn(rows, rank) @ torch.randn(rank, columns) / rank**0.5
    return scale * (low + noise * torch.randn(rows, columns))


def load_weight(target, name, config=None, rows=None):
    """Return the weight of this name as a network computes with it."""
    weights = api._describe_target(target, None)
    tensors = combine_parts(weights.tensors, weights.config if config is None else config)
    weight = next(weight for weight in tensors if weight.name == name)
    assert weight.obstacle is None, weight.obstacle
    values = weight.load() if rows is None else weight.load_slice(*rows)
    assert values.dtype == torch.float32
    assert rows is not None or tuple(values.shape) == weight.shape
    return values


def probe_file(path):
    """Probe a file; check that the check of it raises nothing about its tensors."""
    report = rankwise.check(path)
    assert [finding for finding in report.findings if finding.severity == "error"] == []
    return rankwise.probe(path)


def rows_by_status(result):
    names = defaultdict(set)
    for layer in result.layers:
        names[layer.status].add(layer.name)
    return dict(names)
