from dataclasses import replace
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rankwise
from rankwise import Verdict
from rankwise.probes.groups import LayerGroup, get_row, group_layers, list_outliers
from rankwise.weights.tensor import Status
from tests.probes.rows import LAYERS, probed, skipped

FUSED = "model.layers.0.mlp.experts.gate_up_proj"


def fused(ranks, group=FUSED, part=""):
    return [
        replace(probed(f"{group}[{i}]{part}", rank=float(r), s=r / 500), group=group)
        for i, r in enumerate(ranks)
    ]


def unfused(ranks, name="model.layers.0.mlp.experts.{}.w1.weight"):
    return [probed(name.format(i), rank=float(r), s=r / 500) for i, r in enumerate(ranks)]


def names(layers):
    return [item.name for item in group_layers(layers)]


def test_slices_of_one_tensor_are_a_group_in_the_place_of_the_first():
    layers = [probed("embed"), *fused([3, 4]), probed("head")]
    assert names(layers) == ["embed", FUSED, "head"]
    assert group_layers(layers)[1].members == tuple(layers[1:3])


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.0.mlp.experts.{}.w1.weight", "model.layers.0.mlp.experts.*.w1.weight"),
        ("block_sparse_moe.experts.{}.w2.weight", "block_sparse_moe.experts.*.w2.weight"),
        ("experts.{}.down_proj.weight", "experts.*.down_proj.weight"),
        ("mlp.experts.expert_{}.wi.weight", "mlp.experts.expert_*.wi.weight"),
        ("moe.deepspeed_experts.{}.wi.weight", "moe.deepspeed_experts.*.wi.weight"),
    ],
)
def test_experts_are_found_by_their_names(name, group):
    assert names(unfused(range(4), name)) == [group]


@pytest.mark.parametrize("name", ["layers.{}.w1.weight", "myexpertss.{}.w1", "experts.{}"])
def test_other_numbers_make_no_group(name):
    assert len(names(unfused(range(9), name))) == 9


def test_three_unfused_experts_are_too_few():
    assert len(names(unfused([1, 2, 3]))) == 3
    assert len(names(fused([1]))) == 1


def test_roles_blocks_shapes_and_parts_are_groups_of_their_own():
    layers = [
        *unfused(range(4)),
        *unfused(range(4), "model.layers.1.mlp.experts.{}.w1.weight"),
        *unfused(range(4), "model.layers.0.mlp.experts.{}.w2.weight"),
        *(replace(layer, shape=(8, 8)) for layer in fused([1, 2])),
        *fused([1, 2]),
        *fused([1, 2], part=".gate"),
        *fused([1, 2], part=".up"),
    ]
    assert [(i.name, i.median.shape) for i in group_layers(layers)][3:] == [
        (FUSED, (8, 8)),
        (FUSED, (16, 32)),
        (f"{FUSED}.gate", (16, 32)),
        (f"{FUSED}.up", (16, 32)),
    ]
    assert len(group_layers(layers)) == 7


def test_a_broken_expert_is_no_member():
    layers = [*fused([1, 2, 3]), skipped(f"{FUSED}[3]", Status.NOT_FINITE)]
    (group,) = group_layers(layers)
    assert len(group.members) == 3


@given(st.lists(st.integers(0, 16), min_size=2, max_size=40))
def test_rows_have_minimum_median_and_maximum(ranks):
    (group,) = group_layers(fused(ranks))
    assert (group.low.rank, group.median.rank, group.high.rank) == (
        *(min(ranks), median(ranks)),
        max(ranks),
    )
    assert group.median.parameters == 512 * len(ranks)
    assert get_row(group) == group.median


@given(LAYERS, st.integers(2, 9))
def test_every_probed_layer_is_in_one_item(layers, count):
    layers = [*layers, *fused([1] * count)]
    items = group_layers(layers)
    found = [m for i in items for m in (i.members if isinstance(i, LayerGroup) else [i])]
    assert sorted(map(id, found)) == sorted(id(layer) for layer in layers if layer.is_probed)


def test_an_expert_unlike_its_siblings_is_named_with_the_metric_that_shows_it_most():
    (group,) = group_layers(fused([6, 7, 5, 6, 15, 6, 7]))
    (outlier,) = group.outliers
    assert outlier.layer.name == f"{FUSED}[4]"
    assert outlier.metric in {"rank", "stable_rank"}
    assert outlier.distance > 1


def test_noise_alone_makes_an_outlier():
    layers = fused([4] * 8)
    layers[2] = replace(layers[2], noise_fraction=0.9)
    (group,) = group_layers(layers)
    assert [(o.layer.name, o.metric, o.usual) for o in group.outliers] == [
        (f"{FUSED}[2]", "noise_fraction", 0.3)
    ]


@pytest.mark.parametrize("norm", [0.0, 9.0])
def test_a_norm_far_from_the_others_makes_an_outlier(norm):
    layers = fused([4] * 8)
    layers[2] = replace(layers[2], frobenius_norm=norm)
    (group,) = group_layers(layers)
    assert [(o.layer.name, o.metric) for o in group.outliers] == [(f"{FUSED}[2]", "frobenius_norm")]


def test_a_group_of_zeros_has_no_outliers():
    layers = [replace(layer, frobenius_norm=0.0, rank=0.0) for layer in fused([0] * 8)]
    assert group_layers(layers)[0].outliers == ()


@given(st.lists(st.integers(4, 6), min_size=2, max_size=60))
def test_ranks_that_differ_by_one_or_two_are_no_outliers(ranks):
    layers = [replace(layer, stable_rank=0.1) for layer in fused(ranks)]
    assert group_layers(layers)[0].outliers == ()


def test_of_random_matrices_none_is_an_outlier():
    torch.manual_seed(0)
    weights = {f"experts.{i}.w1.weight": torch.randn(24, 40) for i in range(64)}
    assert list_outliers(group_layers(rankwise.probe(weights).layers)) == []


def test_a_trained_expert_among_random_ones_is_an_outlier():
    torch.manual_seed(0)
    weights = {f"experts.{i}.w1.weight": torch.randn(24, 40) for i in range(16)}
    weights["experts.5.w1.weight"] += 3 * torch.randn(24, 6) @ torch.randn(6, 40)
    (outlier,) = list_outliers(group_layers(rankwise.probe(weights).layers))
    assert outlier.layer.name == "experts.5.w1.weight"


def test_the_farthest_outlier_comes_first():
    layers = [*fused([4] * 8 + [9]), *fused([4] * 8 + [16], "other")]
    assert [o.layer.name for o in list_outliers(group_layers(layers))] == [
        "other[8]",
        f"{FUSED}[8]",
    ]


def test_the_most_frequent_verdict_stands_for_the_group():
    verdicts = [Verdict.RANDOM, Verdict.DIFFERS, Verdict.DIFFERS]
    layers = [replace(x, verdict=v) for x, v in zip(fused([1, 2, 3]), verdicts, strict=True)]
    assert group_layers(layers)[0].median.verdict is Verdict.DIFFERS
