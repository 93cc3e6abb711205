"""HDF5 files as Keras and others write them, and .keras archives: whole, hostile, or damaged."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from random import Random

import h5py
import numpy as np

from tests.fuzz.tensors import Stored
from tests.fuzz.values import (
    OUTSIDE,
    damage_bytes,
    draw_integer,
    draw_text,
    encode_json,
    mutate_json,
)
from tests.fuzz.zips import Entry, break_zip, encode_zip

_DTYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "V2",
    "F64": "<f8",
    "I64": "<i8",
    "I32": ">i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
    "U16": "<u2",
    "U32": "<u4",
    "U64": ">u8",
    "C64": "<c8",
    "F8_E4M3": "V1",
    "F8_E5M2": "V1",
}
_CLASSES = (
    "Dense",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "DepthwiseConv2D",
    "SeparableConv2D",
    "Embedding",
    "LSTM",
    "GRU",
    "EinsumDense",
    "MultiHeadAttention",
    "Bidirectional",
    "TimeDistributed",
    "PReLU",
    "Lambda",
    "LocallyConnected1D",
)
_VARIABLES = ("kernel", "bias", "recurrent_kernel", "depthwise_kernel", "embeddings", "gamma", "W")
_EQUATIONS = (
    "ab,bc->ac",
    "abc,cde->abde",
    "abde,dec->abc",
    "...a,ab->...b",
    "ab,->a",
    "->",
    "a,a->a",
)


def encode_hdf5(tensors: Sequence[Stored], rng: Random, *, broken: bool) -> bytes:
    """Return a file of one of the layouts that are told apart."""
    buffer = io.BytesIO()
    libver = rng.choice(("earliest", "earliest", "latest"))
    with h5py.File(buffer, "w", libver=libver, track_order=rng.random() < 0.2) as file:
        rng.choice((_write_plain, _write_listed, _write_numbered))(file, tensors, rng)
        if broken and rng.random() < 0.7:
            for _ in range(rng.choice((1, 1, 3))):
                _write_hostile(file, rng)
    content = buffer.getvalue()
    if not broken or rng.random() < 0.2:
        return content
    return rng.choice((damage_bytes, _damage_fields, _damage_fields))(content, rng)


def _damage_fields(content: bytes, rng: Random) -> bytes:
    """Overwrite numbers of the file's structure, which lies where bytes are not 0."""
    damaged = bytearray(content)
    used = [place for place, byte in enumerate(content) if byte]
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        place = rng.choice(used)
        width = rng.choice((1, 2, 4, 8, 8))
        start = place - place % width
        match rng.randrange(4):
            case 0:
                damaged[place] ^= 1 << rng.randrange(8)
                continue
            case 1:
                value = rng.choice((draw_integer(rng), place, len(content)))
            case 2:  # often an address of something else
                other = rng.choice(used)
                value = int.from_bytes(content[other - other % 8 :][:8], "little")
            case _:
                value = int.from_bytes(damaged[start : start + width], "little")
                value += rng.choice((-8, -1, 1, 8, 16, 96))
        damaged[start : start + width] = (value % 256**width).to_bytes(width, "little")
    return bytes(damaged)


def encode_keras(tensors: Sequence[Stored], rng: Random, *, broken: bool) -> bytes:
    """Return an archive of a configuration and a file of weights."""
    inner = broken and rng.random() < 0.5
    names = [draw_text(rng) if rng.random() < 0.1 else f"layer_{i}" for i in range(len(tensors))]
    config = encode_json(_draw_config(names, rng), rng if broken else None)
    entries = [
        Entry(b"metadata.json", b"{}"),
        Entry(b"config.json", damage_bytes(config, rng) if inner else config),
        Entry(
            b"model.weights.h5",
            encode_hdf5(tensors, rng, broken=inner),
            deflate=rng.random() < 0.4,
        ),
    ]
    return break_zip(entries, rng) if broken and not inner else encode_zip(entries)


def _to_array(tensor: Stored) -> np.ndarray:
    return np.frombuffer(tensor.data, _DTYPES[tensor.dtype]).reshape(tensor.shape)


def _make_name(text: str) -> str:
    """Return a text as HDF5 can have it as a name."""
    name = text.encode("utf-8", "replace").decode().replace("\0", "").strip("/").replace("//", "/")
    return "x" if name in ("", ".", "..") else name


def _write_dataset(group: h5py.Group, name: str, array: np.ndarray, rng: Random) -> None:
    options: dict[str, object] = {}
    if array.ndim and array.size and rng.random() < 0.3:
        options["chunks"] = tuple(rng.randrange(1, side + 1) for side in array.shape)
        options["compression"] = rng.choice((None, "gzip", "lzf"))
        options["shuffle"] = rng.random() < 0.3
        options["fletcher32"] = rng.random() < 0.3
    name = _make_name(name)
    try:
        item = group.create_dataset(name, data=array, **options)
        if array.dtype == "V2":
            item.attrs["dtype"] = "bfloat16"
    except (ValueError, TypeError, OSError):  # a name that is taken, a type without a filter
        group.require_group("other")


