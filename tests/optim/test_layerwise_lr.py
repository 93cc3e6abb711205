"""LayerwiseLR: any rule, beside any schedule, in epochs or steps, with controls."""

import copy
import json
import math
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import rankwise
from rankwise import LLR, AnnealedStableRank, LayerwiseLR, RelativeUpdate, StableRank, TempBalance
from rankwise.errors import ArgumentError
from rankwise.probes import parallel
from tests.reference.layerwise_reference import (
    RelativeUpdateReference,
    eigenvalues,
    hill,
    interpolate,
    llr_multiplier,
)

RATE = 0.01
BATCHES = 3
RULES = {
    "StableRank": lambda: StableRank(beta=0.9),
    "AnnealedStableRank": lambda: AnnealedStableRank(6),
    "TempBalance": TempBalance,
    "LLR": lambda: LLR(18, every=3, transition=2, share=0.6, fewest=10),
    "RelativeUpdate": lambda: RelativeUpdate(every=2),
}
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3),
        nn.Flatten(),
        nn.Linear(48, 24),
        nn.LayerNorm(24),
        nn.Linear(24, 16),
        nn.Linear(16, 5),
    )


def batch(seed):
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(16, 2, 6, 6, generator=source)
    return images, torch.randint(0, 5, (16,), generator=source)


def optimizer_for(net, rate=RATE, kind=torch.optim.AdamW, **options):
    return kind(rankwise.layer_groups(net, **options), lr=rate)


def take_step(net, optimizer, seed=0):
    images, labels = batch(seed)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(images), labels).backward()
    optimizer.step()


def train(net, optimizer, *schedulers, steps, start=0, period=1):
    """Steps the schedulers after every so many steps; returns the rates after each step."""
    rates = []
    for step in range(start, steps):
        take_step(net, optimizer, step)
        if (step + 1) % period == 0:
            for scheduler in schedulers:
                scheduler.step()
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
    return rates


def period_of(rule):
    """How often `step()` is called in these tests: per epoch where the rule is."""
    return BATCHES if rule.every == "epoch" else 1


def weights_of(net):
    return [p.detach().double().numpy().copy() for p in net.parameters() if p.ndim >= 2]


def test_temp_balance_is_the_paper_s():
    net = network()
    optimizer = optimizer_for(net)
    scheduler = LayerwiseLR(optimizer, TempBalance())
    for epoch in range(3):
        train(net, optimizer, scheduler, steps=BATCHES, period=BATCHES)
        alphas = [hill(eigenvalues(weight)) for weight in weights_of(net)]
        expected = [1.0, *interpolate(alphas[1:-1], 0.5, 1.5), 1.0]
        assert list(scheduler.multipliers().values()) == pytest.approx(expected, rel=1e-9), epoch
        rates = [RATE * multiplier for multiplier in expected]
        assert list(scheduler.rates().values()) == pytest.approx(rates, rel=1e-9)
    assert scheduler.last_probe is None
    assert [r.outcome for r in scheduler.last_readings].count("skipped") == 2


