"""Claim: a 7 B model is probed in minutes on two cores and within 4 GB of memory.

The models have the shapes, types and shards of published ones; each weight is noise with a low-rank
part. `python -m benchmarks.language_models 7B` makes one, probes it, and adds its line to
benchmarks/language_models.json, from which the table is written. It takes 13.5 GB of disk
meanwhile. WeightWatcher's `analyze()` gets the layers of one block, in memory, on one thread, and
so does rankwise. The time of 70 B is projected: two of its 80 blocks were measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import rankwise
from benchmarks.timing import format_table, limit_threads, time_best
from benchmarks.whole_checkpoint import analyze, silence

_RECORDS = Path(__file__).with_suffix(".json")
_RANK = 32  # of the low-rank part
_PROJECTED = {"70B": 2}  # how many blocks are measured of a model that takes too long


@dataclass(frozen=True)
class Shapes:
    """The sizes of a decoder of LLaMA's kind."""

    width: int
    hidden: int
    keys: int  # the rows of the k and v projections
    blocks: int
    vocabulary: int = 32000

    def list_block(self) -> dict[str, tuple[int, int]]:
        """Return the layers of one block."""
        attention = {"q": self.width, "k": self.keys, "v": self.keys, "o": self.width}
        return {
            **{f"self_attn.{n}_proj": (rows, self.width) for n, rows in attention.items()},
            **{f"mlp.{n}_proj": (self.hidden, self.width) for n in ("gate", "up")},
            "mlp.down_proj": (self.width, self.hidden),
        }


MODELS = {
    "1.1B": Shapes(2048, 5632, 256, 22),  # TinyLlama
    "7B": Shapes(4096, 11008, 4096, 32),  # Llama 2 7B
    "70B": Shapes(8192, 28672, 1024, 80),  # Llama 2 70B
}


def make_model(shapes: Shapes, folder: Path, blocks: int) -> int:
    """Write a model in bfloat16, a shard per block; return its number of parameters."""
    weight_map: dict[str, str] = {}
    parameters = 0
    for number, shard in enumerate(_list_shards(shapes, blocks)):
        name = f"model-{number + 1:05}-of-{blocks + 2:05}.safetensors"
        tensors = {key: _make_weight(*sides) for key, sides in shard.items()}
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
        parameters += sum(tensor.numel() for tensor in tensors.values())
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return parameters


def _list_shards(shapes: Shapes, blocks: int) -> Iterator[dict[str, tuple[int, int]]]:
    if blocks == shapes.blocks:
        yield {"model.embed_tokens.weight": (shapes.vocabulary, shapes.width)}
    for block in range(blocks):
        layers = shapes.list_block().items()
        yield {f"model.layers.{block}.{name}.weight": sides for name, sides in layers}
    if blocks == shapes.blocks:
        yield {"lm_head.weight": (shapes.vocabulary, shapes.width)}


def _make_weight(rows: int, columns: int) -> Tensor:
    signal = torch.randn(rows, _RANK) @ torch.randn(_RANK, columns)
    return (0.02 * (torch.randn(rows, columns) + 0.3 * signal)).to(torch.bfloat16)


_PROBE = """
import json, sys, time, rankwise
start = time.perf_counter()
result = rankwise.probe(sys.argv[1])
seconds = time.perf_counter() - start
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
print(json.dumps({"seconds": seconds, "cpu": time.process_time(), "peak": peak,
                  "layers": len(result.probed)}))
"""


def measure(name: str) -> dict[str, Any]:
    """Make a model and probe it in a process of its own; of the largest, some blocks."""
    shapes = MODELS[name]
    blocks = _PROJECTED.get(name, shapes.blocks)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        parameters = make_model(shapes, folder, blocks)
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(folder)], check=True, capture_output=True, text=True
        )
    record: dict[str, Any] = json.loads(done.stdout)
    record |= {"parameters": parameters, "blocks": blocks, "cores": os.cpu_count()}
    if name not in _PROJECTED:
        record |= _compare(shapes)
    return record


def _compare(shapes: Shapes) -> dict[str, float]:
    """Time one block, against WeightWatcher, in one thread."""
    model = nn.Module()
    weights = {}
    for name, (rows, columns) in shapes.list_block().items():
        layer = nn.Linear(columns, rows, bias=False)
        weights[name] = _make_weight(rows, columns)
        layer.weight = nn.Parameter(weights[name].float(), requires_grad=False)
        model.add_module(name.replace(".", "_"), layer)
    with limit_threads(1), silence():
        best = time_best(
            {"ours": lambda: rankwise.probe(weights), "theirs": lambda: analyze(model)}, rounds=2
        )
    return {"block": best["ours"], "weightwatcher": best["theirs"]}


def run() -> str:
    """Return the table of all records."""
    rows = []
    for name, record in json.loads(_RECORDS.read_text()).items():
        ratio = record["weightwatcher"] / record["block"] if "block" in record else None
        factor = MODELS[name].blocks / record["blocks"]
        what = f"{name}, {record['layers'] * factor:.0f} layers"
        rows.append(
            (
                f"{what}, projected" if factor > 1 else what,
                f"{record['seconds'] * factor / 60:.1f} min",
                f"{record['cpu'] / record['seconds']:.2f} of {record['cores']}",
                f"{record['peak'] / 1024:.1f} GB",
                "" if ratio is None else f"{ratio:.1f}×",
            )
        )
    heads = ("model", "time", "cores used", "peak memory", "WeightWatcher, one block, one thread")
    return format_table(heads, rows)


def main(names: list[str]) -> None:
    """Measure models and keep their records."""
    records = json.loads(_RECORDS.read_text()) if _RECORDS.exists() else {}
    for name in names:
        start = time.perf_counter()
        records[name] = measure(name)
        ordered = {key: records[key] for key in MODELS if key in records}
        _RECORDS.write_text(json.dumps(ordered, indent=2) + "\n")
        print(f"{name}: {records[name]}, {time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
