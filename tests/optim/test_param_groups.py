"""Which parameters form a layer."""

import pytest
import torch
from torch import nn

from rankwise.errors import ArgumentError
from rankwise.optim.param_groups import layer_groups, list_layers, select_weights, split_group


def block():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4)
    )


def split(params, others=(), **options):
    """Splits as an optimizer does: after torch has taken the names out of the pairs."""
    pairs = [p if isinstance(p, tuple) else (None, p) for p in list(params)]
    group = {"params": [p for _, p in pairs], **options}
    if pairs and pairs[0][0] is not None:
        group["param_names"] = [name for name, _ in pairs]
    return split_group(group, others)


def members(groups):
    return [(group["layer"], group.get("param_names")) for group in groups]


def test_a_weight_opens_a_layer_and_vectors_join_it():
    groups = layer_groups(block())
    assert members(groups) == [
        ("0", ["0.weight", "1.weight", "1.bias"]),
        ("3", ["3.weight", "3.bias"]),
    ]


def test_splitting_a_group_gives_the_same_layers_as_the_helper():
    net = block()
    assert members(split(net.named_parameters())) == members(layer_groups(net))


def test_without_names_layers_are_numbered():
    groups = split(block().parameters())
    assert [(g["layer"], g["name"], len(g["params"])) for g in groups] == [
        ("layer0", "layer0", 3),
        ("layer1", "layer1", 2),
    ]
    assert all("param_names" not in group for group in groups)
    more = split([torch.ones(2, 2)], others=groups)
    assert more[0]["name"] == "layer2"


def test_parameters_before_the_first_weight_form_their_own_layer():
    first, second = torch.ones(3), torch.ones(5)
    groups = split([("shift", first), ("scale", second), ("fc.weight", torch.ones(4, 4))])
    assert members(groups) == [("shift", ["shift", "scale"]), ("fc", ["fc.weight"])]


def test_options_go_to_every_layer():
    groups = split(block().parameters(), lr=0.5, weight_decay=0.1)
    assert [(g["lr"], g["weight_decay"]) for g in groups] == [(0.5, 0.1)] * 2


def test_no_parameter_is_lost_or_doubled():
    net = block()
    for groups in (layer_groups(net), split(net.parameters())):
        found = [id(param) for group in groups for param in group["params"]]
        assert found == [id(param) for param in net.parameters()]


def test_vectors_of_another_group_join_the_layer_of_their_weight():
    named = dict(block().named_parameters())
    weights = split([(n, p) for n, p in named.items() if p.ndim > 1])
    vectors = split([(n, p) for n, p in named.items() if p.ndim < 2], others=weights)
    assert ("3", ["3.bias"]) in members(vectors)
    names = [group["name"] for group in (*weights, *vectors)]
    assert len(set(names)) == len(names)
    assert "3.bias" in names


def test_biases_without_names_join_their_weights():
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    weights = split(p for p in net.parameters() if p.ndim > 1)
    biases = split((p for p in net.parameters() if p.ndim < 2), others=weights)
    assert [group["layer"] for group in biases] == ["layer0", "layer1", "layer2"]
    assert len({group["name"] for group in (*weights, *biases)}) == 6


def test_vectors_without_names_that_may_be_something_else_form_a_layer():
    net = block()
    weights = split(p for p in net.parameters() if p.ndim > 1)
    vectors = split((p for p in net.parameters() if p.ndim < 2), others=weights)
    assert [(group["layer"], len(group["params"])) for group in vectors] == [("layer2", 3)]


def test_vectors_that_belong_to_no_known_weight_form_a_layer():
    named = dict(block().named_parameters())
    weights = split([(n, p) for n, p in named.items() if p.ndim > 1])
    vectors = split([(n, p) for n, p in named.items() if p.ndim < 2], others=weights)
    assert ("1.weight", ["1.weight", "1.bias"]) in members(vectors)


def test_a_recurrent_module_keeps_its_order():
    groups = layer_groups(nn.LSTM(4, 5))
    assert [group["param_names"] for group in groups] == [
        ["weight_ih_l0"],
        ["weight_hh_l0", "bias_ih_l0", "bias_hh_l0"],
    ]


