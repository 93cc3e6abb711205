"""The rules of extraction that the benchmark compares, and how it merges."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("peft")

from benchmarks.adapters.extraction import count_changed, list_arms, merge, use_greedy

from rankwise.adapters import extract_adapter, plan_extraction


def make_pair():
    base = nn.Sequential(nn.Linear(48, 48), nn.LayerNorm(48), nn.Linear(48, 48))
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        for place in (0, 2):
            change = torch.randn(48, 3) @ torch.randn(3, 48) + 0.1 * torch.randn(48, 48)
            tuned[place].weight += 0.05 * change
    return base, tuned


def test_rules_of_equal_size_are_no_larger_than_what_they_are_compared_with():
    base, tuned = make_pair()
    plan = plan_extraction(base, tuned)
    arms = {arm.name: arm for arm in list_arms(plan, ranks=(2, 4))}
    sizes = {name: plan.choose(arm.options).bytes for name, arm in arms.items()}
    assert {"auto", "energy 0.9", "rank 4", "even ranks of auto", "auto of rank 2"} <= set(arms)
    with use_greedy():
        greedy = plan.choose(arms["most per byte of auto"].options)
    even = plan.choose(arms["even ranks of auto"].options)
    assert greedy.bytes <= sizes["auto"]
    assert greedy.kept >= even.kept
    for name, arm in arms.items():
        if arm.like is not None:
            assert sizes[name] <= sizes[arm.like]


def test_what_is_merged_is_what_was_extracted(tmp_path):
    base, tuned = make_pair()
    assert count_changed(base, tuned) == 2 * 48 * 48
    extraction = extract_adapter(base, tuned, tmp_path / "a")
    merged = merge(base, tmp_path / "a")
    change = (tuned[0].weight - base[0].weight).detach()
    error = (tuned[0].weight - merged[0].weight).detach().square().sum() / change.square().sum()
    assert 1 - float(error) == pytest.approx(extraction.shares["0.weight"], abs=1e-4)
