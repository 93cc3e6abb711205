from __future__ import annotations

import gzip
import io
import lzma
import os
import pickle
import tarfile
import warnings
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError, RankwiseError, UnsafeFileError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "name", ["w.pt", "w.safetensors", "w.npz", "w.onnx", "w.bin", "w", "w.json", "w.h5"]
)
def test_content_decides_whatever_the_extension(tmp_path: Path, write, tensors, name: str) -> None:
    write(tmp_path / name, tensors)
    weights = open_weights(tmp_path / name)
    assert weights.source == str(tmp_path / name)
    assert {w.name for w in weights.tensors} == set(tensors)
    for weight in weights.tensors:
        expected = tensors[weight.name]
        assert (weight.shape, weight.dtype) == (tuple(expected.shape), expected.dtype)
        assert weight.obstacle is None
        for _ in range(2):
            assert torch.equal(weight.load(), expected)


def test_paths_may_be_text(tmp_path: Path, write, tensors) -> None:
    write(tmp_path / "w", tensors)
    assert len(open_weights(str(tmp_path / "w")).tensors) == len(tensors)


def test_nothing_is_printed(tmp_path: Path, write, tensors, capfd) -> None:
    write(tmp_path / "w", tensors)
    for weight in open_weights(tmp_path / "w").tensors:
        weight.load()
    assert capfd.readouterr() == ("", "")


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("weights.bin"))
    return buffer.getvalue()


def _zip(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name.replace("_slash_", "/").replace("_dot_", "."), content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"GGUF\x03\0\0\0", "claims|truncated"),
        (b"\x1c\0\0\0TFL3" + bytes(99), "TensorFlow Lite"),
        (_tar(), "tar archive"),
        (gzip.compress(b"weights", mtime=0), "gzip"),
        (lzma.compress(b"weights"), "xz"),
        (b"\x08\x01\x12\x04abcd", "SavedModel"),
        (b"\x08\x06\x12\x02ab\xca\x19\x00", "Core ML"),
        (b"\x08\x06\xca\x19\x00\x3a\x00", "Core ML"),
        (b"hello, world {\n", "text file"),
        (b"12345678{}\n", "text file"),
        ("größe\n".encode() * 99, "text file"),
        (b'{"a": 1}', "text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (bytes(1000), "unknown format"),
        (b"\xff", "unknown format"),
        (b"\x08", "unknown format"),
        (pickle.dumps({"w": 1}), "plain Python pickle"),
        (_zip(), "zip archive without"),
        (_zip(readme=b"x"), "zip archive without"),
        (_zip(m_slash_data_dot_pkl=b"x", m_slash_constants_dot_pkl=b"x"), "TorchScript"),
    ],
)
def test_other_files_are_named_and_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=said) as caught:
        open_weights(tmp_path / "w.pt")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{tmp_path / 'w.pt'}: ")
    assert text.endswith(".")


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 0x0108, 0x8B1F])
def test_the_length_of_a_header_may_look_like_another_format(tmp_path: Path, length: int) -> None:
    header = b'{"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}'.ljust(length)
    (tmp_path / "w.safetensors").write_bytes(length.to_bytes(8, "little") + header + bytes(16))
    assert [weight.name for weight in open_weights(tmp_path / "w.safetensors").tensors] == ["w"]


@pytest.mark.parametrize("kind", ["safetensors", "torch", "legacy", "onnx"])
def test_a_file_without_tensors_is_refused(tmp_path: Path, writers, kind: str) -> None:
    writers[kind](tmp_path / "w", {})
    with pytest.raises(CheckpointError, match="no tensors"):
        open_weights(tmp_path / "w")


def test_a_real_torchscript_archive_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of PyTorch call torch.jit deprecated
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="TorchScript"):
        open_weights(tmp_path / "m.pt")


def test_a_plain_pickle_is_never_opened(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    (tmp_path / "w.pkl").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(UnsafeFileError):
        open_weights(tmp_path / "w.pkl")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("kind", ["safetensors", "npz", "onnx"])
def test_a_key_is_for_nested_files(tmp_path: Path, writers, tensors, kind: str) -> None:
    writers[kind](tmp_path / "w", tensors)
    with pytest.raises(CheckpointError, match="key"):
        open_weights(tmp_path / "w", key="ema")


@pytest.mark.parametrize("cut", [1, 9, 60, 200, 0.5, 0.9, -1])
def test_truncated_files_are_refused(tmp_path: Path, write, tensors, cut: float) -> None:
    write(tmp_path / "w.onnx", tensors)
    content = (tmp_path / "w.onnx").read_bytes()
    end = int(len(content) * cut) if 0 < cut < 1 else int(cut)
    (tmp_path / "w.onnx").write_bytes(content[:end])
    with pytest.raises(RankwiseError) as caught:  # noqa: PT012 - it may show at either place
        for weight in open_weights(tmp_path / "w.onnx").tensors:
            weight.load()
    assert "\n" not in str(caught.value)


def test_names_are_kept_as_stored_and_shown_safely(tmp_path: Path, write) -> None:
    names = ["\x1b[31mred.weight", "<img src=x>", "line\nbreak", "\u202egpj.exe"]
    write(tmp_path / "w", {name: torch.ones(2, 2) for name in names})
    assert {w.name for w in open_weights(tmp_path / "w").tensors} == set(names)


def test_a_hostile_path_is_shown_safely(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_weights(tmp_path / "\x1b[31m\n.pt")
    assert str(caught.value).isprintable()


def test_half_precision(tmp_path: Path, writers) -> None:
    from ml_dtypes import bfloat16

    values = torch.randn(3, 4)
    kinds = {
        "safetensors": [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2],
        "torch": [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2],
        "npz": [torch.float16],
    }
    for kind, dtypes in kinds.items():
        tensors = {str(dtype): values.to(dtype) for dtype in dtypes}
        writers[kind](tmp_path / kind, tensors)
        for weight in open_weights(tmp_path / kind).tensors:
            assert str(weight.dtype) == weight.name
            loaded = weight.load()
            assert loaded.dtype == weight.dtype
            assert torch.equal(loaded.float(), tensors[weight.name].float())
    np.savez(tmp_path / "w.npz", w=values.numpy().astype(bfloat16))
    assert open_weights(tmp_path / "w.npz").tensors[0].obstacle is not None
