"""docs/rates.md: its blocks run and train every layer."""

import re

import pytest
import torch
from torch import nn

import rankwise
from tests import ROOT

PAGE = (ROOT / "docs" / "rates.md").read_text(encoding="utf-8")
SECTIONS = [section for section in re.split(r"^## ", PAGE, flags=re.M)[1:] if "```" in section]
BLOCKS = {
    section.splitlines()[0]: re.findall(r"```python\n(.*?)```", section, re.S)
    for section in SECTIONS
}


def surroundings():
    """What the page says is given."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        *(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5)),
    )
    loader = [(torch.randn(6, 3, 4, 4), torch.randint(0, 5, (6,))) for _ in range(5)]
    return {"model": model, "loader": loader, "loss_function": nn.CrossEntropyLoss(), "epochs": 3}


def test_every_rule_has_a_section():
    assert len(BLOCKS) == 6
    assert all(len(blocks) == 1 for blocks in BLOCKS.values())
    for name in ("StableRank", "AnnealedStableRank", "TempBalance", "LLR", "RelativeUpdate"):
        assert f"`{name}(" in PAGE
        assert hasattr(rankwise, name)


@pytest.mark.parametrize("title", BLOCKS)
def test_blocks_run_and_train(title):
    names = surroundings()
    weights = [parameter for parameter in names["model"].parameters() if parameter.ndim >= 2]
    before = [weight.clone() for weight in weights]
    exec(BLOCKS[title][0], names)  # noqa: S102
    assert not any(torch.equal(old, new) for old, new in zip(before, weights, strict=True))
    assert names["scheduler"].last_readings
