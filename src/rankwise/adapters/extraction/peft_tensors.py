"""The tensors of an adapter's file: their names in PEFT, types and shapes, and where they lie."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rankwise.checkpoints.safetensors import DTYPES
from rankwise.checkpoints.source import get_buffer
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from rankwise.adapters.extraction.extraction_plan import CopiedTensor, LayerPlan
    from rankwise.adapters.extraction.low_rank import Factors

_ROOT = "base_model.model"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8


class Spec(NamedTuple):
    """What is known of a tensor before its numbers."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def list_specs(layers: Sequence[LayerPlan], copied: Sequence[CopiedTensor]) -> dict[str, Spec]:
    """Return all tensors of an adapter by their names in its file."""
    specs = {}
    for layer in layers:
        if layer.rank:
            specs.update(_list_factors(layer))
    wrapped = find_wrapped(layers)
    for tensor in copied:
        specs[name_copied(tensor.name, wrapped)] = Spec(tensor.weight.dtype, tensor.shape)
    return specs


def find_wrapped(layers: Sequence[LayerPlan]) -> dict[str, str]:
    """Return the names that PEFT gives to the layers that it puts below a LoRA."""
    wrapped = {layer.module: f"{layer.module}.base_layer" for layer in layers if layer.rank}
    for layer in layers:
        if layer.rank and layer.form == "attention":
            inner = f"{layer.module}.base_layer.out_proj.base_layer"
            wrapped[f"{layer.module}.out_proj"] = inner
    return wrapped


def name_copied(name: str, wrapped: Mapping[str, str]) -> str:
    """Return the name of a tensor that is stored whole.

    Example:
        >>> name_copied("fc.bias", {"fc": "fc.base_layer"}), name_copied("norm.bias", {})
        ('base_model.model.fc.base_layer.bias', 'base_model.model.norm.bias')
    """
    owner, dot, last = name.rpartition(".")
    return f"{_ROOT}.{wrapped.get(owner, owner)}{dot}{last}"


def _list_factors(layer: LayerPlan) -> dict[str, Spec]:
    first, second = f"{_ROOT}.{layer.module}.", layer.shape
    rank, dtype = layer.rank, layer.dtype
    if layer.form == "embedding":
        return {
            f"{first}lora_embedding_A": Spec(dtype, (rank, second[0])),
            f"{first}lora_embedding_B": Spec(dtype, (second[1], rank)),
        }
    outputs, inputs = second[:2] if layer.form != "transposed" else second[::-1]
    ones = (1,) * (len(second) - 2)
    specs = {
        f"{first}lora_A.weight": Spec(dtype, (rank, inputs, *second[2:])),
        f"{first}lora_B.weight": Spec(dtype, (outputs, rank, *ones)),
    }
    if layer.form == "attention":
        inner = f"{first}base_layer.out_proj."
        specs[f"{inner}lora_A.weight"] = Spec(dtype, (rank, inputs))
        specs[f"{inner}lora_B.weight"] = Spec(dtype, (inputs, rank))
    return specs


def name_factors(layer: LayerPlan, factors: Factors) -> dict[str, Tensor]:
    """Return the factors of a layer's change, out × in, by their names and in PEFT's shapes."""
    # An embedding's outputs are its columns: B·A is the transposed change.
    is_embedding = layer.form == "embedding"
    second, first = (
        (factors.left.T, factors.right.T) if is_embedding else (factors.right, factors.left)
    )
    tensors = [second, first]
    specs = _list_factors(layer)
    if layer.form == "attention":
        # PEFT adds a change of the output projection twice (0.21), so there is none: B is zero.
        tensors += [second, torch.zeros(layer.shape[1], layer.rank)]
    pairs = zip(specs.items(), tensors, strict=True)
    return {name: tensor.reshape(spec.shape).to(spec.dtype) for (name, spec), tensor in pairs}


def count_bytes(specs: Mapping[str, Spec]) -> int:
    """Return the size of a safetensors file with these tensors.

    Example:
        >>> count_bytes({"a": Spec(torch.float32, (2, 3))})
        120
    """
    return len(_make_header(specs)[0]) + sum(spec.bytes for spec in specs.values())


def write_tensors(
    path: Path, specs: Mapping[str, Spec], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Write a safetensors file whose tensors come one after another, in any order.

    Args:
        path: The new file.
        specs: All tensors.
        tensors: Their names and numbers.

    Raises:
        CheckpointError: If a tensor is not as its spec says.
    """
    header, places = _make_header(specs)
    with path.open("xb") as file:
        file.write(header)
        for name, tensor in tensors:
            spec = specs[name]
            if (tensor.dtype, tuple(tensor.shape)) != spec:
                raise CheckpointError(f"{name}: changed while it was being read; try again.")
            file.seek(len(header) + places[name])
            numbers = tensor.detach().cpu().contiguous().reshape(-1)
            file.write(get_buffer(numbers.view(torch.uint8)) if spec.bytes else b"")
        file.flush()
        os.fsync(file.fileno())


def _make_header(specs: Mapping[str, Spec]) -> tuple[bytes, dict[str, int]]:
    """Return the start of the file, and where each tensor begins after it: wide types first."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    places, place = {}, 0
    for name in sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name)):
        spec = specs[name]
        end = place + spec.bytes
        entries[name] = {
            "dtype": _NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [place, end],
        }
        places[name], place = place, end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, places
