from pathlib import Path

import pytest

from rankwise.lab.data import files


@pytest.fixture(autouse=True)
def _no_system_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide datasets that are installed on this machine."""
    monkeypatch.setattr(files, "SYSTEM_FOLDER", Path("/nonexistent"))
