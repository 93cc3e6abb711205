import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import spectral_norm as old_spectral_norm

import rankwise
from rankwise import Status


def planted(*shape, rank=3, noise=0.1):
    rows, columns = shape[0], math.prod(shape[1:])
    low = torch.randn(rows, rank) @ torch.randn(rank, columns)
    return (low + noise * torch.randn(rows, columns)).reshape(shape)


def same(layer, other):
    assert layer.rank == other.rank
    for name in ("stable_rank", "condition", "quality", "noise_fraction", "effective_rank"):
        assert getattr(layer, name) == pytest.approx(getattr(other, name), rel=1e-5)


def old_weight_norm_state(weight, dim=0):
    axes = [i for i in range(weight.ndim) if i != dim]
    length = torch.linalg.vector_norm(weight, dim=axes, keepdim=True)
    direction = weight * torch.rand_like(length).add(0.5)
    return {"conv.weight_g": length, "conv.weight_v": direction, "conv.bias": torch.zeros(4)}


@pytest.mark.parametrize("dim", [0, 1])
def test_old_weight_norm_is_probed_as_it_acts(dim):
    weight = planted(16, 8, 3, 3)
    result = rankwise.probe(old_weight_norm_state(weight, dim))
    assert [layer.name for layer in result.layers] == [
        "conv.weight",
        "conv.weight_g",
        "conv.weight_v",
        "conv.bias",
    ]
    same(result["conv.weight"], rankwise.probe({"w": weight}).layers[0])
    assert result["conv.weight_v"].status is Status.MERGED
    assert result["conv.weight_g"].reason == "part of conv.weight"
    assert result.parameters == 16 * 8 * 9 + weight.shape[dim] + 4


def test_parts_stay_apart_where_the_whole_is_stored_too():
    state = {**old_weight_norm_state(planted(16, 8)), "conv.weight": planted(16, 8)}
    result = rankwise.probe(state)
    assert sorted(layer.name for layer in result.layers) == sorted(state)
    assert {layer.name for layer in result.probed} == {"conv.weight", "conv.weight_v"}


@pytest.mark.parametrize("as_state_dict", [False, True])
def test_weight_norm_parametrization(as_state_dict):
    model = nn.Sequential(nn.Conv2d(8, 16, 3))
    with torch.no_grad():
        model[0].weight.copy_(planted(16, 8, 3, 3))
    parametrizations.weight_norm(model[0])
    result = rankwise.probe(model.state_dict() if as_state_dict else model)
    same(result["0.weight"], rankwise.probe({"w": model[0].weight.detach()}).layers[0])
    assert result["0.parametrizations.weight.original1"].status is Status.MERGED
    assert result.coverage > 0.98


@pytest.mark.parametrize("as_state_dict", [False, True])
def test_spectral_norm_parametrization_takes_no_step(as_state_dict):
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(40, 20)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = rankwise.probe(model.state_dict() if as_state_dict else model)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    model.eval()
    effective = rankwise.probe({"w": model[0].weight.detach()}).layers[0]
    assert result["0.weight"].spectral_norm == pytest.approx(effective.spectral_norm, rel=1e-5)


def test_old_spectral_norm(recwarn):
    model = nn.Sequential(old_spectral_norm(nn.Linear(40, 20)))
    recwarn.clear()  # torch says that it is old
    result = rankwise.probe(model.state_dict())
    state = model.state_dict()
    u, v, weight = state["0.weight_u"], state["0.weight_v"], state["0.weight_orig"]
    expected = rankwise.probe({"w": weight / (u @ weight @ v)}).layers[0]
    assert result["0.weight"].spectral_norm == pytest.approx(expected.spectral_norm, rel=1e-5)
    assert result["0.weight_v"].status is Status.MERGED


def test_a_parametrization_the_file_does_not_tell():
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(10, 10)))
    result = rankwise.probe({"0.parametrizations.weight.original": planted(10, 10)})
    assert "the stored original was probed" in result["0.weight"].reason
    acting = rankwise.probe(model)["0.weight"]
    assert acting.rank == 0  # orthogonal: nothing stands out
    assert acting.condition == 1.0


def test_pruned_weights_are_probed_under_their_mask():
    model = nn.Sequential(nn.Linear(40, 20))
    prune.ln_structured(model[0], "weight", amount=0.5, n=2, dim=0)
    result = rankwise.probe(model)
    same(result["0.weight"], rankwise.probe({"w": model[0].weight.detach()}).layers[0])
    assert result["0.weight_mask"].status is Status.MERGED
    assert result["0.weight_orig"].status is Status.MERGED