def test_a_weight_that_is_kept_in_parts_is_one_layer_with_its_bias():
    """Its bias comes first then, and would join the layer before."""
    norms = nn.utils.parametrizations
    net = nn.Sequential(
        nn.Linear(4, 8), norms.weight_norm(nn.Linear(8, 8)), norms.spectral_norm(nn.Linear(8, 8))
    )
    assert members(layer_groups(net)) == [
        ("0", ["0.weight", "0.bias"]),
        ("1", ["1.bias", *(f"1.parametrizations.weight.original{i}" for i in (0, 1))]),
        ("2", ["2.bias", "2.parametrizations.weight.original"]),
    ]
    assert len(layer_groups(norms.weight_norm(nn.Linear(3, 3)))) == 1


def test_a_group_that_names_its_layer_stays_whole():
    group = {"params": [torch.ones(2, 2), torch.ones(3, 3)], "layer": "both"}
    assert split_group(group, []) == [group]
    assert group["name"] == "both"


def test_an_empty_group_stays():
    assert split([], lr=0.1)[0]["params"] == []


def test_a_named_group_lends_its_name():
    groups = split(block().parameters(), name="backbone")
    assert [group["name"] for group in groups] == ["backbone/layer0", "backbone/layer1"]


def test_equal_names_are_told_apart():
    groups = split([("w", torch.ones(2, 2))])
    more = split([("w", torch.ones(2, 2))], others=groups)
    assert [group["name"] for group in (*groups, *more)] == ["w", "w (2)"]
    assert more[0]["layer"] != groups[0]["layer"]


def test_decay_spares_what_it_is_told_to():
    groups = layer_groups(block(), weight_decay=0.1, no_decay=lambda name, p: p.ndim < 2)
    assert [(g["layer"], g["name"], g["weight_decay"], len(g["params"])) for g in groups] == [
        ("0", "0", 0.1, 1),
        ("0", "1.weight", 0.0, 2),
        ("3", "3", 0.1, 1),
        ("3", "3.bias", 0.0, 1),
    ]


def test_layers_by_module():
    net = nn.Sequential(nn.LSTM(4, 5), nn.Linear(5, 2))
    groups = layer_groups(net, by="name")
    assert [(g["layer"], len(g["params"])) for g in groups] == [("0", 4), ("1", 2)]


def test_layers_by_regular_expression():
    net = nn.ModuleDict({"stem": nn.Linear(2, 2), "block1": block(), "block2": block()})
    groups = layer_groups(net, by=r"(block\d)\.")
    assert [(g["layer"], len(g["params"])) for g in groups] == [
        ("stem.weight", 2),
        ("block1", 5),
        ("block2", 5),
    ]
    whole = layer_groups(net, by=r"^block|^stem")
    assert [group["layer"] for group in whole] == ["stem", "block"]


def test_named_parameters_serve_as_well_as_a_module():
    net = block()
    assert members(layer_groups(net.named_parameters())) == members(layer_groups(net))


def test_nothing_to_split_is_said():
    with pytest.raises(ArgumentError, match="got none"):
        layer_groups(nn.ReLU())


def test_torch_optimizers_take_the_groups():
    optimizer = torch.optim.AdamW(layer_groups(block(), weight_decay=0.1), lr=1e-3)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3] * 2


def test_list_layers_groups():
    groups = [{"layer": "a"}, {"layer": "b"}, {"layer": "a"}, {}]
    assert list_layers(groups) == {"a": [0, 2], "b": [1], "group3": [3]}


def test_only_weights_are_probed_and_filters_match_names_and_kinds():
    groups = layer_groups(block())
    both = [name for group in groups for name, _ in select_weights(group, None, None)]
    assert both == ["0.weight", "3.weight"]

    def chosen(include=None, exclude=None):
        return [name for group in groups for name, _ in select_weights(group, include, exclude)]

    assert chosen(include=["linear"]) == ["3.weight"]
    assert chosen(exclude=["3.*"]) == ["0.weight"]
    assert chosen(include=["*"], exclude=["conv2d", "linear"]) == []


def test_weights_of_an_unnamed_group_have_the_layers_name():
    (group,) = split([torch.ones(2, 2), torch.ones(2)])
    assert [name for name, _ in select_weights(group, None, None)] == ["layer0"]
    several = {"params": [torch.ones(2, 2), torch.ones(3, 3)], "name": "two"}
    assert [name for name, _ in select_weights(several, None, None)] == ["two[0]", "two[1]"]
