# ruff: noqa: S311 - damage needn't be unpredictable
"""Every format by name: a seed → the files of one mutated input, always the same for a seed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.distributed_files import encode_distributed
from tests.fuzz.gguf_files import encode_gguf
from tests.fuzz.hdf5_files import encode_hdf5, encode_keras
from tests.fuzz.layouts import ADAPTERS, PLAIN, QUANTISED, STACKS, Layout
from tests.fuzz.numpy_files import encode_broken_npy, encode_npz, encode_odd_npy
from tests.fuzz.onnx_models import EXTERNAL, damage_wire, draw_model, mutate_model
from tests.fuzz.safetensors_files import (
    draw_metadata,
    encode_broken_safetensors,
    encode_safetensors,
)
from tests.fuzz.saved_probes import encode_saved_probe
from tests.fuzz.tensors import Stored, mutate_tensors
from tests.fuzz.torch_files import encode_torch_legacy, encode_torch_zip
from tests.fuzz.values import (
    OUTSIDE,
    damage_bytes,
    draw_json,
    draw_text,
    encode_json,
    mutate_json,
)


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class Pipe:
    """A named pipe, which blocks whoever opens it."""


@dataclass(frozen=True)
class Folder:
    """An empty folder."""


Content = bytes | Link | Pipe | Folder


@dataclass(frozen=True)
class Case:
    """The files of one input, and which of them is opened; "" is the folder itself."""

    files: Mapping[str, Content]
    target: str


_BROKEN = 0.5  # the share of inputs whose file is damaged beside its tensors


def _draw_tensors(layouts: Sequence[Layout], rng: Random) -> tuple[list[Stored], dict[str, object]]:
    tensors, config = rng.choice(layouts)(rng)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        tensors = mutate_tensors(tensors, rng)
    return tensors, config


def _make_safetensors(rng: Random) -> Case:
    tensors, _ = _draw_tensors(PLAIN, rng)
    if rng.random() < _BROKEN:
        content = encode_broken_safetensors(tensors, rng)
    else:
        content = encode_safetensors(tensors, draw_metadata(tensors, rng))
    return Case({"w.safetensors": content}, "w.safetensors")


def _make_torch_zip(rng: Random) -> Case:
    tensors, _ = _draw_tensors(PLAIN, rng)
    content = encode_torch_zip(tensors, rng, broken=rng.random() < _BROKEN)
    name = rng.choice(("w.pt", "w.pt", "w.bin", "w.safetensors"))
    return Case({name: content}, name)


def _make_torch_legacy(rng: Random) -> Case:
    tensors, _ = _draw_tensors(PLAIN, rng)
    content = encode_torch_legacy(tensors, rng, broken=rng.random() < _BROKEN)
    return Case({"w.pt": content}, "w.pt")


def _make_npz(rng: Random) -> Case:
    tensors, _ = _draw_tensors(PLAIN, rng)
    return Case({"w.npz": encode_npz(tensors, rng, broken=rng.random() < _BROKEN)}, "w.npz")


def _make_npy(rng: Random) -> Case:
    tensor = _draw_tensors(PLAIN, rng)[0][0]
    encode = encode_broken_npy if rng.random() < _BROKEN else encode_odd_npy
    return Case({"w.npy": encode(tensor, rng)}, "w.npy")


def _make_onnx(rng: Random) -> Case:
    model, data = draw_model(rng)
    broken = rng.random() < _BROKEN
    for _ in range(rng.choice((1, 2, 4)) if broken else rng.choice((0, 1))):
        mutate_model(model, rng)
    content = model.SerializePartialToString()
    if broken and rng.random() < 0.6:
        content = damage_wire(content, rng)
    files: dict[str, Content] = {"w.onnx": content}
    if data:
        files[EXTERNAL] = damage_bytes(data, rng) if broken and rng.random() < 0.3 else data
    if rng.random() < 0.2:
        files |= {"link": Link(f"../{OUTSIDE}/secret.bin"), "fifo": Pipe()}
    return Case(files, "w.onnx")


def _make_gguf(rng: Random) -> Case:
    tensors, _ = _draw_tensors(PLAIN, rng)
    return Case({"w.gguf": encode_gguf(tensors, rng, broken=rng.random() < _BROKEN)}, "w.gguf")


def _make_hdf5(rng: Random) -> Case:
    tensors, _ = _draw_tensors(PLAIN, rng)
    return Case({"w.h5": encode_hdf5(tensors, rng, broken=rng.random() < _BROKEN)}, "w.h5")


def _make_keras(rng: Random) -> Case:
    tensors, _ = _draw_tensors(PLAIN, rng)
    return Case({"w.keras": encode_keras(tensors, rng, broken=rng.random() < _BROKEN)}, "w.keras")


def _mutate_config(config: dict[str, object], rng: Random) -> Content:
    if rng.random() < 0.5:
        return encode_json(config)
    for _ in range(rng.choice((1, 2, 4))):
        mutate_json(config, rng)
    match rng.randrange(12):
        case 0:
            return encode_json(draw_json(rng), rng)
        case 1:
            return damage_bytes(encode_json(config), rng)
        case 2:
            return rng.choice((Link(f"../{OUTSIDE}/config.json"), Folder(), Pipe(), b"", b"\xff"))
    return encode_json(config, rng)


def _make_layout(layouts: Sequence[Layout], rng: Random, *, adapter: bool = False) -> Case:
    """Return a folder with one safetensors file and its configuration."""
    tensors, config = _draw_tensors(layouts, rng)
    broken = rng.random() < 0.35
    encode = encode_broken_safetensors if broken else None
    content = encode(tensors, rng) if encode else encode_safetensors(tensors, {"format": "pt"})
    name = "adapter_model.safetensors" if adapter else "model.safetensors"
    files: dict[str, Content] = {
        name: content,
        "adapter_config.json" if adapter else "config.json": _mutate_config(config, rng),
    }
    quantisation = config.get("quantization_config")
    if isinstance(quantisation, dict) and rng.random() < 0.3:
        files["quantize_config.json"] = _mutate_config(quantisation, rng)
    return Case(files, rng.choice(("", name)))


def _make_folder(rng: Random) -> Case:
    """Return a folder of shards with an index, or of whatever else lies in folders."""
    tensors, config = _draw_tensors((*PLAIN, *STACKS), rng)
    count = rng.choice((1, 2, 3))
    torch_shards = rng.random() < 0.3
    ending, stem = ("bin", "pytorch_model") if torch_shards else ("safetensors", "model")
    names = [f"{stem}-{i + 1:05}-of-{count:05}.{ending}" for i in range(count)]
    shards: list[list[Stored]] = [tensors[i::count] for i in range(count)]
    files: dict[str, Content] = {}
    for name, shard in zip(names, shards, strict=True):
        broken = rng.random() < 0.08
        if torch_shards:
            files[name] = encode_torch_zip(shard, rng, broken=broken)
        else:
            encode = encode_broken_safetensors if broken else None
            files[name] = encode(shard, rng) if encode else encode_safetensors(shard)
    places: dict[str, object] = {
        tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
    }
    index: dict[str, object] = {"metadata": {"total_size": 1}, "weight_map": places}
    index_name = f"{stem}.{ending}.index.json"
    if rng.random() < 0.4:
        _mutate_index(index, places, index_name, rng)
    files[index_name] = encode_json(index, rng if rng.random() < 0.2 else None)
    files["config.json"] = _mutate_config(config, rng)
    if rng.random() < 0.25:
        _mutate_folder(files, index_name, rng)
    # Whoever names a link means the file behind it; links inside a folder are another matter.
    by_name = isinstance(files.get(index_name), bytes) and rng.random() < 0.3
    return Case(files, index_name if by_name else "")


def _mutate_index(
    index: dict[str, object], places: dict[str, object], index_name: str, rng: Random
) -> None:
    names = (index_name, "config.json", "link.safetensors", "fifo", ".", draw_text(rng))
    if places and rng.random() < 0.6:
        places[rng.choice(list(places))] = rng.choice(names)
    if rng.random() < 0.4:
        places[draw_text(rng)] = rng.choice((*names, rng.choice(list(places) or [""])))
    if rng.random() < 0.4:
        mutate_json(index, rng)


def _mutate_folder(files: dict[str, Content], index_name: str, rng: Random) -> None:
    name = rng.choice(list(files))
    content = files[name]
    match rng.randrange(8):
        case 0:
            del files[name]
        case 1:
            files[name] = rng.choice((Folder(), Pipe(), b"", Link(name), Link("/dev/zero")))
        case 2:
            files[name] = Link(f"../{OUTSIDE}/model.safetensors")
        case 3 if isinstance(content, bytes):
            files[name] = damage_bytes(content, rng)
        case 4:
            files.pop(index_name, None)
        case 5:
            files.pop(index_name, None)
            tag = rng.choice(
                (b"../" + OUTSIDE.encode(), b".", b"x", draw_text(rng).encode("utf-8", "replace"))
            )
            files["latest"] = rng.choice((tag, Pipe(), Folder(), Link(f"../{OUTSIDE}")))
            files |= {"snapshots": Link(f"../{OUTSIDE}"), "refs": Link("/"), "iter_1": Link("..")}
        case 6:
            files["saved_model.pb"] = b""
            files[rng.choice(("model.safetensors", "b.npz", "optimizer.pt"))] = content
        case _:
            files |= {"link.safetensors": Link(f"../{OUTSIDE}/model.safetensors"), "fifo": Pipe()}


def _make_distributed(rng: Random) -> Case:
    """Return a folder of torch.distributed.checkpoint."""
    tensors, config = _draw_tensors((*PLAIN, *STACKS), rng)
    broken = rng.random() < 0.6
    files: dict[str, Content] = dict(encode_distributed(tensors, rng, broken=broken))
    files["config.json"] = _mutate_config(config, rng)
    files |= {"link": Link(f"../{OUTSIDE}/secret.bin"), "fifo": Pipe()}
    if broken and rng.random() < 0.15:
        name = rng.choice([name for name in files if name.startswith(("__", "."))])
        content = files[name]
        assert isinstance(content, bytes)
        other = (Folder(), Pipe(), b"", b"{}", Link(f"../{OUTSIDE}/secret.bin"), Link(name))
        files[name] = rng.choice((damage_bytes(content, rng), *other))
    return Case(files, "")


def _make_saved_probe(rng: Random) -> Case:
    return Case({"p.json": encode_saved_probe(rng, broken=rng.random() < _BROKEN)}, "p.json")


FORMATS: Mapping[str, Callable[[Random], Case]] = {
    "safetensors": _make_safetensors,
    "torch-zip": _make_torch_zip,
    "torch-legacy": _make_torch_legacy,
    "npz": _make_npz,
    "npy": _make_npy,
    "onnx": _make_onnx,
    "gguf": _make_gguf,
    "hdf5": _make_hdf5,
    "keras": _make_keras,
    "folder": _make_folder,
    "distributed": _make_distributed,
    "quantised": lambda rng: _make_layout(QUANTISED, rng),
    "adapter": lambda rng: _make_layout(ADAPTERS, rng, adapter=True),
    "stack": lambda rng: _make_layout(STACKS, rng),
    "saved-probe": _make_saved_probe,
}


def make_case(name: str, seed: int) -> Case:
    """Return the input of a format and a seed."""
    return FORMATS[name](Random(f"{name}:{seed}"))


# Some time ago: a reader waits for the clock's next tick where a file has just been written.
_WRITTEN = (1_000_000_000, 1_000_000_000)


def write_case(case: Case, folder: Path) -> Path:
    """Write the files of an input to an empty folder; return the path to open."""
    for name, content in case.files.items():
        path = folder / name
        match content:
            case bytes():
                path.write_bytes(content)
                os.utime(path, _WRITTEN)
            case Link(target):
                path.symlink_to(target)
            case Pipe():
                os.mkfifo(path)
            case Folder():
                path.mkdir()
    return folder / case.target if case.target else folder


def empty_folder(folder: Path) -> None:
    """Remove what `write_case` wrote."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