@pytest.mark.parametrize("steps", [10, 20, 45])
def test_llr_sets_rates_in_the_first_fifth_and_then_no_more(steps):
    net = network()
    optimizer = optimizer_for(net)
    rule = LLR(steps, every=3, transition=2, fewest=10)
    scheduler = LayerwiseLR(optimizer, rule)
    targets = [{} for _ in range(5)]
    for step in range(1, steps + 1):
        take_step(net, optimizer, step)
        if step <= max(1, steps // 5) and (step == 1 or step % 3 == 0):
            alphas = [hill(eigenvalues(weight)) for weight in weights_of(net)]
            new = [*interpolate(alphas[:-1], 1.0, 3.0), 3.0]  # the last layer is the head
            for one, multiplier in zip(targets, new, strict=True):
                one[step] = multiplier
        scheduler.step()
        expected = [llr_multiplier(step, one, 2) for one in targets]
        assert list(scheduler.multipliers().values()) == pytest.approx(expected, rel=1e-9), step
    assert len(targets[0]) == 1 + steps // 5 // 3
    assert list(scheduler.multipliers().values()) == pytest.approx(
        [list(one.values())[-1] for one in targets]
    )


@pytest.mark.parametrize("warm_up", [False, True])
def test_relative_update_is_its_formula(warm_up):
    net = network()
    optimizer = optimizer_for(net)
    reference = RelativeUpdateReference(weights_of(net))
    scheduler = LayerwiseLR(optimizer, RelativeUpdate(every=4))
    factor = lr_scheduler.LinearLR(optimizer, 0.005 if warm_up else 1.0, total_iters=9)
    for step in range(1, 17):
        take_step(net, optimizer, step)
        share = 0.005 + 0.995 * min(step - 1, 9) / 9 if warm_up else 1.0
        if step % 4 == 0:
            reference.update(weights_of(net), share)
        scheduler.step()
        factor.step()
        assert list(scheduler.multipliers().values()) == pytest.approx([reference.mu] * 5, rel=2e-2)
    assert reference.mu != pytest.approx(1.0, rel=0.1)


@each_rule
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=4),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 30),
        lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    ],
    ids=["LinearLR", "CosineAnnealingLR", "ExponentialLR"],
)
def test_schedulers_that_multiply_compose_in_either_order(rule, order, make):
    net = network()
    optimizer = optimizer_for(net)
    plain = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=RATE)
    alone = make(plain)
    if order == "before":
        other = make(optimizer)
        own = LayerwiseLR(optimizer, rule())
        schedulers = (other, own)
    else:
        own = LayerwiseLR(optimizer, rule())
        other = make(optimizer)
        schedulers = (own, other)
    period = period_of(rule())
    for step in range(18):
        train(net, optimizer, *schedulers, start=step, steps=step + 1, period=period)
        if (step + 1) % period == 0:
            plain.step()
            alone.step()
        expected = [alone.get_last_lr()[0] * m for m in own.multipliers().values()]
        assert list(own.rates().values()) == pytest.approx(expected, rel=1e-9)
    assert set(own.multipliers().values()) != {1.0}


SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 4) / (1 + step)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(
        o, RATE, total_steps=19, cycle_momentum=False, div_factor=5
    ),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 15)],
        [4],
    ),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 4),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
@each_rule
def test_any_schedule_may_be_passed(rule, name):
    net = network()
    optimizer = optimizer_for(net)
    plain = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=RATE)
    alone = SCHEDULES[name](plain)
    own = LayerwiseLR(optimizer, rule(), schedule=SCHEDULES[name](optimizer))
    period = period_of(rule())
    for step in range(15):
        train(net, optimizer, own, start=step, steps=step + 1, period=period)
        if (step + 1) % period == 0:
            plain.step()
            alone.step()
        expected = [alone.get_last_lr()[0] * m for m in own.multipliers().values()]
        assert list(own.rates().values()) == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert set(own.multipliers().values()) != {1.0}


def test_a_schedule_of_another_optimizer_is_refused():
    other = lr_scheduler.StepLR(optimizer_for(network()), 3)
    with pytest.raises(ArgumentError, match="schedule of the same optimizer"):
        LayerwiseLR(optimizer_for(network()), TempBalance(), schedule=other)


def test_a_schedule_by_a_metric_is_stepped_by_itself():
    net = network()
    optimizer = optimizer_for(net)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    with pytest.raises(ArgumentError, match=r"no metric.*step\(metric\) as usual"):
        LayerwiseLR(optimizer, TempBalance(), schedule=plateau)
    own = LayerwiseLR(optimizer, TempBalance())
    for _ in range(3):
        train(net, optimizer, own, steps=BATCHES, period=BATCHES)
        plateau.step(1.0)
    expected = [RATE / 4 * m for m in own.multipliers().values()]
    assert list(own.rates().values()) == pytest.approx(expected)


