"""The example scripts run as they stand, and end with a rate for every layer."""

import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("name", ["accelerate", "lightning", "tensorboard", "transformers"])
def test_it_trains_each_layer_at_a_rate_of_its_own(name, tmp_path):
    found = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}_example.py"],
        cwd=tmp_path,
        env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    rates = re.findall(r"^[\w.]+: (\d\.\d{4})$", found.stdout, flags=re.MULTILINE)
    assert len(rates) >= 2
    assert len(set(rates)) >= 2
