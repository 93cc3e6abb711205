from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.checkpoints.memory import BoundedHandle, release_memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are released on Linux only")


def _mapped_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssFile"))
    return int(line.split()[1]) / 1024


@linux
def test_release_memory_gives_the_pages_of_a_mapped_file_back(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(64 * 2**18)}, tmp_path / "w.pt")
    tensor = torch.load(tmp_path / "w.pt", weights_only=True, mmap=True)["w"]
    before = _mapped_megabytes()
    tensor.sum()
    assert _mapped_megabytes() - before > 48
    release_memory(tensor)
    assert _mapped_megabytes() - before < 16
    assert tensor.sum().item() == tensor.numel()


@linux
@pytest.mark.parametrize("kind", ["torch", "safetensors", "npz"])
def test_a_file_that_was_read_keeps_no_pages(
    tmp_path: Path, writers, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwise.checkpoints.pytorch._BUDGET", 2**25)
    writers[kind](tmp_path / "w", {f"w{i}": torch.ones(512, 8192) for i in range(6)})
    weights = open_weights(tmp_path / "w")
    before = _mapped_megabytes()
    for weight in weights.tensors:  # without release_memory: dropping the mapping is enough
        assert weight.load().sum().item() == 2**22
    assert _mapped_megabytes() - before < 24


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(300, 300),
        torch.randn(300, 300)[7:, 3:].T,
        torch.randn(3),
        torch.empty(0),
        torch.empty(9, 9, device="meta"),
        torch.eye(9).to_sparse(),
        torch.nn.Parameter(torch.randn(64, 64)),
    ],
)
def test_release_memory_changes_no_value(tensor: torch.Tensor) -> None:
    copy = tensor.clone()
    release_memory(tensor)
    assert tensor.is_meta or torch.equal(tensor.to_dense(), copy.to_dense())


def test_a_handle_is_dropped_after_its_budget() -> None:
    opened: list[int] = []

    def opener() -> int:
        opened.append(len(opened))
        return opened[-1]

    handle = BoundedHandle(opener, budget=100)
    assert [handle.get(n) for n in (0, 99, 1, 500, 10)] == [0, 0, 0, 1, 2]
    kept = BoundedHandle(opener, budget=None)
    assert {kept.get(10**12) for _ in range(5)} == {3}
