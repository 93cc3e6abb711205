import json
import re

import pytest
import torch

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from rankwise.api import probe
from rankwise.cli import app

HOSTILE = "evil\x1b[31m\n\u202e[bold red]x[/]"


@pytest.fixture
def weights():
    torch.manual_seed(0)
    strong = torch.randn(24, 3) @ torch.randn(3, 40)
    return {
        "conv.weight": torch.randn(8, 4, 3, 3),
        "conv.bias": torch.zeros(8),
        "fc.weight": strong + 0.05 * torch.randn(24, 40),
        "fc.bias": torch.zeros(24),
        "head.weight": strong[:12].clone(),
        "broken.weight": torch.full((4, 4), torch.nan),
        HOSTILE: strong[:, :20].clone(),
    }


@pytest.fixture
def checkpoint(tmp_path, weights):
    path = tmp_path / "model.pt"
    torch.save(weights, path)
    return path


@pytest.fixture
def saved(tmp_path, weights):
    path = tmp_path / "saved.json"
    probe(weights).save(path)
    assert json.loads(path.read_text())
    return path


@pytest.fixture
def run(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TERM"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments, **environment):
        return runner().invoke(app, [str(a) for a in arguments], env=environment)

    return invoke


def runner():
    try:
        return CliRunner(mix_stderr=False)  # what click before 8.2 has to be told
    except TypeError:
        return CliRunner()


@pytest.fixture
def without_escapes():
    return lambda text: re.sub(r"\x1b\[[0-9;]*m", "", text)
