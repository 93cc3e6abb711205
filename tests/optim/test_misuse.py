"""Uses that quietly go wrong warn once, and those that are right don't."""

import gc
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import rankwise
from rankwise import RMSGD, LayerwiseLR, RelativeUpdate, StableRankLR, TempBalance
from rankwise.errors import ArgumentError
from rankwise.optim import misuse


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))


def take_step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(4, 12)).square().mean().backward()
    optimizer.step()


def layered(net, kind=torch.optim.AdamW, **options):
    return kind(rankwise.layer_groups(net), lr=0.01, **options)


@pytest.fixture
def messages():
    """The messages of all warnings, caught in the whole test."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [str(one.message) for one in caught]


# Groups


@pytest.mark.parametrize("make", [StableRankLR, lambda o: LayerwiseLR(o, TempBalance())])
def test_one_group_of_several_layers_is_named_when_the_scheduler_is_made(make):
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    with pytest.warns(
        UserWarning, match=r"in one: group0\..*rankwise\.layer_groups\(model\)"
    ) as one:
        make(optimizer)
    assert len(one) == 1
    assert one[0].filename == __file__


def test_groups_of_layers_are_right_and_so_is_one_group_for_a_global_rule(messages):
    net = network()
    LayerwiseLR(layered(net), TempBalance())
    LayerwiseLR(torch.optim.SGD(rankwise.layer_groups(net, by=r"^\d"), lr=0.1), TempBalance())
    LayerwiseLR(torch.optim.SGD(net.parameters(), lr=0.1), RelativeUpdate())
    LayerwiseLR(torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1), TempBalance())
    assert messages() == []


# Two rules


def test_a_scheduler_on_top_of_rmsgd_s_own_rule(messages):
    net = network()
    optimizer = RMSGD(net.named_parameters(), beta=0.9)
    scheduler = StableRankLR(optimizer, beta=0.9)
    for _ in range(4):
        take_step(net, optimizer)
        optimizer.epoch_step()
        scheduler.step()
    assert len(messages()) == 1
    assert "multiplies the two rules" in messages()[0]


def test_a_scheduler_over_rmsgd_whose_own_rule_is_not_used(messages):
    net = network()
    optimizer = RMSGD(net.named_parameters(), beta=0.9)
    scheduler = StableRankLR(optimizer, beta=0.9)
    for _ in range(4):
        take_step(net, optimizer)
        scheduler.step()
    assert messages() == []


# The end of an epoch, and β


def test_rmsgd_without_epoch_step(monkeypatch, messages):
    monkeypatch.setattr("rankwise.optim.misuse.LONGEST_EPOCH", 10)
    net = network()
    optimizer = RMSGD(net.named_parameters(), beta=0.9)
    for _ in range(25):
        take_step(net, optimizer)
    assert len(messages()) == 1
    assert "without epoch_step()" in messages()[0]
    assert "EpochStep()" in messages()[0]


@pytest.mark.parametrize("steps", [199, 200])
@pytest.mark.parametrize("ends", [False, True])
def test_a_training_without_epoch_step_is_named_when_it_is_over(messages, steps, ends):
    net = network()
    optimizer = RMSGD(net.named_parameters(), beta=0.9)
    for _ in range(steps):
        take_step(net, optimizer)
    if ends:
        optimizer.epoch_step()
    assert messages() == []
    del optimizer
    gc.collect()
    expected = 1 if steps == 200 and not ends else 0
    assert len(messages()) == expected
    assert all("200 steps without epoch_step()" in message for message in messages())


def test_a_training_without_epoch_step_is_named_when_the_process_ends():
    code = (
        "import torch, rankwise\n"
        "net = torch.nn.Linear(4, 3)\n"
        "optimizer = rankwise.RMSGD(net.named_parameters(), epochs=3)\n"
        "for _ in range(300):\n"
        "    net(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "300 steps without epoch_step()" in done.stderr


def test_rmsgd_whose_epochs_end_or_did_before_it_was_resumed(monkeypatch, messages):
    monkeypatch.setattr("rankwise.optim.misuse.LONGEST_EPOCH", 10)
    net = network()
    optimizer = RMSGD(net.named_parameters(), beta=0.9)
    for step in range(25):
        take_step(net, optimizer)
        if step % 9 == 8:
            optimizer.epoch_step()
    again = RMSGD(net.named_parameters(), beta=0.9)
    again.load_state_dict(optimizer.state_dict())
    for _ in range(25):
        take_step(net, again)
    assert messages() == []


def test_the_default_beta_is_named_at_the_first_end_of_an_epoch(messages):
    net = network()
    optimizer = RMSGD(net.named_parameters())
    for _ in range(3):
        take_step(net, optimizer)
        assert len(messages()) in (0, 1)
        optimizer.epoch_step()
    assert len(messages()) == 1
    assert "neither epochs nor beta, so β = 0.98" in messages()[0]
    assert "epochs=30" in messages()[0]


@pytest.mark.parametrize(
    "options", [{"epochs": 30}, {"beta": 0.98}, {"variant": "annealed", "epochs": 5}], ids=str
)
def test_a_chosen_beta_is_right(options, messages):
    net = network()
    optimizer = RMSGD(net.named_parameters(), **options)
    take_step(net, optimizer)
    optimizer.epoch_step()
    assert messages() == []


def test_a_resumed_run_is_not_told_again(messages):
    net = network()
    optimizer = RMSGD(net.named_parameters())
    take_step(net, optimizer)
    optimizer.epoch_step()
    again = RMSGD(net.named_parameters())
    again.load_state_dict(optimizer.state_dict())
    take_step(net, again)
    again.epoch_step()
    assert len(messages()) == 1


# Calls of the scheduler


def test_step_called_after_every_batch(messages):
    net = network()
    scheduler = StableRankLR(optimizer := layered(net), beta=0.99)
    for _ in range(3 * misuse.CALLS_IN_A_ROW):
        take_step(net, optimizer)
        scheduler.step()
    assert len(messages()) == 1
    assert "steps_per_epoch=len(loader)" in messages()[0]


def test_step_called_as_it_should_be(messages):
    nets = [network() for _ in range(3)]
    optimizers = [layered(net) for net in nets]
    per_epoch = StableRankLR(optimizers[0])
    counted = StableRankLR(optimizers[1], steps_per_epoch=1)
    by_steps = LayerwiseLR(optimizers[2], TempBalance(), every=1)
    for step in range(2 * misuse.CALLS_IN_A_ROW):
        for net, optimizer in zip(nets, optimizers, strict=True):
            take_step(net, optimizer)
        if step % 2:
            per_epoch.step()
        counted.step()
        by_steps.step()
    assert messages() == []


class SAM(torch.optim.Optimizer):
    """The common implementation: a wrapper whose two halves of a step the user calls."""

    def __init__(self, groups, base, **options):
        super().__init__(groups, options)
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    def second_step(self):
        self.base_optimizer.step()

    def step(self, closure=None):
        raise NotImplementedError


@pytest.mark.parametrize(("per_epoch", "calls"), [(None, 1), (3, misuse.CALLS_WITHOUT_STEP)])
def test_steps_that_are_not_seen(per_epoch, calls, messages):
    net = network()
    sam = SAM(rankwise.layer_groups(net), torch.optim.SGD, lr=0.1)
    scheduler = StableRankLR(sam, steps_per_epoch=per_epoch)
    for _ in range(calls + 5):
        net(torch.ones(4, 12)).square().mean().backward()
        sam.second_step()
        scheduler.step()
    own = [m for m in messages() if "never seen to take a step" in m]
    assert len(own) == 1
    assert "sam.base_optimizer" in own[0]
    assert set(scheduler.rates().values()) == {0.1}


def test_the_wrapped_optimizer_is_seen(messages):
    net = network()
    sam = SAM(rankwise.layer_groups(net), torch.optim.SGD, lr=0.1)
    scheduler = StableRankLR(sam.base_optimizer, beta=0.5)
    for _ in range(3):
        net(torch.ones(4, 12)).square().mean().backward()
        sam.second_step()
    scheduler.step()
    assert messages() == []
    assert set(scheduler.rates().values()) == {0.05}
    assert {group["lr"] for group in sam.param_groups} == {0.05}


def test_a_scaler_that_skips_the_first_steps_is_no_misuse(messages):
    net = network()
    scheduler = LayerwiseLR(layered(net), TempBalance(), every=3)
    for _ in range(misuse.CALLS_WITHOUT_STEP - 1):
        scheduler.step()
    assert not [m for m in messages() if "never seen" in m]


def test_a_resumed_run_has_seen_steps(messages):
    net = network()
    scheduler = StableRankLR(optimizer := layered(net))
    take_step(net, optimizer)
    scheduler.step()
    again = StableRankLR(layered(net))
    again.load_state_dict(scheduler.state_dict())
    again.step()
    assert messages() == []


def test_rates_are_overwritten_where_they_are_alike_and_should_not_be():
    assert misuse.is_overwritten([0.5, 0.5], [1.0, 2.0])
    assert not misuse.is_overwritten([0.5, 1.0], [1.0, 2.0])
    assert not misuse.is_overwritten([0.5, 0.5], [2.0, 2.0])
    assert not misuse.is_overwritten([0.0, 0.0], [1.0, 2.0]), "a schedule that came to its end"
    assert not misuse.is_overwritten([], [])


# A state of torch.optim.SGD


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"dampening": 0.5}], ids=str)
def test_rmsgd_goes_on_from_a_state_of_sgd_as_sgd_would(options):
    options = {"momentum": 0.9, "weight_decay": 0.01, **options}
    nets = [network(), network()]
    sgd = layered(nets[0], torch.optim.SGD, **options)
    for _ in range(5):
        take_step(nets[0], sgd)
    for group in sgd.param_groups:
        group["lr"] = 0.004  # as a schedule would
    rmsgd = layered(nets[1], RMSGD, beta=0.9)
    nets[1].load_state_dict(nets[0].state_dict())
    saved = sgd.state_dict()
    kept = [entry["momentum_buffer"].clone() for entry in saved["state"].values()]
    rmsgd.load_state_dict(saved)
    for before, entry in zip(kept, saved["state"].values(), strict=True):
        assert torch.equal(before, entry["momentum_buffer"]), "the state given is not changed"
    for _ in range(5):
        take_step(nets[0], sgd)
        take_step(nets[1], rmsgd)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    rmsgd.epoch_step()
    assert rmsgd.rates() == pytest.approx({"0": 0.0036, "2": 0.0036})


def test_a_state_of_sgd_with_other_groups_is_refused_in_a_sentence():
    net = network()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    take_step(net, sgd)
    with pytest.raises(ArgumentError, match=r"2 parameter groups.*torch\.optim\.SGD with 1"):
        RMSGD(net.named_parameters()).load_state_dict(sgd.state_dict())


def test_a_state_of_sgd_without_momentum_has_nothing_to_convert():
    net = network()
    sgd = layered(net, torch.optim.SGD)
    take_step(net, sgd)
    rmsgd = layered(net, RMSGD, momentum=0.5)
    rmsgd.load_state_dict(sgd.state_dict())
    take_step(net, rmsgd)