def test_a_schedule_that_overwrites_the_rates_is_named_once():
    net = network()
    optimizer = optimizer_for(net)
    own = LayerwiseLR(optimizer, TempBalance())
    other = lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with pytest.warns(
        UserWarning, match=r"something overwrites them.*schedule=scheduler"
    ) as caught:
        train(net, optimizer, own, other, steps=4 * BATCHES, period=BATCHES)
    assert len(caught) == 1


def test_every_epoch_by_calls_or_by_counted_steps():
    nets = [network(), network()]
    optimizers = [optimizer_for(net) for net in nets]
    by_call = LayerwiseLR(optimizers[0], TempBalance())
    by_step = LayerwiseLR(optimizers[1], TempBalance(), steps_per_epoch=BATCHES)
    once = train(nets[0], optimizers[0], by_call, steps=9, period=BATCHES)
    each = train(nets[1], optimizers[1], by_step, steps=9)
    assert once == each


def test_new_multipliers_are_reached_linearly():
    net = network()
    optimizer = optimizer_for(net)
    scheduler = LayerwiseLR(optimizer, TempBalance(), every=4, transition=2)
    table = []
    for step in range(8):
        train(net, optimizer, scheduler, start=step, steps=step + 1)
        table.append(list(scheduler.multipliers().values()))
    assert table[:4] == [[1.0] * 5] * 4
    assert table[4] == pytest.approx([(1 + m) / 2 for m in table[5]])
    assert table[5] == table[6] == table[7]
    assert {0.5, 1.5} < set(table[6])


def test_calls_without_a_step_change_nothing():
    net = network()
    optimizer = optimizer_for(net)
    scheduler = LayerwiseLR(optimizer, TempBalance(), every=2, transition=3)
    train(net, optimizer, scheduler, steps=3)
    before = scheduler.rates()
    for _ in range(5):
        scheduler.step()
    assert scheduler.rates() == before


def test_a_norm_follows_the_convolution_before_it():
    net = network()
    scheduler = LayerwiseLR(optimizer := optimizer_for(net), TempBalance())
    train(net, optimizer, scheduler, steps=BATCHES, period=BATCHES)
    assert optimizer.param_groups[0]["param_names"][2] == "1.weight"


def test_llr_leaves_norms_and_biases_that_have_groups_of_their_own():
    net = network()
    optimizer = optimizer_for(net, no_decay=lambda name, param: param.ndim < 2)
    scheduler = LayerwiseLR(optimizer, LLR(100, transition=0, fewest=10))
    train(net, optimizer, scheduler, steps=1)
    vectors = {g["name"] for g in optimizer.param_groups if g["params"][0].ndim < 2}
    multipliers = scheduler.multipliers()
    assert len(vectors) == 5
    assert {name for name, m in multipliers.items() if m == 1.0} > vectors
    assert multipliers["8"] == 3.0
    net = network()
    optimizer = optimizer_for(net, no_decay=lambda name, param: param.ndim < 2)
    other = LayerwiseLR(optimizer, TempBalance())
    train(net, optimizer, other, steps=BATCHES, period=BATCHES)
    assert other.multipliers()["3"] == other.multipliers()["3.bias"] != 1.0


def test_embeddings_are_known_by_their_module():
    torch.manual_seed(0)
    net = nn.ModuleDict(
        {"lookup": nn.Embedding(60, 55), "a": nn.Linear(55, 60), "b": nn.Linear(60, 55)}
    )
    optimizer = optimizer_for(net)
    assert [group["kind"] for group in optimizer.param_groups] == ["embedding", "linear", "linear"]
    scheduler = LayerwiseLR(optimizer, LLR(100, transition=0))
    out = net["b"](net["a"](net["lookup"](torch.arange(9))))
    out.square().mean().backward()
    optimizer.step()
    scheduler.step()
    assert [r.outcome for r in scheduler.last_readings] == ["skipped", "measured", "skipped"]


