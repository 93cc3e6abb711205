"""Folders of torch.distributed.checkpoint: metadata and pieces that may not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from tests.fuzz.pickles import (
    Build,
    Call,
    Global,
    Pairs,
    Raw,
    Tuple,
    draw_hostile_call,
    draw_node,
    encode_pickle,
    mutate_node,
    shuffle_opcodes,
    split_opcodes,
)
from tests.fuzz.tensors import ITEM_SIZES, Stored
from tests.fuzz.torch_files import encode_torch_tensor
from tests.fuzz.values import OUTSIDE, damage_bytes, draw_integer, draw_text

_DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
}
_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = ("__0_0.distcp", "__1_0.distcp")
_OTHER_FILES = (
    ".metadata",
    "__2_0.distcp",
    "fifo",
    "link",
    ".",
    "",
    f"../{OUTSIDE}/secret.bin",
    "/dev/zero",
)


@dataclass(frozen=True)
class _Piece:
    """A part of a tensor, and where it begins in it."""

    name: str
    offsets: tuple[int, ...]
    part: Stored


def encode_distributed(tensors: Sequence[Stored], rng: Random, *, broken: bool) -> dict[str, bytes]:
    """Return the files of a checkpoint, by name."""
    damage_pieces = broken and rng.random() < 0.3
    pieces = [piece for tensor in tensors for piece in _split(tensor, rng)]
    files = dict.fromkeys(_FILES[: rng.choice((1, 2))], b"")
    places = Pairs()
    for piece in pieces:
        file = rng.choice(list(files))
        broken_piece = damage_pieces and rng.random() < 0.3
        data = encode_torch_tensor(piece.part, rng, broken=broken_piece)
        place = ["relative_path", file, "offset", len(files[file]), "length", len(data)]
        index = _make_record(
            "MetadataIndex", ["fqn", piece.name, "offset", _make_size(piece.offsets), "index", 0]
        )
        places += [index, _make_record("_StorageInfo", place, f"{_METADATA[:-9]}.filesystem")]
        files[file] += data
    root = _make_root(tensors, pieces, places, rng)
    if broken and not damage_pieces:
        content = _break_metadata(root, files, rng)
    else:
        content = encode_pickle(root, rng.choice((2, 4)))
    return {".metadata": content, **files}


def _split(tensor: Stored, rng: Random) -> list[_Piece]:
    """Split a tensor along one axis or two."""
    parts = [_Piece(tensor.name, (0,) * len(tensor.shape), tensor)]
    for axis in rng.sample(range(len(tensor.shape)), min(len(tensor.shape), rng.choice((0, 1, 2)))):
        parts = [half for piece in parts for half in _halve(piece, axis, rng)]
    return parts


def _halve(piece: _Piece, axis: int, rng: Random) -> list[_Piece]:
    part, size = piece.part, ITEM_SIZES[piece.part.dtype]
    numbers = np.frombuffer(part.data, np.uint8).reshape(*part.shape, size)
    side = part.shape[axis]
    cut = rng.randrange(1, side) if side > 1 else side
    result = []
    for start, end in ((0, cut), (cut, side)) if cut < side else ((0, side),):
        half = np.take(numbers, range(start, end), axis)
        stored = replace(part, shape=half.shape[:-1], data=half.tobytes())
        offsets = (*piece.offsets[:axis], piece.offsets[axis] + start, *piece.offsets[axis + 1 :])
        result.append(_Piece(piece.name, offsets, stored))
    return result


def _make_record(name: str, state: list[object] | Tuple, module: str = _METADATA) -> Build:
    new = Raw(f"c{module}\n{name}\n".encode() + b")\x81")
    return Build([new, state if isinstance(state, Tuple) else Pairs(state)])


def _make_size(sides: Sequence[int]) -> Call:
    return Call([Global("torch", "Size"), Tuple([Tuple(sides)])])


def _make_root(
    tensors: Sequence[Stored], pieces: Sequence[_Piece], places: Pairs, rng: Random
) -> Build:
    items, routes = Pairs(), Pairs()
    prefix = rng.choice(("", "", "", "model", "model", "optim"))
    for tensor in tensors:
        chunks: list[object] = [
            _make_record(
                "ChunkStorageMetadata",
                ["offsets", _make_size(piece.offsets), "sizes", _make_size(piece.part.shape)],
            )
            for piece in pieces
            if piece.name == tensor.name
        ]
        layout = Call([Global("torch.serialization", "_get_layout"), Tuple(["torch.strided"])])
        memory = Call([Global(_METADATA, "_MEM_FORMAT_ENCODING"), Tuple([0])])
        dtype = Global("torch", _DTYPES[tensor.dtype])
        properties = _make_record("TensorProperties", Tuple([dtype, layout, False, memory, False]))
        items += [
            tensor.name,
            _make_record(
                "TensorStorageMetadata",
                ["properties", properties, "size", _make_size(tensor.shape), "chunks", chunks],
            ),
        ]
        routes += [tensor.name, Tuple([prefix, tensor.name] if prefix else [tensor.name])]
    items += ["step", _make_record("BytesStorageMetadata", [])]
    path = Call([Global("pathlib", "PosixPath"), Tuple(["/", "tmp"])])
    fields: list[object] = ["state_dict_metadata", items, "storage_data", places]
    fields += ["planner_data", rng.choice((routes, routes, None))]
    fields += ["storage_meta", _make_record("StorageMeta", ["checkpoint_id", path])]
    return _make_record("Metadata", [*fields, "version", "1.0.0"])


def _break_metadata(root: Build, files: Mapping[str, bytes], rng: Random) -> bytes:
    tree: list[object] = [root]
    protocol = rng.choice((2, 4, 5))
    match rng.randrange(8):
        case 0 | 1:
            for _ in range(rng.choice((1, 2, 3))):
                mutate_node(tree, rng)
        case 2:
            fields = root[1]
            assert isinstance(fields, Pairs)
            fields += [draw_text(rng), rng.choice((draw_hostile_call(rng), draw_node(rng)))]
        case 3:
            codes = split_opcodes(root)
            shuffle_opcodes(codes, rng)
            return encode_pickle(Raw(b"".join(codes)), protocol)
        case 4:
            codes = [_modernise(code, rng) for code in split_opcodes(root)]
            if rng.random() < 0.5:
                shuffle_opcodes(codes, rng)
            return encode_pickle(Raw(b"".join(codes)), protocol)
        case 5:
            return damage_bytes(encode_pickle(root, protocol), rng)
        case _:
            for _ in range(rng.choice((1, 1, 3))):
                _mutate_place(root, rng)
    return encode_pickle(tree[0] if tree else None, protocol)


def _modernise(code: bytes, rng: Random) -> bytes:
    """Write an instruction as protocol 4 does, remembering what it makes, or getting it again."""
    if code[:1] == b"c" and code.endswith(b"\n"):
        module, name = code[1:-1].split(b"\n")
        texts = [b"\x8c%c" % len(text) + text for text in (module, name)]
        return b"\x94".join(texts) + b"\x93" + rng.choice((b"", b"\x94"))
    if code[:1] == b"X" and rng.random() < 0.5:
        return code + rng.choice((b"\x94", b"\x94", b"q\x05", b"h%c" % rng.randrange(9)))
    return code


def _mutate_place(root: Build, rng: Random) -> None:
    """Change a number or a file name that says where something lies."""
    slots: list[tuple[list[object], int]] = []
    waiting: list[object] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
            slots += [
                (node, place)
                for place, value in enumerate(node)
                if type(value) is int or value in _FILES
            ]
    if not slots:
        return
    node, place = rng.choice(slots)
    value = node[place]
    if isinstance(value, str):
        node[place] = rng.choice((*_FILES, *_OTHER_FILES, draw_text(rng)))
    elif isinstance(value, int):
        node[place] = value + rng.choice((-1, 1, 8)) if rng.random() < 0.4 else draw_integer(rng)
