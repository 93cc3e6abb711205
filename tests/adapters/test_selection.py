"""Layers to fine-tune: which are chosen, their LoRA ranks, and what PEFT makes of the output."""

import json
import re

import pytest
import torch
from torch import nn

import rankwise
from rankwise.adapters import select_layers
from rankwise.adapters.extraction.peft_layout import make_regex
from rankwise.adapters.selection.ranking import choose_share
from rankwise.adapters.selection.selection_formats import (
    format_axolotl,
    format_json,
    format_selection,
    make_peft_options,
)
from rankwise.errors import ArgumentError, TargetError


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, blocks=4, width=24):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():  # signal of falling strength, of rank 1 + block, in the layers `up`
        for number, block in enumerate(net.blocks):
            for direction in range(1 + number):
                block.up.weight[direction * 8 : direction * 8 + 8] += (4 - number) * torch.randn(24)
    return net


def test_each_role_gives_its_share_of_layers_with_most_signal(net):
    selection = select_layers(net, 0.5)
    names = [layer.name for layer in selection.chosen]
    ups = [layer for layer in selection.layers if layer.role == "blocks.#.up.weight"]
    best = sorted(ups, key=lambda layer: layer.signal, reverse=True)[:2]
    assert {layer.name for layer in best} == {name for name in names if ".up." in name}
    assert len(names) == 4
    assert [reason for name, reason in selection.left_out if name == "head.weight"] == [
        "no other of its role and shape"
    ]


def test_the_criterion_is_the_share_of_the_low_rank_part(net):
    probe = rankwise.probe(net)
    noise = {row.name: row.noise_fraction for row in probe.probed}
    for layer in select_layers(probe).layers:
        assert layer.signal == pytest.approx(1 - noise[layer.name])


@pytest.mark.parametrize(("count", "share"), [(8, 0.25), (10, 0.1), (30, 0.1), (7, 0.5), (3, 0.01)])
def test_the_share_is_rounded_to_whole_layers_and_never_to_none(count, share):
    layers = [("a" if place % 3 else "b", float(place)) for place in range(count)]
    assert len(choose_share(layers, share)) == max(1, round(share * count))


def test_a_layer_without_siblings_competes_if_asked(net):
    chosen = select_layers(net, 1.0, alone=True).chosen
    assert "head.weight" in {layer.name for layer in chosen}


def test_lora_ranks_follow_the_ranks_of_the_weights_at_the_size_of_equal_ranks(net):
    selection = select_layers(net, 1.0, rank=4)
    cost = sum(layer.lora_rank * sum(layer.shape) for layer in selection.chosen)
    equal = sum(4 * sum(layer.shape) for layer in selection.chosen)
    by_rank = sorted(selection.chosen, key=lambda layer: layer.rank)
    assert by_rank[0].lora_rank < by_rank[-1].lora_rank
    assert cost == pytest.approx(equal, rel=0.35)  # ranks are whole numbers of at least 1


def test_layers_without_any_signal_get_equal_ranks():
    torch.manual_seed(0)
    weights = {f"h.{i}.fc.weight": torch.randn(64, 64) for i in range(4)}
    assert {layer.lora_rank for layer in select_layers(weights, 1.0, rank=8).chosen} == {8}


def test_no_rank_exceeds_the_sides_of_its_matrix():
    weights = {f"h.{i}.fc.weight": torch.randn(4, 64) + 5 for i in range(2)}
    assert all(layer.lora_rank <= 4 for layer in select_layers(weights, 1.0, rank=64).chosen)


def test_embeddings_norms_and_biases_do_not_compete():
    weights = {}
    for i in range(3):
        weights[f"h.{i}.fc.weight"] = torch.randn(16, 16)
        weights[f"h.{i}.norm.weight"] = torch.ones(16)
        weights[f"h.{i}.embed_tokens.weight"] = torch.randn(50, 16)
    selection = select_layers(weights, 1.0)
    assert {layer.role for layer in selection.layers} == {"h.#.fc.weight"}
    assert dict(selection.left_out)["h.0.embed_tokens.weight"] == "kind embedding"


@pytest.mark.parametrize("budget", [0, -0.1, 1.5, float("nan"), "half"])
def test_a_budget_must_be_a_share(net, budget):
    with pytest.raises(ArgumentError, match="budget above 0 and at most 1"):
        select_layers(net, budget)


@pytest.mark.parametrize("rank", [0, -1, 1.5, True])
def test_a_rank_must_be_a_whole_number(net, rank):
    with pytest.raises(ArgumentError, match="whole number"):
        select_layers(net, rank=rank)