def test_only_what_a_rule_needs_is_measured(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a stable rank was measured")

    monkeypatch.setattr(parallel, "measure_weight", refuse)
    monkeypatch.setattr("rankwise.probes.measure.factorise", refuse)
    for name in ("TempBalance", "LLR", "RelativeUpdate"):
        net = network()
        scheduler = LayerwiseLR(optimizer := optimizer_for(net), RULES[name]())
        train(net, optimizer, scheduler, steps=6, period=period_of(scheduler.rule))
        assert scheduler.last_readings


def test_nothing_is_measured_after_the_last_step_of_a_rule(monkeypatch):
    net = network()
    scheduler = LayerwiseLR(optimizer := optimizer_for(net), LLR(10, every=1, fewest=10))
    train(net, optimizer, scheduler, steps=2)
    monkeypatch.setattr("rankwise.optim.quantities.hill_exponent", None)
    train(net, optimizer, scheduler, start=2, steps=9)


def test_include_and_exclude_name_what_is_measured():
    net = network()
    optimizer = optimizer_for(net)
    scheduler = LayerwiseLR(optimizer, TempBalance(dropped=()), exclude="conv2d")
    train(net, optimizer, scheduler, steps=BATCHES, period=BATCHES)
    assert list(scheduler.multipliers().values())[:2] == [1.0, 1.0]
    assert {0.5, 1.5} < set(scheduler.multipliers().values())


def test_a_layer_without_an_exponent_keeps_the_global_rate_and_a_broken_one_its_own():
    net = network()
    optimizer = optimizer_for(net)
    scheduler = LayerwiseLR(optimizer, TempBalance(dropped=()))
    train(net, optimizer, scheduler, steps=BATCHES, period=BATCHES)
    kept = scheduler.multipliers()["3"]
    take_step(net, optimizer)
    with torch.no_grad():
        net[5].weight.zero_()
        net[3].weight[0, 0] = torch.nan
    with pytest.warns(UserWarning, match=r"keep their rates: 3 \(.*NaN") as caught:
        scheduler.step()
    assert caught[0].filename == __file__
    assert scheduler.multipliers()["5"] == 1.0
    assert scheduler.multipliers()["3"] == kept != 1.0


# Controls


def with_control(control, rule=TempBalance, **options):
    net = network()
    scheduler = LayerwiseLR(optimizer := optimizer_for(net), rule(), control=control, **options)
    train(net, optimizer, scheduler, steps=BATCHES, period=period_of(scheduler.rule))
    return list(scheduler.multipliers().values())


@pytest.mark.parametrize("rule", [TempBalance, lambda: LLR(99, transition=0, fewest=10)])
def test_the_mean_is_that_of_the_layers_the_rule_sets(rule):
    plain, mean = with_control(None, rule), with_control("mean", rule)
    chosen = slice(1, -1) if rule is TempBalance else slice(None)
    expected = sum(plain[chosen]) / len(plain[chosen])
    assert mean[chosen] == pytest.approx([expected] * len(plain[chosen]))
    assert set(plain) != set(mean)


@pytest.mark.parametrize("rule", [TempBalance, lambda: LLR(99, transition=0, fewest=10)])
def test_shuffled_moves_every_multiplier_to_another_layer(rule):
    plain = with_control(None, rule)
    drawn = [with_control("shuffled", rule, seed=seed) for seed in range(6)]
    for one in drawn:
        assert sorted(one) == pytest.approx(sorted(plain))
    assert drawn[0] == with_control("shuffled", rule, seed=0)
    assert len({tuple(one) for one in drawn}) > 1
    if rule is TempBalance:
        assert all(one[0] == one[-1] == 1.0 for one in drawn)
        assert all(a != b for one in drawn for a, b in zip(one[1:-1], plain[1:-1], strict=True))


def test_a_table_acts_from_the_start_and_stays():
    net = network()
    optimizer = optimizer_for(net)
    scheduler = LayerwiseLR(optimizer, TempBalance(), control={"3": 0.25, "8": 4.0})
    expected = [RATE, 0.25 * RATE, RATE, RATE, 4.0 * RATE]
    assert [group["lr"] for group in optimizer.param_groups] == expected
    rates = train(net, optimizer, scheduler, steps=2 * BATCHES, period=BATCHES)
    assert rates == [pytest.approx(expected)] * 6
    assert scheduler.last_readings == ()


WARM_UPS = {
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.25, total_iters=4),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 3)),
    "OneCycleLR": SCHEDULES["OneCycleLR"],
}


