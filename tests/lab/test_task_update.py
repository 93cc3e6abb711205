"""One update, however often the optimizer looks at the loss."""

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from rankwise.lab.optimizers import build_optimizer
from rankwise.lab.tasks.task import update

fabric_package = pytest.importorskip("lightning_fabric")


@pytest.fixture(scope="module")
def fabric():
    return fabric_package.Fabric(accelerator="cpu", devices=1)


class Net(nn.Module):
    """Remembers what it was asked, and what its dropout left."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.masks, self.graded = [], []

    def forward(self, x):
        self.graded.append(torch.is_grad_enabled())
        self.masks.append(dropout(torch.ones(50), 0.5))
        return self.last(torch.relu(self.norm(self.first(x))))


def taken(fabric, name, *, steps=1, lr=0.1, seed=3, **options):
    model = Net()
    by = build_optimizer(name, model, lr=lr, weight_decay=0.0, batches_per_epoch=5)
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    losses = [
        update(
            fabric,
            by.optimizer,
            model,
            lambda: model(inputs).square().mean(),
            seed=seed + step,
            **options,
        )
        for step in range(steps)
    ]
    return model, losses, inputs


@pytest.mark.parametrize(("name", "looks"), [("sgd", 1), ("rmsgd", 1), ("sam", 2)])
def test_every_optimizer_looks_as_often_as_it_needs(fabric, name, looks):
    model, _, _ = taken(fabric, name)
    assert model.graded == [True] * looks


def test_a_line_search_looks_without_gradients(fabric):
    model, _, _ = taken(fabric, "sls", lr=100.0)
    assert model.graded[0]
    assert len(model.graded) > 2
    assert not any(model.graded[1:])


@pytest.mark.parametrize("name", ["sgd", "sam", "sls"])
def test_running_statistics_move_once_a_step_by_the_first_look(fabric, name):
    model, _, inputs = taken(fabric, name, lr=100.0 if name == "sls" else 0.1)
    fresh = Net()
    fresh(inputs)  # once, with the weights from before the step
    assert int(model.norm.num_batches_tracked) == 1
    assert torch.equal(model.norm.running_mean, fresh.norm.running_mean)
    assert torch.equal(model.norm.running_var, fresh.norm.running_var)
    assert model.norm.track_running_stats


@pytest.mark.parametrize("name", ["sam", "sls"])
def test_every_look_sees_the_same_dropout_and_every_step_another(fabric, name):
    model, _, _ = taken(fabric, name, lr=100.0 if name == "sls" else 0.1, steps=2)
    kinds = {tuple(mask.tolist()) for mask in model.masks}
    assert len(model.masks) > 2
    assert len(kinds) == 2


@pytest.mark.parametrize("name", ["sgd", "sam", "sls", "adamw"])
def test_the_loss_before_the_step_is_returned_without_its_graph(fabric, name):
    _, (loss,), inputs = taken(fabric, name)
    assert not loss.requires_grad
    assert float(loss) == pytest.approx(Net()(inputs).square().mean().item())


@pytest.mark.parametrize("name", ["sgd", "sam", "sls", "rmsgd", "adamw", "muon"])
def test_the_loss_falls(fabric, name):
    _, losses, _ = taken(fabric, name, steps=10, lr=0.01)
    assert losses[-1] < losses[0]


def test_gradients_are_clipped_to_a_norm(fabric):
    moved = []
    for clip in (0.0, 0.01, 1e9):
        model, _, _ = taken(fabric, "sgd", lr=1.0, clip=clip)
        pairs = zip(model.parameters(), Net().parameters(), strict=True)
        moved.append(sum((a - b).square().sum().item() for a, b in pairs) ** 0.5)
    assert moved[1] == pytest.approx(0.01, rel=1e-3)
    assert moved[0] == moved[2] > 0.02


def test_what_comes_after_backward_sees_gradients_before_they_are_clipped(fabric):
    norms = []
    model = Net()
    by = torch.optim.SGD(model.parameters(), lr=1.0)
    inputs = torch.randn(32, 4)

    def after():
        norms.append(float(nn.utils.get_total_norm(p.grad for p in model.parameters())))

    options = {"seed": 0, "clip": 0.01, "after_backward": after}
    update(fabric, by, model, lambda: model(inputs).square().mean(), **options)
    assert len(norms) == 1
    assert norms[0] > 0.02


def test_gradients_do_not_add_up_from_step_to_step(fabric):
    inputs = torch.randn(32, 4)
    weights = []
    for dirty in (False, True):
        model = Net()
        if dirty:
            model(inputs).sum().backward()
            model.norm.reset_running_stats()
        by = torch.optim.SGD(model.parameters(), lr=0.1)
        update(fabric, by, model, lambda m=model: m(inputs).square().mean(), seed=0)
        weights.append(model.first.weight.detach())
    assert torch.equal(*weights)


def test_statistics_are_followed_again_after_a_look_that_fails(fabric):
    model = Net()
    by = build_optimizer("sam", model, lr=0.1, weight_decay=0.0)
    looks = []

    def loss_of():
        looks.append(1)
        if len(looks) == 2:
            raise ValueError
        return model(torch.randn(8, 4)).square().mean()

    with pytest.raises(ValueError, match=r"^$"):
        update(fabric, by.optimizer, model, loss_of, seed=0)
    assert model.norm.track_running_stats
