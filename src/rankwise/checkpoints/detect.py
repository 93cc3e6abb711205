"""The format of a file, detected by its content; the extension may be wrong."""

from __future__ import annotations

import codecs
from enum import Enum
from typing import TYPE_CHECKING

from rankwise.checkpoints.records import list_names
from rankwise.checkpoints.safety import convert_errors, format_path, get_file_size
from rankwise.checkpoints.source import open_source
from rankwise.errors import CheckpointError, UnsafeFileError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO


class Format(Enum):
    """The formats that can be read."""

    SAFETENSORS = "safetensors"
    TORCH_ZIP = "PyTorch"
    TORCH_LEGACY = "PyTorch before 1.6"
    NPZ = "npz"
    NPY = "npy"
    ONNX = "ONNX"
    GGUF = "GGUF"
    HDF5 = "HDF5"
    KERAS = "Keras"
    INDEX = "index of shards"


_TO_NUMPY = "save its weights with numpy.savez or as .safetensors first."
_UNPACK = "unpack it and give the path of the checkpoint inside."
_ORIGINAL = "use the original .safetensors or PyTorch checkpoint."
_GGML = (b"ggml", b"lmgg", b"tjgg")

# Offset, bytes there, what the file is, what to do.
_UNSUPPORTED = (
    (0, _GGML, "a GGML file, whose tensors are quantised and not supported", _ORIGINAL),
    (4, b"TFL3", "a TensorFlow Lite model, which isn't supported", _TO_NUMPY),
    (257, b"ustar", "a tar archive, which isn't supported", _UNPACK),
    (0, b"\x1f\x8b", "compressed by gzip, which isn't supported", _UNPACK),
    (0, b"\xfd7zXZ\x00", "compressed by xz, which isn't supported", _UNPACK),
    (0, b"BZh", "compressed by bzip2, which isn't supported", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd, which isn't supported", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive, which isn't supported", _UNPACK),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run git lfs pull."),
    (0, (b"<!DOCTYPE", b"<html"), "a web page, not a checkpoint", "download the real file."),
)
_HEAD = 512
# How torch.save began before 1.6: protocol 2 and a number of 10 bytes.
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SUPPORTED = (
    (b"\x93NUMPY", Format.NPY),
    (b"GGUF", Format.GGUF),
    (b"\x89HDF\r\n\x1a\n", Format.HDF5),
    (_LEGACY, Format.TORCH_LEGACY),
)
_PICKLE = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
# The fields of ONNX's ModelProto: numbers (wire type 0), texts and messages (wire type 2).
_ONNX_FIELDS = {(1, 0), (5, 0), *((n, 2) for n in (2, 3, 4, 6, 7, 8, 14, 20, 25, 26))}
_ONNX_GRAPH = (7, 2)
_MAX_FIELDS = 100


def detect_format(path: Path) -> Format:
    """Detect a file's format by its content; a plain pickle is never opened."""
    size = get_file_size(path)
    if size == 0:
        raise CheckpointError(f"{format_path(path)}: an empty file; save or download it again.")
    with convert_errors(path, "a checkpoint"), path.open("rb") as file:
        head = file.read(_HEAD)
    if _is_safetensors(head, size):  # first: the length that it begins with can be any magic number
        return Format.SAFETENSORS
    return _detect_by_magic(path, head) or _detect_by_structure(path, head, size)


def _is_safetensors(head: bytes, size: int) -> bool:
    """Return whether a file begins with the length of a header, and then the header."""
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


def _detect_by_magic(path: Path, head: bytes) -> Format | None:
    for offset, magic, what, advice in _UNSUPPORTED:
        if head[offset:].startswith(magic):
            raise CheckpointError(f"{format_path(path)}: {what}; {advice}")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _detect_zip(path)
    for magic, kind in _SUPPORTED:
        if head.startswith(magic):
            return kind
    if head.startswith(_PICKLE):
        raise UnsafeFileError(
            f"{format_path(path)}: a plain Python pickle, which can run code and is never opened; "
            "if you trust it, save its weights with torch.save(state_dict, 'weights.pt')."
        )
    return None


def _detect_by_structure(path: Path, head: bytes, size: int) -> Format:
    is_text = _is_text(head)
    if head[8:9] == b"{" and not is_text:  # the length of a header, then the header
        return Format.SAFETENSORS
    if head.startswith(b"\x08"):
        if _is_onnx(path, size):
            return Format.ONNX
        raise CheckpointError(
            f"{format_path(path)}: in an unknown format, maybe a TensorFlow SavedModel or Core ML "
            f"model, which isn't supported; {_TO_NUMPY}"
        )
    if is_text and path.name.endswith(".json"):
        return Format.INDEX
    what = "a text file, not a checkpoint" if is_text else "in an unknown format"
    raise CheckpointError(
        f"{format_path(path)}: {what}; expected a .safetensors, PyTorch, .npz, .npy, .onnx, "
        ".gguf, .h5 or .keras file."
    )


def _detect_zip(path: Path) -> Format:
    names = list_names(open_source(path))
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner:
        raise CheckpointError(
            f"{format_path(path)}: a TorchScript archive, a program rather than weights; if you "
            "trust it, save them with torch.save(torch.jit.load(path).state_dict(), 'weights.pt')."
        )
    if "data.pkl" in inner:
        return Format.TORCH_ZIP
    if any(name.endswith(".npy") for name in names):
        return Format.NPZ
    if "model.weights.h5" in names:
        return Format.KERAS
    raise CheckpointError(
        f"{format_path(path)}: a zip archive without a PyTorch checkpoint, a Keras model or arrays "
        f"in it; {_UNPACK}"
    )


def _is_onnx(path: Path, size: int) -> bool:
    """Return whether the fields of a protocol buffer up to its graph are those of an ONNX model."""
    with path.open("rb") as file:
        for _ in range(_MAX_FIELDS):
            tag = _read_varint(file)
            if tag is None:
                return False
            field = (tag >> 3, tag & 7)
            if field not in _ONNX_FIELDS or field == _ONNX_GRAPH:
                return field == _ONNX_GRAPH
            value = _read_varint(file)
            end = file.tell() + (value if value and field[1] == 2 else 0)  # 2: it is a length
            if value is None or end > size:  # truncated: only the extension can tell
                return path.suffix.lower() == ".onnx"
            file.seek(end)
    return False


def _read_varint(file: BinaryIO) -> int | None:
    """Read a number of protocol buffers, 7 bits per byte; None if there is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None


def _is_text(head: bytes) -> bool:
    try:  # step by step, as the last character may be cut in two
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text) and all(char.isprintable() or char.isspace() for char in text)