@pytest.mark.parametrize("table", [{"3": 0.25, "8": 4.0}, dict.fromkeys("03578", 0.25), {"3": 0.0}])
@pytest.mark.parametrize("name", WARM_UPS)
def test_a_table_acts_within_a_warm_up(name, table):
    net = network()
    optimizer = optimizer_for(net)
    own = LayerwiseLR(optimizer, TempBalance(), control=table, schedule=WARM_UPS[name](optimizer))
    plain = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=RATE)
    alone = WARM_UPS[name](plain)
    for step in range(6):
        expected = [table.get(layer, 1.0) * alone.get_last_lr()[0] for layer in own.rates()]
        assert list(own.rates().values()) == pytest.approx(expected)
        train(net, optimizer, own, start=step, steps=step + 1)
        plain.step()
        alone.step()


def test_a_table_is_not_applied_twice_where_the_optimizer_was_loaded_before():
    net = network()
    optimizer = optimizer_for(net)
    table = {"3": 0.25, "8": 4.0}
    own = LayerwiseLR(optimizer, TempBalance(), control=table)
    decay = lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(net, optimizer, own, decay, steps=2)
    again = optimizer_for(net)
    again.load_state_dict(optimizer.state_dict())
    assert LayerwiseLR(again, TempBalance(), control=table).rates() == own.rates()


def test_a_table_that_a_schedule_overwrites_is_named():
    net = network()
    optimizer = optimizer_for(net)
    own = LayerwiseLR(optimizer, TempBalance(), control={"3": 0.25})
    other = lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with pytest.warns(UserWarning, match="something overwrites them") as caught:
        train(net, optimizer, own, other, steps=4 * BATCHES, period=BATCHES)
    assert len(caught) == 1


def test_a_table_within_sequential_lr():
    net = network()
    optimizer = optimizer_for(net)
    own = LayerwiseLR(optimizer, TempBalance(), control={"3": 0.25})
    later = lr_scheduler.ExponentialLR(optimizer, 0.5)
    lr_scheduler.SequentialLR(optimizer, [own, later], [2])
    assert [group["lr"] for group in optimizer.param_groups][:2] == [RATE, 0.25 * RATE]


def test_an_unknown_layer_in_a_table_is_named():
    with pytest.raises(ArgumentError, match=r"got '33'\. Did you mean 3"):
        LayerwiseLR(optimizer_for(network()), TempBalance(), control={"33": 2.0})


def test_one_multiplier_for_all_layers_has_no_control():
    with pytest.raises(ArgumentError, match="no control for RelativeUpdate"):
        LayerwiseLR(optimizer_for(network()), RelativeUpdate(), control="mean")


# State


@each_rule
@pytest.mark.parametrize("control", [None, "shuffled", {"3": 0.5}], ids=str)
@pytest.mark.parametrize("stop", [3, 5, 7])
def test_resuming_goes_on_bit_for_bit(rule, control, stop, tmp_path):
    if control is not None and rule().is_global:
        pytest.skip("RelativeUpdate has no controls")

    def build(seed=0):
        net = network(seed)
        optimizer = optimizer_for(net)
        schedule = lr_scheduler.CosineAnnealingLR(optimizer, 20)
        options = {"control": control, "schedule": schedule, "seed": 3}
        return net, optimizer, LayerwiseLR(optimizer, rule(), **options)

    period = period_of(rule())
    net, _, scheduler = parts = build()
    train(*parts, steps=stop, period=period)
    saved = [part.state_dict() for part in parts]
    torch.save(saved, tmp_path / "saved.pt")
    kept = copy.deepcopy(saved[2])
    train(*parts, start=stop, steps=15, period=period)
    assert str(saved[2]) == str(kept), "a saved state is a copy"

    again = build(seed=9)
    for part, state in zip(
        again, torch.load(tmp_path / "saved.pt", weights_only=True), strict=True
    ):
        part.load_state_dict(state)
    train(*again, start=stop, steps=15, period=period)
    assert again[2].rates() == scheduler.rates()
    for one, other in zip(net.parameters(), again[0].parameters(), strict=True):
        assert torch.equal(one, other)


