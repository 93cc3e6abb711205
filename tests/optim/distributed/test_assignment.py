import json
import warnings

import pytest
import torch
from torch import nn

from rankwise.optim import distributed
from rankwise.optim.distributed import _announce, _form_teams
from rankwise.optim.readings import Reading


def announce(*tensors, stepped=True, layer="layer"):
    """What a process that holds some weights of a layer announces, as the others receive it."""
    named = [(f"w{i}", tensor) for i, tensor in enumerate(tensors)]
    return {layer: json.loads(json.dumps(_announce(Reading(layer, (0,), stepped), named)))}


def teams_of(*announcements):
    return [(team.holders, team.others, team.owner) for team in _form_teams(announcements)]


def weight(seed=0, shape=(30, 40), dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_each_layer_has_one_owner_and_loads_are_balanced():
    sizes = [200, 150, 140, 90, 60, 50, 40, 30, 20, 10]
    announced = {}
    for size in sizes:
        announced.update(announce(torch.ones(size, size), layer=f"l{size}"))
    teams = _form_teams([announced] * 3)
    assert sorted(int(team.layer[1:]) for team in teams) == sorted(sizes)
    assert {team.owner for team in teams} == {0, 1, 2}
    cost = {layer: one["cost"] for layer, one in announced.items()}
    loads = [sum(cost[team.layer] for team in teams if team.owner == n) for n in range(3)]
    # Graham's bound for taking the most costly first: a third above the best
    assert max(loads) <= max(*cost.values(), sum(loads) / 3 * 4 / 3)


def test_layers_that_took_no_step_cost_nothing():
    announced = {**announce(torch.ones(90, 90), stepped=False, layer="idle")}
    announced.update(announce(torch.ones(30, 30), layer="a"))
    announced.update(announce(torch.ones(30, 30), layer="b"))
    owners = {team.layer: team.owner for team in _form_teams([announced, announced])}
    assert owners["a"] != owners["b"]


def test_a_step_on_one_process_is_a_step_of_the_layer():
    announcements = [announce(weight(), stepped=False), announce(stepped=True)]
    (team,) = _form_teams(announcements)
    assert (team.holders, team.others, team.owner) == ([0], [1], 0)
    assert team.has_stepped(announcements)


def test_processes_without_a_weight_follow_those_that_have_one():
    assert teams_of(announce(), announce(weight()), announce(weight())) == [([1, 2], [0], 1)]
    assert teams_of(announce(), announce()) == [([], [0, 1], None)]


def test_different_networks_have_owners_of_their_own():
    teams = teams_of(announce(weight(0)), announce(weight(1)), announce(weight(0)), announce())
    assert sorted(teams, key=str) == [([0, 2], [], 0), ([1], [], 1), ([], [3], None)]


@pytest.mark.parametrize(
    "other",
    [
        weight(1),
        weight(0, (40, 30)),
        weight(0, dtype=torch.bfloat16),
        weight(0).flip(0),
        weight(0) + 1e-3 * weight(1),
        weight(0).index_fill(0, torch.tensor([0]), torch.nan),
    ],
    ids=["values", "shape", "type", "order", "a little", "not finite"],
)
def test_different_weights_are_distinguished(other):
    assert len(teams_of(announce(weight()), announce(other))) == 2


def test_training_before_a_softmax_is_seen_though_it_leaves_the_sum():
    moved = weight() + 1e-3 * (weight(1) - weight(1).mean(0))
    assert moved.sum().item() == pytest.approx(weight().sum().item(), abs=1e-4)
    assert len(teams_of(announce(weight()), announce(moved))) == 2


def test_replicas_that_drifted_apart_by_rounding_are_replicas():
    drifted = weight() * (1 + 1e-7 * weight(1))
    assert not torch.equal(drifted, weight())
    assert len(teams_of(announce(weight()), announce(drifted))) == 1


def test_replicas_with_nan_are_replicas():
    broken = weight().index_fill(0, torch.tensor([3]), torch.nan)
    assert len(teams_of(announce(broken), announce(broken.clone()))) == 1


def odd_tensors():
    matrix = weight()
    with warnings.catch_warnings():  # torch's own: CSR is in beta, quantisation goes away
        warnings.simplefilter("ignore")
        csr = matrix.to_sparse_csr()
        quantised = torch.quantize_per_tensor(matrix, 0.1, 0, torch.qint8)
    return {
        "bf16": matrix.bfloat16(),
        "fp16": matrix.half(),
        "fp8": matrix.to(torch.float8_e4m3fn),
        "complex": torch.complex(matrix, matrix),
        "integer": matrix.int(),
        "meta": matrix.to("meta"),
        "empty": matrix[:0],
        "a row": matrix[:1],
        "sparse": matrix.to_sparse(),
        "csr": csr,
        "quantised": quantised,
        "channels last": weight(0, (4, 3, 5, 5)).to(memory_format=torch.channels_last),
        "expanded": matrix[:1].expand(20, -1),
        "transposed": matrix.t(),
        "a gradient's": nn.Parameter(matrix),
        "huge": matrix.double() * 1e300,
    }


@pytest.mark.parametrize("kind", odd_tensors())
def test_any_tensor_can_be_announced_and_is_like_itself(kind):
    tensor = odd_tensors()[kind]
    assert len(teams_of(announce(tensor), announce(tensor))) == 1


class Stubborn(torch.Tensor):
    """A tensor that no operation is defined for."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("reshape", "detach"):
            raise RuntimeError("not implemented")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_tensor_that_can_not_be_read_is_announced_by_shape_and_type():
    announced = announce(weight().as_subclass(Stubborn))["layer"]["weights"]
    assert announced == [[[30, 40, "torch.float32"], []]]


def test_sums_are_taken_block_by_block(monkeypatch):
    whole = announce(weight())["layer"]["weights"][0][1]
    monkeypatch.setattr(distributed, "_BLOCK", 7)
    assert announce(weight())["layer"]["weights"][0][1] == pytest.approx(whole, rel=1e-12)
