"""RMSGD over epochs: which layers get which rates, and what else may touch them."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    OneCycleLR,
    ReduceLROnPlateau,
)
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import rankwise
from rankwise import RMSGD, ArgumentError

BETA, RATE = 0.98, 0.03


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 16), nn.Linear(16, 3))


def epoch(net, optimizer, seed=0, batches=3):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        optimizer.zero_grad()
        inputs = torch.randn(8, 12, generator=generator)
        (net(inputs) - inputs[:, :3]).square().mean().backward()
        optimizer.step()


def plant(weight, rank, strength=1.0):
    """Adds structure of a rank, so that the weight's stable rank rises."""
    with torch.no_grad():
        rows, columns = weight.shape
        weight.add_(torch.randn(rows, rank) @ torch.randn(rank, columns), alpha=strength)


def ranks_of(net, p=2.0):
    rows = rankwise.probe(net, p=p).layers
    return {row.name.removesuffix(".weight"): row.stable_rank for row in rows}


def test_a_rate_follows_the_gain_in_stable_rank():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    rates = dict.fromkeys(("0", "2", "3"), RATE)
    before = ranks_of(net)
    for seed in range(4):
        epoch(net, optimizer, seed)
        plant(net[2].weight, seed)
        after = ranks_of(net)
        optimizer.epoch_step()
        rates = {n: max(BETA * r + after[n] - before[n], 0.01 * RATE) for n, r in rates.items()}
        before = after
        assert optimizer.rates() == pytest.approx(rates, rel=1e-9)
    assert rates["2"] > 2 * RATE


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_annealed_rates_follow_the_gain_over_the_first_rate_under_a_cosine(p):
    net = network()
    optimizer = RMSGD(net.named_parameters(), variant="annealed", epochs=4, beta=0.5, p=p)
    extra = dict.fromkeys(("0", "2", "3"), 0.0)
    before = ranks_of(net, p)
    for seed in range(4):
        epoch(net, optimizer, seed)
        plant(net[2].weight, seed)
        after = ranks_of(net, p)
        optimizer.epoch_step()
        extra = {n: 0.5 * m + after[n] - before[n] for n, m in extra.items()}
        before = after
        cosine = (1 + math.cos(math.pi * min(seed + 1, 3) / 4)) / 2
        expected = {n: cosine * max(RATE + m, 0.01 * RATE) for n, m in extra.items()}
        assert optimizer.rates() == pytest.approx(expected, rel=1e-9)
    assert expected["2"] > 2 * expected["0"]


def test_beta_follows_the_number_of_epochs_unless_it_is_given():
    betas = [
        RMSGD(network().parameters(), **options).defaults["beta"]
        for options in ({}, {"epochs": 20}, {"epochs": 20, "beta": 0.5})
    ]
    assert betas == [0.98, rankwise.beta_for(20), 0.5]


def test_beta_need_not_follow_where_a_cosine_does():
    options = {"epochs": 20, "variant": "annealed"}
    optimizer = RMSGD(network().parameters(), **options)
    groups = rankwise.layer_groups(network())
    other = rankwise.StableRankLR(torch.optim.SGD(groups, lr=0.1), **options)
    assert optimizer.defaults["beta"] == other.beta == 0.98
    assert RMSGD(network().parameters(), beta=0.5, **options).defaults["beta"] == 0.5


def test_a_state_from_before_an_option_was_there_is_loaded():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    epoch(net, optimizer)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        for name in ("epochs", "p"):
            del group[name]
    optimizer.load_state_dict(state)
    epoch(net, optimizer)
    optimizer.epoch_step()
    assert optimizer.param_groups[0]["p"] == 2.0


def test_the_first_stable_rank_is_that_of_the_first_step():
    """Weights are often loaded after the optimizer was made."""
    net = network()
    optimizer = RMSGD(net.named_parameters())
    plant(net[0].weight, 4)
    known = ranks_of(net)["0"]
    assert known > 0.1
    optimizer.param_groups[0]["params"][0].grad = torch.zeros(24, 12)
    optimizer.step()
    optimizer.epoch_step()
    assert optimizer.rates()["0"] == pytest.approx(BETA * RATE)
    assert optimizer.param_groups[0]["stable_rank"] == pytest.approx(known)


