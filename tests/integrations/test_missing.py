"""Without its package an integration says what to install, and rankwise itself needs none."""

import importlib
import subprocess
import sys

import pytest

from rankwise import MissingExtraError

NEEDS = {
    "accelerate": ["accelerate", "accelerate.optimizer"],
    "lightning": ["lightning", "lightning.pytorch", "pytorch_lightning"],
    "tensorboard": ["tensorboard", "torch.utils.tensorboard"],
    "transformers": ["transformers"],
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_missing_package_is_named(name, monkeypatch):
    module = f"rankwise.integrations.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for package in NEEDS[name]:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        importlib.import_module(module)
    assert f"needs the package '{name}': pip install {name}" in str(caught.value)


def test_importing_rankwise_imports_no_integration():
    code = "import sys, rankwise; print([m for m in sys.modules if 'integrations' in m])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