@each_rule
def test_a_state_is_plain_and_does_not_grow(rule):
    net = network()
    scheduler = LayerwiseLR(optimizer := optimizer_for(net), rule())
    train(net, optimizer, scheduler, steps=12, period=period_of(rule()))
    plain = {k: v for k, v in scheduler.state_dict().items() if k != "_before"}
    size = len(json.dumps(plain))
    train(net, optimizer, scheduler, start=12, steps=40, period=period_of(rule()))
    plain = {k: v for k, v in scheduler.state_dict().items() if k != "_before"}
    assert len(json.dumps(plain)) < size + 300
    before = scheduler.state_dict()["_before"]
    weights = sum(p.numel() for p in net.parameters() if p.ndim >= 2)
    kept = sum(tensor.numel() for tensors in before.values() for tensor in tensors)
    assert kept == (weights if rule().measures == "relative_update" else 0)


def test_a_state_of_another_rule_or_network_is_refused():
    state = LayerwiseLR(optimizer_for(network()), TempBalance()).state_dict()
    with pytest.raises(ArgumentError, match="state of the rule LLR, got one of TempBalance"):
        LayerwiseLR(optimizer_for(network()), LLR(10)).load_state_dict(state)
    small = LayerwiseLR(optimizer_for(nn.Linear(4, 4)), TempBalance())
    with pytest.raises(ArgumentError, match="1 parameter groups, got one for 5"):
        small.load_state_dict(state)


def test_saved_options_replace_those_given_as_in_torch_s_schedulers():
    state = LayerwiseLR(optimizer_for(network()), TempBalance(0.25), every=7).state_dict()
    other = LayerwiseLR(optimizer_for(network()), TempBalance())
    other.load_state_dict(state)
    assert (other.rule.lowest, other.every) == (0.25, 7)


@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")  # of the copy
@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])  # noqa: S301
@each_rule
def test_a_copy_goes_on_alike(rule, make_copy):
    net = network()
    scheduler = LayerwiseLR(optimizer := optimizer_for(net), rule())
    period = period_of(rule())
    train(net, optimizer, scheduler, steps=4, period=period)
    other, copied = make_copy((net, scheduler))
    assert copied.optimizer is not optimizer
    expected = train(net, optimizer, scheduler, start=4, steps=9, period=period)
    assert train(other, copied.optimizer, copied, start=4, steps=9, period=period) == expected


def test_a_state_of_stable_rank_lr_from_before_other_rules_is_loaded():
    """As StableRankLR.state_dict() returned it before LayerwiseLR, in the middle of an epoch."""

    def build():
        net = network()
        optimizer = optimizer_for(net)
        return net, optimizer, rankwise.StableRankLR(optimizer, beta=0.9, epochs=7)

    net, optimizer, scheduler = build()
    train(net, optimizer, scheduler, steps=2 * BATCHES, period=BATCHES)
    take_step(net, optimizer, 6)
    ranks = {r.name: r.value for r in scheduler.last_readings}
    multipliers = scheduler.multipliers()
    old = {
        "beta": 0.9,
        "zeta": 1.0,
        "floor": 0.01,
        "reference": 0.03,
        "epochs": 7,
        "variant": "paper",
        "p": 2.0,
        "steps_per_epoch": None,
        "include": None,
        "exclude": None,
        "share": True,
        "_steps": 1,
        "base_lrs": [RATE] * 5,
        "last_epoch": 2,
        "_is_initial": False,
        "_step_count": 3,
        "_get_lr_called_within_step": False,
        "_last_lr": list(scheduler.rates().values()),
        "_layers": [
            {
                "initial": RATE,
                "rate": RATE * multipliers[name],
                "stable_rank": ranks[name],
                "epoch": 2,
                "started": True,
                "stepped": True,
            }
            for name in multipliers
        ],
    }
    again, other, resumed = build()
    again.load_state_dict(net.state_dict())
    other.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(old)
    expected = train(net, optimizer, scheduler, start=7, steps=12, period=BATCHES)
    found = train(again, other, resumed, start=7, steps=12, period=BATCHES)
    for one, two in zip(found, expected, strict=True):
        assert one == pytest.approx(two, rel=1e-12)


