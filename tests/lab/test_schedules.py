import itertools
import math
import re

import pytest
import torch
from torch import nn

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.optimizers import build_optimizer
from rankwise.lab.schedules import (
    SCHEDULES,
    Budget,
    TimeBudget,
    apply_factor,
    compute_factor,
    parse_budget,
)


@pytest.mark.parametrize(
    ("schedule", "epoch", "progress", "expected"),
    [
        ("none", 100, 0.9, 1.0),
        ("step", 0, 0.0, 1.0),
        ("step", 24, 0.0, 1.0),
        ("step", 25, 0.0, 0.5),
        ("step", 249, 0.996, 0.5**9),
        ("cosine", 0, 0.0, 1.0),
        ("cosine", 0, 0.25, 0.5 + math.sqrt(0.125)),
        ("cosine", 0, 0.5, 0.5),
        ("cosine", 0, 1.0, 1e-8),
        ("cosine", 0, 1.5, 1e-8),
        ("one-cycle", 0, 0.0, 0.04),
        ("one-cycle", 0, 0.15, 0.52),
        ("one-cycle", 0, 0.3, 1.0),
        ("one-cycle", 0, 0.65, (1 + 4e-6) / 2),
        ("one-cycle", 0, 1.0, 4e-6),
    ],
)
def test_factors_at_known_points(schedule, epoch, progress, expected):
    found = compute_factor(schedule, epoch=epoch, progress=progress)
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_language_models_step():
    found = [
        compute_factor("step", epoch=e, progress=0, step_size=75, gamma=0.1) for e in (74, 75, 150)
    ]
    assert found == pytest.approx([1, 0.1, 0.01])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_factor_is_never_0_nor_above_1(schedule):
    for share in range(101):
        found = compute_factor(schedule, epoch=100 * share, progress=share / 100)
        assert 1e-8 <= found <= 1


def test_torchs_one_cycle_is_the_same():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=101, cycle_momentum=False
    )
    # torch counts its warm-up to a step's end: 0.3 · 101 − 1 of 100 steps
    for step in range(31, 101, 10):
        while scheduler.last_epoch < step:
            optimizer.step()
            scheduler.step()
        after = (step - (0.3 * 101 - 1)) / (100 - (0.3 * 101 - 1))
        found = compute_factor("one-cycle", epoch=0, progress=0.3 + 0.7 * after)
        assert found == pytest.approx(scheduler.get_last_lr()[0], rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "options", "message"),
    [
        ("cosin", {}, "no schedule 'cosin'.*none, step, cosine, one-cycle"),
        ("step", {"step_size": 0}, "step_size of 1 or more"),
        ("step", {"gamma": 0.0}, "gamma above 0"),
    ],
    ids=["name", "step-size", "gamma"],
)
def test_what_is_no_schedule_is_refused_in_a_sentence(schedule, options, message):
    with pytest.raises(ConfigError, match=message):
        compute_factor(schedule, epoch=0, progress=0.0, **options)


def trained_by(name, rule=None):
    torch.manual_seed(1)
    sizes = (20, 30, 25, 25, 3)  # TempBalance sets the inner layers
    layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
    net = nn.Sequential(layers[0], nn.Tanh(), *layers[1:])
    inputs, targets = torch.randn(64, 20), torch.arange(64) % 3
    beta = 0.9 if rule in (None, "stable-rank") else None
    steps = {"epochs": 6, "batches_per_epoch": 4}
    method = build_optimizer(name, net, lr=0.5, weight_decay=5e-4, beta=beta, rule=rule, **steps)

    def closure():
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        return loss

    return method, closure


@pytest.mark.parametrize(
    ("name", "rule"),
    [("rmsgd", None), *(("sgd", rule) for rule in ("stable-rank", "temp-balance"))],
)
@pytest.mark.parametrize("schedule", ["step", "cosine", "one-cycle"])
def test_rates_are_the_rules_times_the_factor(name, rule, schedule):
    """A warning, as of rates that something undoes, would fail this test too."""
    method, closure = trained_by(name, rule)
    previous, seen = 1.0, set()
    for epoch in range(6):
        for batch in range(4):
            progress = (epoch + batch / 4) / 6
            now = compute_factor(schedule, epoch=epoch, progress=progress, step_size=2)
            apply_factor(method.optimizer, now, previous)
            previous = now
            method.optimizer.step(closure)
        method.end_epoch()
        for rate, own in zip(rates_of(method), own_rates_of(method), strict=True):
            assert rate == pytest.approx(own * now, rel=1e-9)
            seen.add(own)
    assert len(seen) > (1 if rule == "temp-balance" else 6)  # layers differed


def rates_of(method):
    return [float(group["lr"]) for group in method.optimizer.param_groups]


def own_rates_of(method):
    if isinstance(method.optimizer, rankwise.RMSGD):
        return [float(group["rate"]) for group in method.optimizer.param_groups]
    multipliers = method.rates.multipliers().values()
    return [base * m for base, m in zip(method.rates.base_lrs, multipliers, strict=True)]


def test_a_rate_that_is_a_tensor_is_changed_in_place():
    lr = torch.tensor(0.2, dtype=torch.float64)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr, foreach=False)
    held = optimizer.param_groups[0]["lr"]
    apply_factor(optimizer, 0.5, 1.0)
    apply_factor(optimizer, 0.25, 0.5)
    assert optimizer.param_groups[0]["lr"] is held
    assert float(held) == pytest.approx(0.05)


def test_the_same_factor_leaves_every_bit_of_a_rate():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    apply_factor(optimizer, 0.3, 0.3)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1.5h", 5400),
        (" 10 minutes ", 600),
        ("1 hour 2 mins 3 sec", 3723),
        ("1 day", 86400),
    ],
)
def test_a_time_is_so_many_seconds(text, seconds):
    assert parse_budget(text) == TimeBudget(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("wall clock of 250 SGD epochs", 250),
        ("Wall-Clock of 1 sgd epoch", 1),
        ("wallclock of 3 SGD epochs", 3),
        ("25 SGD epochs", 25),
    ],
)
def test_a_time_may_be_that_of_epochs_of_sgd(text, epochs):
    assert parse_budget(text) == TimeBudget(sgd_epochs=epochs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "0s",
        "0 SGD epochs",
        "-5m",
        "10",
        "10 parsecs",
        "10 ms",
        "10 months",
        "10 sgd",
        "5 SGD steps",
        "1e3s",
        "10m and a bit",
        "m",
        "inf s",
        "250 epochs",
        "wall clock of SGD epochs",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(f"got {text!r}.")):
        parse_budget(text)


def test_progress_by_epochs_counts_their_parts():
    budget = Budget(epochs=4, seconds=None)
    assert [
        budget.compute_progress(*place, spent=1e9) for place in ((0, 0.0), (1, 0.5), (4, 0.0))
    ] == [
        0.0,
        0.375,
        1.0,
    ]


def test_progress_by_time_counts_seconds_alone():
    budget = Budget(epochs=None, seconds=8.0)
    assert [budget.compute_progress(7, 0.3, spent) for spent in (0.0, 2.0, 8.0, 10.0)] == [
        0,
        0.25,
        1,
        1.25,
    ]
