"""Figures that a peer computes too, and rightly, come out the same."""

import json
import os
import subprocess
import sys

import numpy as np
import torch
from torch import nn

import rankwise

WEIGHTWATCHER = """
import contextlib, io, json, logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import torch
from torch import nn
with contextlib.redirect_stdout(io.StringIO()):
    import weightwatcher
    model = nn.Sequential(nn.Linear(300, 120), nn.Linear(120, 80))
    model.load_state_dict(torch.load(sys.argv[1], weights_only=True))
    details = weightwatcher.WeightWatcher(model=model).analyze()
print(json.dumps(details[["spectral_norm", "norm", "stable_rank"]].to_dict("list")))
"""


def test_weightwatcher_finds_the_same_norms(tmp_path):
    model = nn.Sequential(nn.Linear(300, 120), nn.Linear(120, 80))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    # In a process of its own: importing it prints, warns and changes logging.
    done = subprocess.run(
        [sys.executable, "-c", WEIGHTWATCHER, str(tmp_path / "model.pt")],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = rankwise.probe(model).probed
    spectral = [layer.spectral_norm**2 for layer in ours]
    frobenius = [layer.frobenius_norm**2 for layer in ours]
    np.testing.assert_allclose(spectral, theirs["spectral_norm"], rtol=1e-4)
    np.testing.assert_allclose(frobenius, theirs["norm"], rtol=1e-4)
    ratio = np.divide(frobenius, spectral)
    np.testing.assert_allclose(ratio, theirs["stable_rank"], rtol=1e-4)
