import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import rankwise
from tests import ROOT

PAGE = (ROOT / "docs" / "migration.md").read_text()


def layers():
    """An optimizer whose second layer gains rank in the second epoch; each epoch's end."""
    still, gaining = (nn.Parameter(torch.randn(16, 24)) for _ in range(2))
    optimizer = rankwise.RMSGD([still, gaining], lr=0.1, beta=0.9)

    def end_epoch(epoch):
        for param in (still, gaining):
            param.grad = torch.zeros_like(param)
        optimizer.step()
        if epoch == 1:
            gaining.data += 5 * torch.randn(16, 2) @ torch.randn(2, 24)
        optimizer.epoch_step()

    return optimizer, end_epoch


COMPOSE = {
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=3),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 3], 0.5),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.5, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}
OVERWRITE = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}


def ratios(make):
    """The second layer's rate over the first one's, with a scheduler and without one."""
    found = []
    for maker in (make, None):
        torch.manual_seed(0)
        optimizer, end_epoch = layers()
        scheduler = maker(optimizer) if maker else None
        for epoch in range(6):
            end_epoch(epoch)
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(1.0)
            elif scheduler is not None:
                scheduler.step()
        first, second = optimizer.rates().values()
        found.append(second / first)
    return found


@pytest.mark.parametrize("name", COMPOSE)
def test_schedulers_that_the_page_says_multiply(name):
    beside, alone = ratios(COMPOSE[name])
    assert alone > 1.5
    assert beside == pytest.approx(alone)
    assert name in PAGE


@pytest.mark.parametrize("name", OVERWRITE)
def test_schedulers_that_the_page_says_overwrite(name):
    with pytest.warns(UserWarning, match="same rate"):
        beside, alone = ratios(OVERWRITE[name])
    assert alone > 1.5
    assert beside == pytest.approx(1)
    assert name in PAGE
