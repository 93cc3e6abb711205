from pathlib import Path

import hypothesis
import pytest
import torch

from tests import SHARED

# No test depends on how fast the machine is.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture
def zoo() -> Path:
    """A folder of real trained networks, where the machine has it."""
    folder = SHARED / "zoo"
    if not folder.is_dir():
        pytest.skip("needs the shared data folder beside the project: real trained networks")
    return folder


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the results of commands apart from those of other tests and of the user."""
    monkeypatch.setenv("RANKWISE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
