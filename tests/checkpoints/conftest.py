"""Small valid files of each format, for tests to read and to damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

Writer = Callable[[Path, dict[str, Tensor]], None]


def _write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path)


def _write_torch(path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, path)


def _write_legacy(path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


def _write_npz(path: Path, tensors: dict[str, Tensor]) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: tensor.numpy() for name, tensor in tensors.items()})


def _write_npz_compressed(path: Path, tensors: dict[str, Tensor]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **{name: tensor.numpy() for name, tensor in tensors.items()})


def _write_onnx(path: Path, tensors: dict[str, Tensor]) -> None:
    from onnx import helper, numpy_helper

    initializers = [numpy_helper.from_array(t.numpy(), name) for name, t in tensors.items()]
    graph = helper.make_graph([], "graph", [], [], initializer=initializers)
    path.write_bytes(helper.make_model(graph).SerializeToString())


WRITERS: dict[str, Writer] = {
    "safetensors": _write_safetensors,
    "torch": _write_torch,
    "legacy": _write_legacy,
    "npz": _write_npz,
    "npz-compressed": _write_npz_compressed,
    "onnx": _write_onnx,
}


@pytest.fixture(params=sorted(WRITERS))
def write(request: pytest.FixtureRequest) -> Writer:
    """Writes named tensors in one of the formats, each in turn."""
    return WRITERS[request.param]


@pytest.fixture
def writers() -> dict[str, Writer]:
    return WRITERS


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "conv.weight": torch.randn(4, 3, 3, 3, generator=generator),
        "fc.weight": torch.randn(5, 7, generator=generator),
        "fc.bias": torch.randn(5, generator=generator),
        "steps": torch.arange(6),
    }