def test_an_epoch_without_a_step_is_none():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    optimizer.epoch_step()
    assert optimizer.last_probe is None
    epoch(net, optimizer)
    plant(net[0].weight, 3)
    optimizer.epoch_step()
    rates, probe = optimizer.rates(), optimizer.last_probe
    plant(net[0].weight, 3)
    optimizer.epoch_step()
    assert optimizer.rates() == rates
    assert optimizer.last_probe is probe


def test_the_last_probe_tells_what_was_found():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    epoch(net, optimizer)
    plant(net[3].weight, 1, 9.0)
    optimizer.epoch_step()
    assert [row.name for row in optimizer.last_probe.probed] == ["0.weight", "2.weight", "3.weight"]
    assert optimizer.last_probe["3.weight"].stable_rank == ranks_of(net)["3"]
    assert deepcopy(optimizer).last_probe is None


@pytest.mark.parametrize("exclude", [None, "2.weight"])
@pytest.mark.parametrize("named", [True, False])
def test_the_last_probe_counts_every_parameter(named, exclude):
    net = network()
    optimizer = RMSGD(net.named_parameters() if named else net.parameters(), exclude=exclude)
    epoch(net, optimizer)
    optimizer.epoch_step()
    probe = optimizer.last_probe
    left_out = net[2].weight.numel() if named and exclude else 0
    weights = sum(param.numel() for param in net.parameters() if param.ndim >= 2) - left_out
    assert probe.parameters == sum(param.numel() for param in net.parameters())
    assert probe.coverage == weights / probe.parameters < 1
    names = [row.name for row in probe.layers]
    assert len(set(names)) == len(names) == len(list(net.parameters()))
    if named:
        assert set(names) == {name for name, _ in net.named_parameters()}


def test_ending_an_epoch_changes_neither_weights_nor_random_numbers_nor_the_grad_mode():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    epoch(net, optimizer)
    kept = deepcopy([net.state_dict(), [p.grad for p in net.parameters()], optimizer.state_dict()])
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            optimizer.epoch_step()
            assert torch.is_grad_enabled() is enabled
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
    for name, value in net.state_dict().items():
        assert torch.equal(value, kept[0][name])
    for param, grad in zip(net.parameters(), kept[1], strict=True):
        assert torch.equal(param.grad, grad)
    for index, state in kept[2]["state"].items():
        buffer = optimizer.state_dict()["state"][index]["momentum_buffer"]
        assert torch.equal(buffer, state["momentum_buffer"])


def test_the_floor_keeps_a_layer_alive():
    net = network()
    optimizer = RMSGD(net.named_parameters(), beta=0.1)
    own = RMSGD(network().named_parameters(), beta=0.1, floor=0.02)
    for o in (optimizer, own):
        for _ in range(4):
            o.param_groups[0]["params"][0].grad = torch.zeros(24, 12)
            o.step()
            o.epoch_step()
    assert optimizer.rates()["0"] == pytest.approx(0.01 * RATE)
    assert own.rates()["0"] == 0.02