# Surroundings


def test_steps_that_a_scaler_skips_do_not_count():
    for fused in (False, True):
        net = network()
        optimizer = torch.optim.AdamW(rankwise.layer_groups(net), lr=RATE, fused=fused)
        scheduler = LayerwiseLR(optimizer, TempBalance(), every=2)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(6):
            optimizer.zero_grad()
            images, labels = batch(step)
            loss = nn.functional.cross_entropy(net(images), labels)
            scaler.scale(loss * math.inf if step % 2 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        assert scheduler.state_dict()["_total"] == 3, fused


def test_tensor_rates_are_filled_in_place_and_a_compiled_step_sees_them():
    net = network()
    optimizer = torch.optim.SGD(rankwise.layer_groups(net), lr=torch.tensor(RATE))
    for group in optimizer.param_groups:
        group["lr"] = group["lr"].clone()
    held = [group["lr"] for group in optimizer.param_groups]
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    scheduler = LayerwiseLR(optimizer, TempBalance(), schedule=schedule)
    train(net, optimizer, scheduler, steps=2 * BATCHES, period=BATCHES)
    assert all(g["lr"] is t for g, t in zip(optimizer.param_groups, held, strict=True))
    expected = [RATE / 3 * m for m in scheduler.multipliers().values()]
    assert [float(rate) for rate in held] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_one_tensor_given_as_the_rate_is_a_rate_for_each_layer(kind):
    rates = []
    for rate in (RATE, torch.tensor(RATE, dtype=torch.float64)):
        net, head = network(), nn.Linear(5, 7)
        optimizer = kind(rankwise.layer_groups(net), lr=rate)
        schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        scheduler = LayerwiseLR(optimizer, TempBalance(), schedule=schedule)
        train(net, optimizer, scheduler, steps=2 * BATCHES, period=BATCHES)
        optimizer.add_param_group({"params": head.named_parameters()})
        rates.append([*map(float, (group["lr"] for group in optimizer.param_groups))])
    assert len(set(rates[0][:-1])) > 2
    assert rates[0] == pytest.approx(rates[1], rel=1e-9)


def test_the_tensor_of_one_group_is_kept_and_a_later_group_begins_with_its_first_value():
    rate, net, head = torch.tensor(RATE), network(), nn.Linear(5, 7)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    scheduler = LayerwiseLR(optimizer, RelativeUpdate(every=2))
    train(net, optimizer, scheduler, steps=4)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) != pytest.approx(RATE, rel=0.01)
    optimizer.add_param_group({"params": head.parameters()})
    assert float(optimizer.param_groups[1]["lr"]) == pytest.approx(RATE)


def test_groups_that_come_later_are_taken_in():
    for rule in (TempBalance(dropped=()), RelativeUpdate(every=3), StableRank(beta=0.5)):
        net, head = network(), nn.Linear(5, 7)
        scheduler = LayerwiseLR(optimizer := optimizer_for(net), rule)
        train(net, optimizer, scheduler, steps=BATCHES, period=BATCHES)
        optimizer.add_param_group({"params": head.named_parameters(), "lr": 0.02, "name": "head"})
        train(nn.Sequential(net, head), optimizer, scheduler, steps=2 * BATCHES, period=BATCHES)
        assert scheduler.rates()["head"] == pytest.approx(
            0.02 * scheduler.multipliers()["head"], rel=1e-9
        )
        assert scheduler.multipliers()["head"] != 1.0