def test_a_network_without_siblings_is_a_clear_error():
    with pytest.raises(TargetError, match="no layer to choose from"):
        select_layers({"fc.weight": torch.randn(8, 8)})


class TestPeft:
    """What the real package makes of the output."""

    @pytest.fixture(autouse=True)
    def _peft(self):
        self.peft = pytest.importorskip("peft")

    def test_it_puts_a_lora_of_each_rank_on_the_chosen_modules_alone(self, net):
        selection = select_layers(net, 0.5, rank=4)
        options = json.loads(format_selection(selection, "peft"))
        model = self.peft.get_peft_model(net, self.peft.LoraConfig(**options))
        found = {
            name.removeprefix("base_model.model."): module.r["default"]
            for name, module in model.named_modules()
            if hasattr(module, "lora_A")
        }
        assert found == {layer.module: layer.lora_rank for layer in selection.chosen}
        scales = {m.scaling["default"] for m in model.modules() if hasattr(m, "lora_A")}
        assert scales == {1.0}

    def test_a_name_that_ends_another_does_not_put_a_lora_on_it(self):
        torch.manual_seed(0)
        net = nn.ModuleDict({"h": Net().blocks, "encoder": nn.ModuleDict({"h": Net().blocks})})
        with torch.no_grad():
            net["h"][0].up.weight += 3
        selection = select_layers(net, 0.05)
        options = make_peft_options(selection)
        assert selection.chosen[0].name == "h.0.up.weight"
        model = self.peft.get_peft_model(net, self.peft.LoraConfig(**options))
        found = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
        assert [name.removeprefix("base_model.model.") for name in found] == ["h.0.up"]

    def test_the_regular_expression_selects_the_same_modules(self, net):
        selection = select_layers(net, 0.25)
        pattern = format_selection(selection, "regex").strip()
        model = self.peft.get_peft_model(net, self.peft.LoraConfig(target_modules=pattern))
        found = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
        assert found == {f"base_model.model.{layer.module}" for layer in selection.chosen}

    def test_convolutions_can_be_chosen(self):
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Conv2d(8, 8, 3) for _ in range(4)))
        with torch.no_grad():
            net[2].weight += 1
        options = make_peft_options(select_layers(net, 0.25, rank=4))
        model = self.peft.get_peft_model(net, self.peft.LoraConfig(**options))
        assert hasattr(model.base_model.model[2], "lora_A")
        assert not hasattr(model.base_model.model[1], "lora_A")


def test_each_regular_expression_for_axolotl_matches_one_parameter(net):
    selection = select_layers(net, 0.5)
    head, *lines = format_axolotl(selection).splitlines()
    assert head == "unfrozen_parameters:"
    patterns = [line.removeprefix("  - '").removesuffix("'") for line in lines]
    names = [name for name, _ in net.named_parameters()]
    found = [[name for name in names if re.match(pattern, name)] for pattern in patterns]
    assert found == [[layer.name] for layer in selection.chosen]


def test_a_name_with_signs_of_a_regular_expression_stands_for_itself():
    weights = {f"h.{i}.fc+(x).weight": torch.randn(8, 8) for i in range(2)}
    modules = [layer.module for layer in select_layers(weights, 1.0).chosen]
    assert re.fullmatch(make_regex(modules), "h.0.fc+(x)")
    assert not re.fullmatch(make_regex(modules), "h.0xfc+(x)")


def test_parameters_that_are_no_weight_of_a_module_are_named_but_not_for_peft():
    weights = {f"h.{i}.in_proj_weight": torch.randn(24, 8) for i in range(2)}
    selection = select_layers(weights, 1.0)
    assert "h.0.in_proj_weight" in format_selection(selection, "list")
    with pytest.raises(ArgumentError, match="weight of a module"):
        format_selection(selection, "peft")


def test_experts_of_one_tensor_compete_as_one():
    torch.manual_seed(0)
    weights = {f"layers.{i}.mlp.experts.gate_up_proj": torch.randn(4, 16, 32) for i in range(3)}
    selection = select_layers(weights, 0.34)
    assert [layer.shape for layer in selection.layers] == [(4, 16, 32)] * 3
    assert len(selection.chosen) == 1


def test_json_has_every_layer_and_the_reasons(net):
    document = json.loads(format_json(select_layers(net)))
    assert len(document["layers"]) == 8
    assert document["left_out"] == [["head.weight", "no other of its role and shape"]]