def test_frozen_and_unused_layers_keep_rate_and_state():
    net = network()
    net.unused = nn.Linear(7, 5)
    net[0].requires_grad_(requires_grad=False)
    optimizer = RMSGD(net.named_parameters(), weight_decay=0.1)
    before = [p.detach().clone() for p in (*net[0].parameters(), *net.unused.parameters())]
    forward = nn.Sequential(*net[:4])
    for seed in range(3):
        epoch(forward, optimizer, seed)
        optimizer.epoch_step()
    after = [*net[0].parameters(), *net.unused.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    idle = {g["name"]: g for g in optimizer.param_groups if g["name"] in ("0", "unused")}
    assert [g["lr"] for g in idle.values()] == [RATE, RATE]
    assert not any(g["started"] or g["stepped"] or g["epoch"] for g in idle.values())
    assert optimizer.rates()["2"] == pytest.approx(BETA**3 * RATE)


def test_a_layer_unfrozen_later_starts_then():
    net = network()
    net[0].requires_grad_(requires_grad=False)
    optimizer = RMSGD(net.named_parameters())
    epoch(net, optimizer)
    optimizer.epoch_step()
    plant(net[0].weight, 4)
    net[0].requires_grad_(requires_grad=True)
    known = ranks_of(net)["0"]
    epoch(net, optimizer, 1)
    gain = ranks_of(net)["0"] - known
    optimizer.epoch_step()
    assert known > 0.1
    assert optimizer.rates()["0"] == pytest.approx(BETA * RATE + gain)
    assert optimizer.param_groups[0]["epoch"] == 1


def test_a_layer_that_rests_for_an_epoch_loses_nothing():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    epoch(net, optimizer)
    optimizer.epoch_step()
    group = optimizer.param_groups[0]
    kept = deepcopy({k: v for k, v in group.items() if k != "params"})
    net[0].requires_grad_(requires_grad=False)
    optimizer.zero_grad()
    epoch(net, optimizer, 1)
    optimizer.epoch_step()
    assert {k: v for k, v in group.items() if k != "params"} == kept
    assert optimizer.rates()["2"] < kept["lr"]


def test_a_layer_that_is_not_finite_keeps_its_rate_and_is_named_once():
    net = network()
    optimizer = RMSGD(net.named_parameters(), beta=BETA)
    epoch(net, optimizer)
    with torch.no_grad():
        net[2].weight[0, 0] = math.nan
    with pytest.warns(UserWarning, match=r"keep their rates: 2 \(.*NaN") as caught:
        optimizer.epoch_step()
    assert len(caught) == 1
    assert optimizer.rates() == pytest.approx({"0": BETA * RATE, "2": RATE, "3": BETA * RATE})
    with torch.no_grad():
        net[2].weight[0, 0] = 0.0
    for param in net.parameters():
        param.grad = torch.zeros_like(param)
        optimizer.state[param]["momentum_buffer"].zero_()
    optimizer.step()
    optimizer.epoch_step()
    assert optimizer.rates()["2"] == pytest.approx(BETA * RATE)


@pytest.mark.parametrize("lr", [1, torch.tensor(1)], ids=["number", "tensor"])
def test_a_whole_number_as_rate_is_no_whole_number(lr):
    net = network()
    optimizer = RMSGD([{"params": net.parameters(), "lr": lr}], lr=lr)
    assert {type(rate) for rate in optimizer.rates().values()} == {float}
    for param in net.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    optimizer.epoch_step()
    assert list(optimizer.rates().values()) == pytest.approx([BETA] * 3)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_tensor_rates_are_each_layers_own_and_filled_in_place(shape):
    net, lr = network(), torch.full(shape, RATE)
    optimizer = RMSGD(net.named_parameters(), lr=lr)
    tensors = [group["lr"] for group in optimizer.param_groups]
    epoch(net, optimizer)
    plant(net[0].weight, 3)
    optimizer.epoch_step()
    assert all(g["lr"] is t for g, t in zip(optimizer.param_groups, tensors, strict=True))
    assert len({t.item() for t in tensors}) == 2
    assert lr.item() == pytest.approx(RATE)
    assert [t.item() for t in tensors] == pytest.approx(
        [float(g["rate"]) for g in optimizer.param_groups]
    )


def test_empty_groups_are_harmless():
    net = network()
    optimizer = RMSGD([{"params": []}, {"params": net.parameters()}, {"params": []}])
    epoch(net, optimizer)
    optimizer.epoch_step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert len(optimizer.param_groups) == 5
    assert sum(not group["params"] for group in optimizer.param_groups) == 2


def test_groups_without_decay_share_their_layers_rate():
    """As trainers hand parameters over: weights with decay, vectors without."""
    net = network()
    named = list(net.named_parameters())
    groups = [
        {"params": [(n, p) for n, p in named if p.ndim > 1], "weight_decay": 0.1},
        {"params": [(n, p) for n, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = RMSGD(groups)
    epoch(net, optimizer)
    plant(net[2].weight, 3)
    optimizer.epoch_step()
    rates = optimizer.rates()
    assert rates["2"] == rates["2.bias"] > rates["0"] == rates["0.bias"]
    decays = {g["name"]: g["weight_decay"] for g in optimizer.param_groups}
    assert (decays["2"], decays["2.bias"]) == (0.1, 0.0)


def test_a_group_added_later_trains_along():
    net = network()
    optimizer = RMSGD(list(net[:3].named_parameters()))
    epoch(net, optimizer)
    optimizer.epoch_step()
    optimizer.add_param_group({"params": list(net[3].named_parameters("last")), "lr": 0.5})
    before = net[3].weight.detach().clone()
    epoch(net, optimizer)
    optimizer.epoch_step()
    assert not torch.equal(net[3].weight, before)
    assert optimizer.rates()["last"] == pytest.approx(BETA * 0.5)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [("again", net[0].weight)]})


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"beta": 1.1}, "beta between 0 and 1, got 1.1"),
        ({"beta": math.nan}, "beta between 0 and 1, got nan"),
        ({"zeta": -1.0}, "zeta ≥ 0, got -1.0"),
        ({"floor": -1.0}, "floor ≥ 0"),
        ({"variant": "other"}, "'paper' or 'annealed', got 'other'"),
        ({"variant": "annealed"}, "epochs for variant='annealed'"),
        ({"epochs": 0}, "epochs of 1 or more"),
        ({"p": 0.0}, "p > 0, got 0.0"),
    ],
)
def test_own_options_out_of_range_are_refused(wrong, text):
    with pytest.raises(ArgumentError, match=text):
        RMSGD(network().parameters(), **wrong)
    with pytest.raises(ValueError, match=text):
        RMSGD([{"params": network().parameters(), **wrong}])


