from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.checkpoints.memory import release_memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is read")


def _points_to(descriptor: Path, path: Path) -> bool:
    try:
        return descriptor.readlink() == path
    except FileNotFoundError:  # the one that lists the folder
        return False


@linux
@pytest.mark.parametrize("kind", ["torch", "legacy", "safetensors", "npz", "npz-compressed", "npy"])
def test_no_file_is_mapped_or_kept_open(tmp_path: Path, writers, kind: str) -> None:
    path = tmp_path / "w"
    if kind == "npy":
        with path.open("wb") as file:
            np.save(file, np.ones((64, 64)))
    else:
        writers[kind](path, {f"w{i}": torch.ones(64, 64) for i in range(3)})
    weights = open_weights(path)
    loaded = [weight.load() for weight in weights.tensors]
    assert loaded
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert not any(_points_to(file, path) for file in sorted(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("tensor", [torch.randn(2000, 1000), torch.randn(3), torch.empty(0)])
def test_release_memory_changes_no_value(tensor: torch.Tensor) -> None:
    copy = tensor.clone()
    release_memory(tensor)
    assert torch.equal(tensor, copy)
