import copy
import itertools
import math

import pytest
import torch
from torch import nn

from rankwise.errors import ConfigError
from rankwise.lab.line_search import SLS, search_step

DECAY = 0.1


class Problem:
    """A small classifier on fixed data; notes the weights at each evaluation."""

    def __init__(self, spoil=lambda trial, loss: loss):
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.data = torch.randn(16, 4, dtype=torch.float64), torch.arange(16) % 3
        self.spoil, self.points = spoil, []

    def loss(self):
        return nn.functional.cross_entropy(self.net(self.data[0]), self.data[1])

    def __call__(self):
        self.points.append(self.flat())
        self.net.zero_grad()
        loss = self.loss()
        if torch.is_grad_enabled():
            loss.backward()
            return self.spoil(0, loss)
        return self.spoil(len(self.points) - 1, loss)

    def flat(self):
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()

    def objective(self, point):
        net = copy.deepcopy(self.net)
        nn.utils.vector_to_parameters(point, net.parameters())
        with torch.no_grad():
            loss = nn.functional.cross_entropy(net(self.data[0]), self.data[1])
        return float(loss + DECAY / 2 * point.square().sum())

    def direction(self, point):
        net = copy.deepcopy(self.net)
        nn.utils.vector_to_parameters(point, net.parameters())
        loss = nn.functional.cross_entropy(net(self.data[0]), self.data[1])
        grads = torch.autograd.grad(loss, list(net.parameters()))
        return nn.utils.parameters_to_vector(grads) + DECAY * point


def searcher(problem, lr=40.0, **options):
    given = {"batches_per_epoch": 4, "weight_decay": DECAY, **options}
    return SLS(problem.net.parameters(), lr=lr, **given)


def test_every_step_is_the_longest_tried_that_lowers_the_objective_enough():
    problem = Problem()
    optimizer = searcher(problem)
    refused = 0
    for _ in range(5):
        before = problem.flat()
        problem.points.clear()
        optimizer.step(problem)
        start, d = problem.objective(before), problem.direction(before)
        steepness = float(d.square().sum())
        tries = [float((before - p) @ d / steepness) for p in problem.points[1:]]
        enough = [
            problem.objective(point) <= start - 0.1 * step * steepness
            for point, step in zip(problem.points[1:], tries, strict=True)
        ]
        assert enough == [False] * (len(tries) - 1) + [True]
        refused += len(tries) - 1
        step = optimizer.param_groups[0]["step_size"]
        assert step == pytest.approx(tries[-1], rel=1e-9)
        torch.testing.assert_close(problem.flat(), before - step * d, rtol=1e-10, atol=1e-12)
        assert all(
            shorter == pytest.approx(0.9 * longer, rel=1e-9)
            for longer, shorter in itertools.pairwise(tries)
        )
    assert refused > 5


def test_a_search_starts_a_little_above_the_last_step_and_never_above_the_longest():
    problem = Problem()
    optimizer = searcher(problem, batches_per_epoch=2)
    group = optimizer.param_groups[0]
    for last, first in ((0.01, 0.01 * math.sqrt(2)), (30.0, 40.0)):
        group["step_size"] = last
        before = problem.flat()
        problem.points.clear()
        optimizer.step(problem)
        d = problem.direction(before)
        tried = (before - problem.points[1]) @ d / d.square().sum()
        assert float(tried) == pytest.approx(first, rel=1e-9)


def test_a_start_that_is_not_finite_takes_no_step():
    problem = Problem(spoil=lambda trial, loss: loss * math.nan)
    optimizer = searcher(problem)
    before = problem.flat()
    assert optimizer.step(problem).isnan()
    assert torch.equal(problem.flat(), before)
    assert len(problem.points) == 1


def test_a_gradient_that_is_not_finite_takes_no_step():
    problem = Problem()
    optimizer = searcher(problem)
    before = problem.flat()

    def closure():
        loss = problem()
        problem.net[0].bias.grad[0] = math.inf
        return loss

    optimizer.step(closure)
    assert torch.equal(problem.flat(), before)


def test_trials_that_are_nan_are_refused():
    problem = Problem(spoil=lambda trial, loss: loss * math.nan if 0 < trial < 30 else loss)
    optimizer = searcher(problem)
    optimizer.step(problem)
    assert optimizer.param_groups[0]["step_size"] == pytest.approx(40 * 0.9**29)


def test_without_a_good_step_the_smallest_is_taken():
    problem = Problem(spoil=lambda trial, loss: loss + 1 if trial else loss)
    optimizer = searcher(problem)
    before = problem.flat()
    optimizer.step(problem)
    assert len(problem.points) == 1 + 100 + 1
    expected = before - 1e-6 * problem.direction(before)
    torch.testing.assert_close(problem.flat(), expected, rtol=1e-12, atol=1e-14)
    assert optimizer.param_groups[0]["step_size"] == 1e-6


def test_where_even_the_smallest_step_is_nan_the_weights_stay():
    problem = Problem(spoil=lambda trial, loss: loss * math.nan if trial else loss)
    optimizer = searcher(problem)
    before = problem.flat()
    optimizer.step(problem)
    assert torch.equal(problem.flat(), before)


def test_gradients_are_left_as_they_were():
    problem = Problem()
    kept = []

    def closure():
        loss = problem()
        if torch.is_grad_enabled():
            kept.extend(param.grad for param in problem.net.parameters())
            kept.extend(param.grad.clone() for param in problem.net.parameters())
        return loss

    searcher(problem).step(closure)
    half = len(kept) // 2
    for grad, copied in zip(kept[:half], kept[half:], strict=True):
        assert torch.equal(grad, copied)


def test_all_processes_decide_by_their_mean_loss():
    alone, together = Problem(), Problem()
    searcher(alone).step(alone)
    other = iter([0.0] + [100.0] * 20 + [-100.0])  # refused twenty times by the other process
    optimizer = searcher(together, mean_over_processes=lambda loss: (loss + next(other)) / 2)
    optimizer.step(together)
    assert optimizer.param_groups[0]["step_size"] == pytest.approx(40 * 0.9**20)
    assert len(alone.points) != len(together.points)


def test_a_loss_of_float32_is_compared_without_the_penaltys_rounding():
    """Beside a huge ‖w‖², the change of the loss still decides."""
    weight = nn.Parameter(torch.tensor([3000.0, 0.5]))
    optimizer = SLS([weight], lr=1.0, batches_per_epoch=1, weight_decay=1e-9)

    def closure():
        weight.grad = None
        loss = weight[1] ** 2
        if torch.is_grad_enabled():
            loss.backward()
        return loss

    optimizer.step(closure)
    assert optimizer.param_groups[0]["step_size"] == pytest.approx(0.9, abs=0.1)


@pytest.mark.parametrize(("change", "found"), [(lambda s: -s, 2.0), (lambda s: math.nan, None)])
def test_search_step_takes_the_first_step_or_none(change, found):
    assert search_step(change, steepness=1.0, first=2.0) == found


def test_what_sls_can_not_do_is_refused_in_a_sentence():
    one, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigError, match="one parameter group"):
        SLS([{"params": [one]}, {"params": [other]}], batches_per_epoch=1)
    with pytest.raises(ConfigError, match="batches_per_epoch of 1 or more"):
        SLS([one], batches_per_epoch=0)
    with pytest.raises(ConfigError, match=r"step\(closure\)"):
        SLS([one], batches_per_epoch=1).step()
