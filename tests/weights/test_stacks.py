"""Fused experts: one matrix per expert, in files and in memory, and the axis of its outputs."""

import dataclasses

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import rankwise
from rankwise import Status
from rankwise.weights.module import describe_tensor
from rankwise.weights.orientation import find_output_axis
from rankwise.weights.stacks import resolve_tensors


def plant(*shape, rank=6):
    *outer, rows, columns = shape
    left, right = torch.randn(*outer, rows, rank), torch.randn(*outer, rank, columns)
    return left @ right + 0.05 * torch.randn(*outer, rows, columns)


def test_every_expert_has_its_own_rank(tmp_path):
    torch.manual_seed(0)
    stack = plant(8, 256, 64)
    save_file({"mlp.experts.gate_up_proj": stack}, tmp_path / "moe.safetensors")
    for target in (tmp_path / "moe.safetensors", {"mlp.experts.gate_up_proj": stack}):
        result = rankwise.probe(target)
        assert [layer.name for layer in result.layers] == [
            f"mlp.experts.gate_up_proj[{i}]" for i in range(8)
        ]
        assert {layer.rank for layer in result.layers} == {6.0}
        assert {layer.group for layer in result.layers} == {"mlp.experts.gate_up_proj"}
        assert {layer.kind for layer in result.layers} == {"linear"}
        assert result.parameters == stack.numel()


def test_a_fused_and_an_unfused_file_have_the_same_metrics():
    torch.manual_seed(0)
    stack = plant(4, 64, 32)
    fused = rankwise.probe({"mlp.experts.w1": stack})
    unfused = rankwise.probe({f"mlp.experts.{i}.w1.weight": stack[i] for i in range(4)})
    assert [layer.stable_rank for layer in fused] == [layer.stable_rank for layer in unfused]
    assert fused.figures.total_rank == unfused.figures.total_rank
    assert fused.quality == unfused.quality


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(plant(4, 32, 64))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(4, 64))
        self.down_proj = nn.Parameter(plant(4, 32, 32))
        self.down_proj_bias = nn.Parameter(torch.zeros(4, 32))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(32, 4)
        self.experts = Experts()


def test_a_module_in_memory_is_unstacked_too():
    torch.manual_seed(0)
    result = rankwise.probe(Block())
    experts = [layer for layer in result.layers if layer.group == "experts.gate_up_proj"]
    assert [layer.rank for layer in experts] == [6.0] * 4
    assert result["experts.gate_up_proj_bias"].status is Status.NOT_A_WEIGHT


def test_the_optimizer_measures_every_expert():
    torch.manual_seed(0)
    block = Block()
    optimizer = rankwise.RMSGD(block.named_parameters(), lr=0.03)
    assert [group["layer"] for group in optimizer.param_groups] == [
        "router",
        "experts.gate_up_proj",
        "experts.down_proj",
    ]
    for param in block.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    optimizer.epoch_step()
    expected = rankwise.probe(block)
    measured = {layer.name: layer.stable_rank for layer in optimizer.last_probe.probed}
    assert measured == {layer.name: layer.stable_rank for layer in expected.probed}


def test_four_dimensions_are_two_of_experts():
    weights = resolve_tensors([describe_tensor("experts.w1", torch.randn(2, 3, 8, 8))])
    assert [weight.name for weight in weights] == [
        f"experts.w1[{i},{j}]" for i in range(2) for j in range(3)
    ]
    stack = torch.randn(2, 3, 8, 8)
    pieces = resolve_tensors([describe_tensor("experts.w1", stack)])
    assert all(torch.equal(p.load(), m) for p, m in zip(pieces, stack.flatten(0, 1), strict=True))


def test_only_the_wanted_expert_is_loaded(tmp_path):
    torch.manual_seed(0)
    save_file({"experts.w1": torch.randn(16, 8, 8)}, tmp_path / "moe.safetensors")
    result = rankwise.probe(tmp_path / "moe.safetensors", include="*[[]3[]]")
    assert [layer.name for layer in result.probed] == ["experts.w1[3]"]


def test_a_source_that_loads_whole_tensors_is_loaded_once():
    stack, loads = torch.randn(4, 8, 8), []

    def load():
        loads.append(1)
        return stack

    whole = dataclasses.replace(describe_tensor("experts.w1", stack), load=load, load_rows=None)
    pieces = resolve_tensors([whole])
    assert all(torch.equal(piece.load(), stack[i]) for i, piece in enumerate(pieces))
    assert len(loads) == 1


def test_absurdly_many_matrices_are_not_unstacked():
    result = rankwise.probe({"experts.w1": torch.zeros(10_000, 2, 2)})
    (row,) = result.layers
    assert row.status is Status.UNREADABLE
    assert "10000 matrices" in row.reason


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ({"experts.gate_up_proj": (4, 128, 32), "experts.down_proj": (4, 32, 64)}, 0),
        ({"experts.gate_up_proj": (4, 32, 128), "experts.down_proj": (4, 64, 32)}, 1),
        ({"experts.gate_up_proj": (4, 32, 128), "experts.gate_up_proj_bias": (4, 128)}, 1),
        ({"experts.gate_up_proj": (4, 128, 32), "experts.gate_up_proj_bias": (4, 128)}, 0),
        ({"h.0.attn.c_attn.weight": (32, 96)}, 1),
        ({"h.0.attn.c_attn.weight": (96, 32)}, 0),
        ({"h.0.attn.c_proj.weight": (32, 32), "h.0.attn.c_attn.weight": (32, 96)}, 1),
        ({"h.0.attn.c_proj.weight": (32, 32), "h.0.attn.c_attn.weight": (96, 32)}, 0),
        ({"h.0.mlp.c_fc.weight": (32, 128)}, 1),
        ({"h.0.mlp.c_fc.weight": (128, 32)}, 0),
        ({"h.0.mlp.c_proj.weight": (128, 32)}, 1),
        ({"Dense_0/kernel": (32, 64)}, 1),
        ({"fc.weight": (32, 64)}, 0),
    ],
)
def test_the_axis_that_counts_outputs(shapes, axis):
    weights = {name: describe_tensor(name, torch.zeros(shape)) for name, shape in shapes.items()}
    first = next(iter(weights.values()))
    assert find_output_axis(first, weights) == axis


def test_dead_outputs_of_gpt2_are_dead_filters():
    torch.manual_seed(0)
    weight = plant(48, 144)
    weight[:, :100] = 0.0  # outputs, as GPT-2 stores them
    findings = rankwise.check({"h.0.attn.c_attn.weight": weight})
    assert any(f.kind == "dead-filters" for f in findings.findings)


def test_a_layer_of_gpt2_in_memory_is_turned():
    transformers = pytest.importorskip("transformers")
    layer = transformers.pytorch_utils.Conv1D(12, 8)
    from rankwise.weights.module import describe_module

    axes = {weight.name: weight.output_axis for weight in describe_module(layer).tensors}
    assert axes["weight"] == 1


@pytest.mark.parametrize(("kind", "axis"), [(None, 1), ("linear", 0), ("recurrent", 0)])
def test_who_knows_the_kind_of_a_kernel_knows_its_layout(kind: str | None, axis: int) -> None:
    weight = describe_tensor("dense.kernel", torch.zeros(8, 4), kind)
    assert find_output_axis(weight, {}) == axis
