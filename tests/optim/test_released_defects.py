"""What is wrong with rmsgd 1.0.2, shown by running it, and that rankwise has none of it.

docs/released-defects.md names these tests.
"""

import io
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import rmsgd
import torch
from rmsgd import matrix_factorization
from scipy.optimize import minimize_scalar
from torch import nn

import rankwise
from rankwise.numerics.evbmf import factorise
from tests import ROOT

PAGE = ROOT / "docs" / "released-defects.md"
LR = 0.03


def structured(*shape, strength=2.0):
    """Noise of variance 1 with three directions of all its unfoldings that stand out."""
    weight = torch.randn(shape)
    side = min(3, shape[0], shape[1])
    block = strength * np.sqrt(weight.numel() / min(shape[:2])) * torch.eye(side)
    weight[:side, :side] += block.reshape(side, side, *[1] * (len(shape) - 2))
    return nn.Parameter(weight)


def still(optimizer):
    """A step that changes nothing."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()


def epochs(optimizer, number=1):
    for _ in range(number):
        still(optimizer)
        optimizer.epoch_step()


def released_rank(weight):
    optimizer = rmsgd.RMSGD([nn.Parameter(weight.detach().clone())], lr=LR, linear=True)
    optimizer.epoch_step()
    return float(optimizer.KG[0])


def our_rank(weight):
    optimizer = rankwise.RMSGD([nn.Parameter(weight.detach().clone())], lr=LR)
    still(optimizer)
    return float(optimizer.param_groups[0]["stable_rank"])


def test_scale_dependence():
    noise = torch.randn(64, 32, 3, 3)
    assert released_rank(noise) == 0
    assert released_rank(0.003 * noise) > 0.09
    weight = structured(64, 32, 3, 3)
    for scale in (1e-6, 0.003, 1.0, 1e6):
        assert our_rank(scale * noise) == 0
        assert our_rank(scale * weight) == pytest.approx(our_rank(weight), rel=1e-6)


def test_missed_minimum(monkeypatch):
    """At unit scale too its search may end in the wrong valley, where structure is weak."""
    searched = []

    def recorded(function, **options):
        searched.append((function, options["args"], minimize_scalar(function, **options)))
        return searched[-1][-1]

    monkeypatch.setattr(matrix_factorization, "minimize_scalar", recorded)
    missed = 0
    for seed in range(12):
        torch.manual_seed(seed)
        weight = structured(20, 40, strength=1.4).detach().double()
        _, values, _ = matrix_factorization.EVBMF(weight)
        function, arguments, theirs = searched[-1]
        ours = factorise(weight)[1]
        if len(values) != ours.rank:
            assert function(ours.noise_variance, *arguments) < theirs.fun
            missed += 1
    assert missed > 0


def pulled(optimizer, param, target, number):
    for _ in range(number):
        for _ in range(5):
            param.grad = 5 * (param.detach() - target)
            optimizer.step()
        optimizer.epoch_step()


def test_dead_layers():
    weight, other = structured(16, 16, 3, 3), structured(16, 16, 3, 3).detach()
    noise = torch.randn(16, 16, 3, 3)
    theirs, ours = weight, nn.Parameter(weight.detach().clone())
    released = rmsgd.RMSGD([theirs], lr=LR)
    optimizer = rankwise.RMSGD([ours], lr=LR, momentum=0.0, beta=0.8)
    for param, tried in ((theirs, released), (ours, optimizer)):
        epochs(tried, 2)
        pulled(tried, param, noise, 12)  # the layer loses what it knew
    assert released.lr_vector[0] == 0
    assert optimizer.rates()["layer0"] == pytest.approx(LR / 100)
    before = theirs.detach().clone()
    pulled(released, theirs, other, 40)
    pulled(optimizer, ours, other, 40)
    assert torch.equal(theirs, before)
    assert (ours.detach() - other).norm() < 0.3 * (noise - other).norm()


def test_lost_state_on_resume():
    saved, states = io.BytesIO(), []
    for resumed in (False, True):
        torch.manual_seed(0)
        weight = structured(16, 16, 3, 3)
        released = rmsgd.RMSGD([weight], lr=LR)
        ours = rankwise.RMSGD([weight], lr=LR)
        if resumed:
            released.load_state_dict(states[0])
            ours.load_state_dict(torch.load(saved, weights_only=True))
        else:
            epochs(released, 5)
            epochs(ours, 5)
            states = [released.state_dict()]
            torch.save(ours.state_dict(), saved)
            saved.seek(0)
            known = released.lr_vector[0], ours.rates()
    assert released.lr_vector[0] == LR != known[0]
    assert released.epoch == 0
    assert ours.rates() == known[1] != {"layer0": LR}
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(stored(states[0]))


def stored(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_several_groups():
    first, second = structured(16, 16, 3, 3), structured(24, 16, 3, 3)
    groups = [{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.2}]
    with pytest.raises(AttributeError, match="requires_grad"):
        rmsgd.RMSGD(groups, lr=LR)
    released = rmsgd.RMSGD([first], lr=LR)
    released.add_param_group({"params": [second], "lr": 0.2})
    assert moved(released, second) == pytest.approx(LR, rel=1e-5)  # the other group's rate
    ours = rankwise.RMSGD(groups, lr=LR)
    assert moved(ours, second) == pytest.approx(0.2, rel=1e-5)


def moved(optimizer, param):
    """How far one step moves a parameter whose gradient is 1."""
    before = param.detach().clone()
    param.grad = torch.ones_like(param)
    optimizer.step()
    return (before - param.detach()).mean().item()


def test_named_parameters():
    net = nn.Conv2d(3, 8, 3)
    with pytest.raises(AttributeError, match="requires_grad"):
        rmsgd.RMSGD(net.named_parameters(), lr=LR)
    assert rankwise.RMSGD(nn.Sequential(net).named_parameters(), lr=LR).rates() == {"0": LR}


def test_ignored_schedulers():
    for cls, expected in ((rmsgd.RMSGD, LR), (rankwise.RMSGD, LR / 2)):
        weight = nn.Parameter(torch.randn(8, 8, 3, 3))
        optimizer = cls([weight], lr=LR)
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(LR / 2)
        assert moved(optimizer, weight) == pytest.approx(expected, rel=1e-5)


def test_integer_rate():
    released = rmsgd.RMSGD([structured(16, 16, 3, 3)], lr=1)
    ours = rankwise.RMSGD([structured(16, 16, 3, 3)], lr=1, beta=0.8)
    epochs(released, 3)
    epochs(ours, 3)
    assert released.velocity[0] == pytest.approx(1.8 * 0.8**2, abs=0.01)
    assert released.lr_vector[0] == 1
    assert ours.rates()["layer0"] == pytest.approx(0.8**3)


@pytest.mark.parametrize("shape", [(20, 40), (16, 12, 5)], ids=["MLP", "Conv1d"])
def test_silent_plain_sgd(shape):
    with warnings.catch_warnings(record=True) as caught:
        released = rmsgd.RMSGD([structured(*shape)], lr=LR, linear=len(shape) > 2)
        epochs(released, 20)
    ours = rankwise.RMSGD([structured(*shape)], lr=LR)
    epochs(ours, 20)
    assert not caught
    assert released.lr_vector[0] == LR
    assert ours.rates()["layer0"] == pytest.approx(0.98**20 * LR)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bf16(dtype):
    weight = structured(16, 16, 3, 3).detach()
    assert released_rank(weight) > 0
    assert released_rank(weight.to(dtype)) == 0
    assert our_rank(weight.to(dtype)) == pytest.approx(our_rank(weight), rel=0.01)


def test_nan_and_inf():
    for bad in (float("nan"), float("inf")):
        weight = structured(16, 16, 3, 3)
        released, ours = rmsgd.RMSGD([weight], lr=LR), rankwise.RMSGD([weight], lr=LR)
        epochs(released, 3)
        epochs(ours, 3)
        before, own = released.lr_vector[0], ours.rates()
        weight.data[0, 0, 0, 0] = bad
        if np.isnan(bad):  # the rank of an epoch ago, without a warning
            epochs(released, 1)
            assert released.lr_vector[0] == pytest.approx(0.8 * before)
        else:
            with pytest.raises(ValueError, match="bounds must be finite"):
                epochs(released, 1)
        with pytest.warns(UserWarning, match="layer0"):
            epochs(ours, 1)
        assert ours.rates() == own


def test_orthogonal_weights():
    weight = 0.1 * torch.eye(3).reshape(3, 3, 1, 1)
    with pytest.raises(ValueError, match="lower bound exceeds the upper bound"):
        released_rank(weight)
    assert our_rank(weight) == 0
    orthogonal, _ = torch.linalg.qr(torch.randn(40, 40))
    assert our_rank(orthogonal) == 0


def test_depthwise():
    weight = structured(48, 1, 3, 3, strength=4)
    output_mode = released_rank(weight.detach().reshape(48, 9))
    assert released_rank(weight) == pytest.approx(output_mode / 2)
    assert our_rank(weight) == pytest.approx(our_rank(weight.detach().reshape(48, 9)))
    assert our_rank(weight) > 0


def test_state_that_grows():
    sizes = {}
    for cls in (rmsgd.RMSGD, rankwise.RMSGD):
        optimizer = cls([structured(16, 16, 3, 3)], lr=LR)
        sizes[cls] = []
        for _ in range(2):
            epochs(optimizer, 20)
            sizes[cls].append(stored(optimizer.state_dict()).getbuffer().nbytes)
    assert sizes[rmsgd.RMSGD][1] > sizes[rmsgd.RMSGD][0] + 1000
    assert sizes[rankwise.RMSGD][1] == sizes[rankwise.RMSGD][0]


def test_mutated_gradients():
    for cls, mutates in ((rmsgd.RMSGD, True), (rankwise.RMSGD, False)):
        weight = structured(16, 16, 3, 3)
        weight.grad = torch.ones_like(weight)
        cls([weight], lr=LR, weight_decay=0.1).step()
        assert torch.equal(weight.grad, torch.ones_like(weight)) is not mutates


def test_the_page_names_these_tests():
    here = re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.M)
    assert re.findall(r"`(test_\w+)`", PAGE.read_text()) == here[:-1]