def test_a_frozen_layer_is_not_measured_and_keeps_its_multiplier():
    net = network()
    net[3].requires_grad_(requires_grad=False)
    scheduler = LayerwiseLR(optimizer := optimizer_for(net), TempBalance(dropped=()))
    train(net, optimizer, scheduler, steps=BATCHES, period=BATCHES)
    assert scheduler.multipliers()["3"] == 1.0
    assert {r.name: r.outcome for r in scheduler.last_readings}["3"] == "idle"


class Halved(NamedTuple):
    names: list[str]


class Halve(rankwise.RateRule[Halved]):
    """Halves the rate of each layer once its relative update has been seen."""

    measures = "relative_update"
    every = 2

    def start(self):
        return Halved([])

    def update(self, state, readings):
        names = [r.name for r in readings if r.outcome == "measured"]
        return Halved(names), dict.fromkeys(names, 0.5)


def test_a_rule_of_one_s_own():
    net = network()
    scheduler = LayerwiseLR(optimizer := optimizer_for(net), Halve())
    train(net, optimizer, scheduler, steps=2)
    assert set(scheduler.multipliers().values()) == {0.5}
    again = LayerwiseLR(optimizer_for(network()), Halve())
    again.load_state_dict(scheduler.state_dict())
    assert again.state_dict()["_rule_state"] == {"names": ["0", "3", "5", "7", "8"]}


class Wrong(Halve):
    def update(self, state, readings):
        return state, {"3": -1.0}


def test_a_rule_s_wrong_multiplier_is_an_error():
    net = network()
    scheduler = LayerwiseLR(optimizer := optimizer_for(net), Wrong())
    with pytest.raises(ArgumentError, match=r"multiplier ≥ 0 for 3, got -1\.0"):
        train(net, optimizer, scheduler, steps=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every='epoch' or 1 or more, got 0"),
        ({"every": "step"}, "every='epoch' or 1 or more, got 'step'"),
        ({"transition": -1}, "transition of 0 or more"),
        ({"steps_per_epoch": 0}, "steps_per_epoch of 1 or more"),
        ({"every": 5, "steps_per_epoch": 10}, "no steps_per_epoch for a rule that updates every 5"),
        ({"control": "median"}, "'mean', 'shuffled' or a table"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        LayerwiseLR(optimizer_for(network()), TempBalance(), **options)


def test_a_layer_with_a_multiplier_of_zero_stays_where_it_is_under_any_schedule():
    net = network()
    optimizer = optimizer_for(net, kind=torch.optim.SGD)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    scheduler = LayerwiseLR(optimizer, TempBalance(), control={"3": 0.0}, schedule=schedule)
    frozen, moving = net[3].weight.clone(), net[5].weight.clone()
    train(net, optimizer, scheduler, steps=6, period=BATCHES)
    assert torch.equal(net[3].weight, frozen)
    assert not torch.equal(net[5].weight, moving)
    assert scheduler.rates()["3"] == 0.0


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")
def test_a_rule_by_updates_begins_anew_at_its_turn_in_sequential_lr():
    net = network()
    optimizer = optimizer_for(net)
    warm_up = lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=9)
    own = LayerwiseLR(optimizer, RelativeUpdate(every=2))
    scheduler = lr_scheduler.SequentialLR(optimizer, [warm_up, own], [6])
    train(net, optimizer, scheduler, steps=6)
    reference = RelativeUpdateReference(weights_of(net))
    train(net, optimizer, scheduler, start=6, steps=8)
    reference.update(weights_of(net), 1.0)
    assert list(own.multipliers().values()) == pytest.approx([reference.mu] * 5, rel=2e-2)