def test_gradients_may_be_accumulated_over_parts_of_a_batch():
    whole, parts = network(), network()
    inputs = torch.randn(8, 12)
    for net, chunks in ((whole, 1), (parts, 4)):
        optimizer = RMSGD(net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            for chunk in inputs.chunk(chunks):
                (net(chunk).square().sum() / 8).backward()
            optimizer.step()
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_clipped_gradients_are_used(clip):
    ours, theirs = network(), network()
    both = (
        (RMSGD(ours.parameters(), lr=0.1), ours),
        (
            torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9),
            theirs,
        ),
    )
    for optimizer, net in both:
        for _ in range(3):
            optimizer.zero_grad()
            (100 * net(torch.ones(4, 12))).square().sum().backward()
            clip(net.parameters(), 0.01)
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def factors_over_epochs(make, epochs=5, measure=()):
    """What a scheduler makes of the rates that the rule gives, epoch by epoch."""
    net = network()
    optimizer = RMSGD(net.named_parameters(), zeta=0.1)
    scheduler = make(optimizer)
    seen = []
    for seed in range(epochs):
        seen.append([g["lr"] / float(g["rate"]) for g in optimizer.param_groups])
        before = [(float(g["rate"]), float(g["stable_rank"])) for g in optimizer.param_groups]
        epoch(net, optimizer, seed)
        plant(net[2].weight, 1, 0.1)
        optimizer.epoch_step()
        if seed:
            for group, (rate, rank) in zip(optimizer.param_groups, before, strict=True):
                gain = 0.1 * (float(group["stable_rank"]) - rank)
                assert float(group["rate"]) == pytest.approx(max(BETA * rate + gain, 3e-4))
        scheduler.step(*measure)
    assert len({float(group["rate"]) for group in optimizer.param_groups}) > 1
    return seen


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda o: LinearLR(o, 0.25, total_iters=3), [0.25, 0.5, 0.75, 1.0, 1.0]),
        (lambda o: ExponentialLR(o, 0.5), [1.0, 0.5, 0.25, 0.125, 0.0625]),
        (lambda o: MultiplicativeLR(o, lambda _: 0.9), [0.9**i for i in range(5)]),
        (lambda o: ConstantLR(o, 0.5, total_iters=2), [0.5, 0.5, 1.0, 1.0, 1.0]),
        (
            lambda o: CosineAnnealingLR(o, 6),
            [(1 + math.cos(math.pi * i / 6)) / 2 for i in range(5)],
        ),
    ],
    ids=["LinearLR", "ExponentialLR", "MultiplicativeLR", "ConstantLR", "CosineAnnealingLR"],
)
def test_schedulers_that_multiply_compose_with_the_rule(make, expected):
    for factors, factor in zip(factors_over_epochs(make), expected, strict=True):
        assert factors == pytest.approx([factor] * 3)


def test_a_plateau_lowers_all_rates_alike():
    def make(optimizer):
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    factors = factors_over_epochs(make, measure=[1.0])
    assert [f[0] for f in factors] == pytest.approx([1.0, 1.0, 0.5, 0.25, 0.125])
    assert all(f == pytest.approx([f[0]] * 3) for f in factors)