def _write_plain(file: h5py.File, tensors: Sequence[Stored], rng: Random) -> None:
    for tensor in tensors:
        name = tensor.name.replace(".", "/") if rng.random() < 0.3 else tensor.name
        _write_dataset(file, name, _to_array(tensor), rng)


def _write_listed(file: h5py.File, tensors: Sequence[Stored], rng: Random) -> None:
    """Write a file of Keras 2, with lists of layers and of their variables."""
    root = file.create_group("model_weights") if rng.random() < 0.5 else file
    names = []
    for place, tensor in enumerate(tensors):
        layer = rng.choice((f"dense_{place}", f"conv2d_{place}", f"block/conv_{place}"))
        variable = f"{rng.choice((layer, 'a'))}/{rng.choice(_VARIABLES)}:0"
        group = root.require_group(layer)
        _write_dataset(group, variable, _to_array(tensor), rng)
        group.attrs["weight_names"] = [variable.encode()]
        names.append(layer)
    for _ in range(rng.choice((0, 0, 2))):
        names.insert(rng.randrange(len(names) + 1), _make_name(draw_text(rng)))
    encoded = [name.encode() for name in names]
    if rng.random() < 0.3:
        root.attrs["layer_names0"], root.attrs["layer_names1"] = encoded[:1], encoded[1:]
    else:
        root.attrs["layer_names"] = np.array(encoded) if rng.random() < 0.5 and names else encoded
    root.attrs["keras_version"] = "2.4.0"
    if root is not file:
        config = encode_json(_draw_config(names, rng), rng).replace(b"\0", b"")
        file.attrs["model_config"] = config[:60_000].decode("utf-8", "replace")


def _write_numbered(file: h5py.File, tensors: Sequence[Stored], rng: Random) -> None:
    """Write a file of Keras 3, whose variables have numbers."""
    for place, tensor in enumerate(tensors):
        owner = rng.choice(("layers/dense", "layers/conv2d", "lstm/cell", "layers/gru", "block"))
        group = file.require_group(f"{owner}{rng.choice(('', f'_{place}'))}/vars")
        group.attrs["name"] = f"layer_{place}"
        _write_dataset(group, str(len(group)), _to_array(tensor), rng)
    if rng.random() < 0.3:
        file["optimizer/vars/0"] = np.zeros((3, 4), np.float32)


def _draw_config(names: Sequence[str], rng: Random) -> dict[str, object]:
    layers = []
    for name in names:
        inner: dict[str, object] = {"name": name, "equation": rng.choice(_EQUATIONS), "groups": 2}
        layer: dict[str, object] = {"class_name": rng.choice(_CLASSES), "config": inner}
        if rng.random() < 0.2:
            layer = {"class_name": "Bidirectional", "config": {"name": name, "layer": layer}}
        layers.append(layer)
    config: dict[str, object] = {
        "class_name": "Functional",
        "config": {"name": "m", "layers": layers},
    }
    for _ in range(rng.choice((0, 0, 1, 4))):
        mutate_json(config, rng)
    return config


def _write_hostile(file: h5py.File, rng: Random) -> None:
    """Add what leads out of the file, in circles, or to numbers that are not there."""
    name = f"{_make_name(draw_text(rng)).replace('/', '_')}{rng.randrange(99)}"
    kinds: Mapping[int, object] = {
        0: h5py.SoftLink(rng.choice(("/", f"/{name}", "missing", "."))),
        1: h5py.ExternalLink(f"../{OUTSIDE}/secret.bin", "/"),
        2: file,
        3: np.array([b"a", b"bc"], "S2"),
        4: h5py.Empty("f4"),
        5: np.zeros(3, [("a", "f4"), ("b", "i4")]),
    }
    side = abs(draw_integer(rng)) % 2**40 + 1
    choice = rng.randrange(11)
    if name in file:
        return
    if choice in kinds:
        file[name] = kinds[choice]
    elif choice == 6:
        file.create_dataset(name, (side, 4), "f4")
    elif choice == 7:
        step = min(side, 2**20)
        item = file.create_dataset(name, (side,), "f4", chunks=(step,), compression="gzip")
        item[:1] = 1.0
    elif choice == 8:
        layout = h5py.VirtualLayout((4, 4), "f4")
        layout[:] = h5py.VirtualSource(f"../{OUTSIDE}/secret.bin", "w", (4, 4))
        file.create_virtual_dataset(name, layout)
    elif choice == 9:
        place = [(f"../{OUTSIDE}/secret.bin", 0, 64)]
        file.create_dataset(name, (4, 4), "f4", external=place)
    else:
        file.create_dataset(name, data=[_make_name(draw_text(rng))], dtype=h5py.string_dtype())