@pytest.mark.parametrize(
    ("a", "b", "name"),
    [
        ("q.lora_A.default.weight", "q.lora_B.default.weight", "q.lora.default"),
        ("q.lora_A.weight", "q.lora_B.weight", "q.lora"),
        ("q.lora_A", "q.lora_B", "q.lora"),
        ("q.lora_down.weight", "q.lora_up.weight", "q.lora"),
        ("q.lora.down.weight", "q.lora.up.weight", "q.lora"),
        ("lora_unet_q.lora_down.weight", "lora_unet_q.lora_up.weight", "lora_unet_q.lora"),
        ("e.lora_embedding_A.default", "e.lora_embedding_B.default", "e.lora.default"),
    ],
)
def test_lora_is_one_layer(a, b, name):
    first, second = torch.randn(4, 60), torch.randn(90, 4)
    result = rankwise.probe({a: first, b: second})
    layer = result[name]
    assert (layer.kind, layer.shape, layer.parameters) == ("lora", (90, 60), 4 * 150)
    assert layer.rank == 4
    same(layer, rankwise.probe({"w": second.double() @ first.double()}).layers[0])
    assert {row.status for row in result.layers} == {Status.PROBED, Status.MERGED}


def test_lora_of_a_convolution():
    first, second = torch.randn(4, 6, 3, 3), torch.randn(30, 4, 1, 1)
    layer = rankwise.probe({"c.lora_down.weight": first, "c.lora_up.weight": second})["c.lora"]
    assert layer.shape == (30, 54)
    product = second.flatten(1).double() @ first.flatten(1).double()
    same(layer, rankwise.probe({"w": product}).layers[0])


def test_lora_factors_that_do_not_fit_stay_apart():
    result = rankwise.probe({"q.lora_A": torch.randn(4, 60), "q.lora_B": torch.randn(90, 5)})
    assert [layer.name for layer in result.probed] == ["q.lora_A", "q.lora_B"]


@pytest.mark.parametrize(
    ("layer", "letters"),
    [
        (nn.LSTM(12, 20, 2, bidirectional=True), "ifgo"),
        (nn.GRU(12, 20), "rzn"),
        (nn.LSTM(12, 20, proj_size=7), "ifgo"),
        (nn.LSTMCell(12, 20), "ifgo"),
    ],
)
def test_gates_can_be_split(layer, letters):
    result = rankwise.probe(layer, split=True)
    for name, weight in layer.named_parameters():
        if "weight" in name and "hr" not in name:
            for gate, letter in zip(weight.detach().chunk(len(letters)), letters, strict=True):
                piece = result[f"{name}[{letter}]"]
                assert piece.shape == (20, weight.shape[1])
                assert piece.frobenius_norm == pytest.approx(float(gate.norm()), rel=1e-5)
    assert result.parameters == sum(p.numel() for p in layer.parameters())


def test_plain_recurrent_layers_have_no_gates_to_split():
    result = rankwise.probe(nn.RNN(12, 20), split=True)
    assert result["weight_ih_l0"].shape == (20, 12)


@pytest.mark.parametrize(
    ("name", "transposed"),
    [("in_proj_weight", False), ("blocks.0.attn.qkv.weight", False), ("h.0.c_attn.weight", True)],
)
def test_stacked_attention_can_be_split(name, transposed):
    weight = torch.randn(96, 32)
    result = rankwise.probe({name: weight.T if transposed else weight}, split=True)
    for part, letter in zip(weight.chunk(3), "qkv", strict=True):
        norm = result[f"{name}[{letter}]"].frobenius_norm
        assert norm == pytest.approx(float(part.norm()), rel=1e-5)


def test_without_split_a_stack_is_one_layer():
    result = rankwise.probe(nn.MultiheadAttention(32, 4))
    assert result["in_proj_weight"].shape == (96, 32)


def test_ties_are_probed_once():
    embedding, head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
    head.weight = embedding.weight
    model = nn.ModuleDict({"embedding": embedding, "head": head})
    for target in (model, model.state_dict()):
        result = rankwise.probe(target)
        assert result["embedding.weight"].status is Status.PROBED
        assert result["head.weight"].status is Status.TIED
        assert result["head.weight"].reason == "tied to embedding.weight"
        assert result.parameters == 800
        assert result.coverage == 1.0


def test_the_twin_of_a_filtered_tensor_is_probed():
    weight = torch.randn(20, 10)
    result = rankwise.probe({"a": weight, "b": weight}, exclude="a")
    assert result["a"].status is Status.FILTERED
    assert result["b"].status is Status.PROBED


def test_transposed_views_are_ties_and_slices_are_not():
    weight = torch.randn(20, 10)
    result = rankwise.probe({"a": weight, "b": weight.T, "c": weight[:10]})
    assert result["b"].status is Status.TIED
    assert result["c"].status is Status.PROBED


def test_shared_modules_have_a_row_for_each_name():
    shared = nn.Linear(8, 6)
    result = rankwise.probe(nn.ModuleList([shared, shared]))
    assert result["1.weight"].reason == "tied to 0.weight"
    np.testing.assert_equal(result["1.weight"].rank, None)
