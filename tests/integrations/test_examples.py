"""The example scripts run as they stand, and end with a rate for every layer."""

import re
import runpy

import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState

from tests import ROOT


@pytest.fixture
def _fresh_accelerate(monkeypatch):
    """Accelerate keeps its settings for the whole process."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.mark.usefixtures("_fresh_accelerate")
@pytest.mark.filterwarnings("default")  # those of the trainers themselves
@pytest.mark.parametrize("name", ["accelerate", "lightning", "tensorboard", "transformers"])
def test_it_trains_each_layer_at_its_own_rate(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / f"{name}_example.py"), run_name="__main__")
    rates = re.findall(r"^[\w.]+: (\d\.\d{4})$", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(rates) >= 2
    assert len(set(rates)) >= 2