def test_a_scheduler_that_undoes_the_rates_is_named():
    with pytest.warns(UserWarning, match="same rate although epoch_step"):
        factors_over_epochs(lambda o: LambdaLR(o, lambda _: 1.0), epochs=2)


def test_a_schedule_of_momentum_is_followed():
    net = network()
    optimizer = RMSGD(net.parameters())
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    assert optimizer.param_groups[0]["momentum"] == 0.95
    epoch(net, optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["momentum"] < 0.95


def test_averaged_weights_work_with_it():
    net = network()
    optimizer = RMSGD(net.named_parameters())
    mean = AveragedModel(net)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2, anneal_strategy="linear")
    seen = []
    for seed in range(3):
        epoch(net, optimizer, seed)
        for average in (mean, ema):
            average.update_parameters(net)
        seen.append(net[0].weight.detach().clone())
        scheduler.step()
    assert set(optimizer.rates().values()) == {0.01}
    torch.testing.assert_close(mean.module[0].weight.detach(), sum(seen) / 3)
    expected = seen[0] / 4 + seen[1] / 4 + seen[2] / 2
    torch.testing.assert_close(ema.module[0].weight.detach(), expected)


@pytest.mark.parametrize("variant", ["paper", "annealed"])
def test_training_gets_somewhere(variant):
    net = network()
    inputs = torch.randn(200, 12)
    wanted = (inputs[:, :3] + inputs[:, 3:6]).relu()
    optimizer = RMSGD(net.named_parameters(), variant=variant, epochs=8)
    losses = []
    for _ in range(8):
        for some, target in zip(inputs.split(20), wanted.split(20), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(some), target)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        optimizer.epoch_step()
    assert losses[-1] < 0.5 * losses[0]


def test_a_single_tensor_is_a_layer():
    param = Parameter(torch.randn(6))
    optimizer = RMSGD([param])
    param.grad = torch.ones(6)
    optimizer.step()
    optimizer.epoch_step()
    assert optimizer.rates() == {"layer0": RATE}


def test_a_layer_whose_rate_fell_to_zero_still_coasts_and_rises_again():
    """With floor=0 the rule alone decides; what moves by its velocity is measured."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 64))
    optimizer = RMSGD([weight], lr=0.03, floor=0.0, momentum=0.99)
    structure = torch.randn(16, 2) @ torch.randn(2, 64)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.param_groups[0]["stable_rank"].fill_(1.0)  # as if it lost nearly all it had
    optimizer.epoch_step()
    assert optimizer.rates() == {"layer0": 0.0}
    optimizer.state[weight]["momentum_buffer"].copy_(-structure)
    optimizer.step()
    optimizer.epoch_step()
    assert optimizer.rates()["layer0"] > 0.01


@pytest.mark.parametrize(
    "option",
    [
        {"variant": "annealed", "epochs": 5},
        {"p": 1.0},
        {"exclude": "linear"},
        {"include": ("a",)},
        {"share": False},
    ],
)
def test_options_of_the_whole_optimizer_are_refused_for_a_group(option):
    with pytest.raises(ArgumentError, match="for the optimizer as a whole"):
        RMSGD([{"params": [nn.Parameter(torch.ones(2, 2))], **option}])


def test_a_rate_that_autograd_follows_is_not_set():
    weight = nn.Parameter(torch.randn(4, 4))
    rate = torch.tensor(0.1, requires_grad=True)
    optimizer = RMSGD([weight], lr=rate, differentiable=True)
    optimizer.param_groups[0]["stepped"] = True
    with pytest.raises(ArgumentError, match="got one with gradient"):
        optimizer.epoch_step()


def test_the_default_device_is_not_where_rates_are_kept():
    with torch.device("meta"):
        optimizer = RMSGD([nn.Parameter(torch.ones(4, 4, device="cpu"))], lr=0.1)
    assert optimizer.rates() == {"layer0": 0.1}
    optimizer.param_groups[0]["params"][0].grad = torch.ones(4, 4)
    optimizer.step()
    with torch.device("meta"):
        optimizer.epoch_step()
    assert 0.0 < optimizer.rates()["layer0"] < 0.1


def test_lazy_parameters_are_refused_with_advice():
    with pytest.raises(ArgumentError, match="run the model once"):
        RMSGD(nn.LazyLinear(3).parameters())
