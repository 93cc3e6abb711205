"""Which format a file is in, told by its first bytes; the extension may lie."""

from __future__ import annotations

import codecs
from enum import Enum
from typing import TYPE_CHECKING

from rankwise.checkpoints.failures import reading, shown
from rankwise.checkpoints.onnx_wire import fields
from rankwise.checkpoints.safety import regular_size
from rankwise.checkpoints.zip_directory import zip_entries
from rankwise.errors import CheckpointError, UnsafeFileError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Format", "recognise"]


class Format(Enum):
    """The formats that are read."""

    SAFETENSORS = "safetensors"
    TORCH_ZIP = "PyTorch"
    TORCH_LEGACY = "PyTorch before 1.6"
    NPZ = "npz"
    NPY = "npy"
    ONNX = "ONNX"
    INDEX = "index of shards"


_TO_NUMPY = "save its weights with numpy.savez or as .safetensors first."
_UNPACK = "unpack it and name the checkpoint inside."
_ORIGINAL = "use the original .safetensors or PyTorch checkpoint."
_DOWNLOAD = "download the real file."

# Where the bytes stand, the bytes, what the file is, what to do.
_FOREIGN = (
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras .h5), which isn't supported", _TO_NUMPY),
    (0, b"GGUF", "a GGUF file, whose tensors are quantised and not supported", _ORIGINAL),
    (0, b"ggml", "a GGML file, whose tensors are quantised and not supported", _ORIGINAL),
    (0, b"lmgg", "a GGML file, whose tensors are quantised and not supported", _ORIGINAL),
    (0, b"tjgg", "a GGML file, whose tensors are quantised and not supported", _ORIGINAL),
    (4, b"TFL3", "a TensorFlow Lite model, which isn't supported", _TO_NUMPY),
    (257, b"ustar", "a tar archive, which isn't supported", _UNPACK),
    (0, b"\x1f\x8b", "compressed by gzip, which isn't supported", _UNPACK),
    (0, b"\xfd7zXZ\x00", "compressed by xz, which isn't supported", _UNPACK),
    (0, b"BZh", "compressed by bzip2, which isn't supported", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd, which isn't supported", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive, which isn't supported", _UNPACK),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run git lfs pull."),
    (0, b"<!DOCTYPE", "a web page, not a checkpoint", _DOWNLOAD),
    (0, b"<html", "a web page, not a checkpoint", _DOWNLOAD),
)
_HEAD = 512
# How torch.save began before 1.6: protocol 2 and a number of 10 bytes.
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PICKLE = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
# The fields of ONNX's model message: numbers, and texts or messages.
_ONNX_NUMBERS = frozenset({1, 5})
_ONNX_CONTENTS = frozenset({2, 3, 4, 6, 7, 8, 14, 20, 25, 26})
_ONNX_GRAPH = 7


def recognise(path: Path) -> Format:
    """Tells a file's format by its content.

    Args:
        path: A file.

    Returns:
        The format.

    Raises:
        CheckpointError: It is empty, can't be read, or in a format that isn't supported.
    """
    size = regular_size(path)
    if size == 0:
        raise CheckpointError(f"{shown(path)}: an empty file; save or download it again.")
    with reading(path, "a checkpoint"), path.open("rb") as file:
        head = file.read(_HEAD)
    return _by_magic(path, head) or _by_structure(path, head, size)


def _by_magic(path: Path, head: bytes) -> Format | None:
    for place, magic, what, advice in _FOREIGN:
        if head[place:].startswith(magic):
            raise CheckpointError(f"{shown(path)}: {what}; {advice}")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_format(path)
    if head.startswith(b"\x93NUMPY"):
        return Format.NPY
    if head.startswith(_LEGACY):
        return Format.TORCH_LEGACY
    if head.startswith(_PICKLE):
        raise UnsafeFileError(
            f"{shown(path)}: a plain Python pickle, which can run code and is never opened; where "
            "you trust it, save its weights with torch.save(state_dict, 'weights.pt')."
        )
    return None


def _by_structure(path: Path, head: bytes, size: int) -> Format:
    text = _is_text(head)
    if head[8:9] == b"{" and not text:  # the length of a header, then the header
        return Format.SAFETENSORS
    if head.startswith(b"\x08"):
        return _protobuf_format(path, size)
    if text and path.name.endswith(".json"):
        return Format.INDEX
    what = "a text file, not a checkpoint" if text else "in no format that is known"
    raise CheckpointError(
        f"{shown(path)}: {what}; .safetensors, PyTorch, .npz, .npy and .onnx files are read."
    )


def _zip_format(path: Path) -> Format:
    names = [entry.filename for entry in zip_entries(path)]
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner:
        raise CheckpointError(
            f"{shown(path)}: a TorchScript archive, a program rather than weights; where you trust "
            "it, save them with torch.save(torch.jit.load(path).state_dict(), 'weights.pt')."
        )
    if "data.pkl" in inner:
        return Format.TORCH_ZIP
    if any(name.endswith(".npy") for name in names):
        return Format.NPZ
    if "model.weights.h5" in names:
        raise CheckpointError(f"{shown(path)}: a Keras model, which isn't supported; {_TO_NUMPY}")
    raise CheckpointError(
        f"{shown(path)}: a zip archive without a PyTorch checkpoint or arrays in it; {_UNPACK}"
    )


def _protobuf_format(path: Path, size: int) -> Format:
    if _is_onnx(path, size):
        return Format.ONNX
    raise CheckpointError(
        f"{shown(path)}: in no format that is known (a TensorFlow SavedModel or Core ML model?), "
        f"which isn't supported; {_TO_NUMPY}"
    )


def _is_onnx(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        try:
            for item in fields(file, 0, size):
                allowed = _ONNX_NUMBERS if item.start < 0 else _ONNX_CONTENTS
                if item.number not in allowed:
                    return False
                if item.number == _ONNX_GRAPH:
                    return True
        except ValueError:  # cut off before its end: the extension is all that is left to go by
            return path.suffix.lower() == ".onnx"
    return False


def _is_text(head: bytes) -> bool:
    try:  # step by step, as the last character may be cut in two
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text) and all(char.isprintable() or char.isspace() for char in text)
