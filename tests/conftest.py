from pathlib import Path

import pytest
import torch

from tests import SHARED


@pytest.fixture
def zoo() -> Path:
    """A folder of real trained networks, where the machine has it."""
    folder = SHARED / "zoo"
    if not folder.is_dir():
        pytest.skip("needs the shared data folder beside the project: real trained networks")
    return folder


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
