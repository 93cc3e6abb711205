"""Shrink a LoRA: the least rank of each layer whose error is a given share of ‖Δ‖².

A LoRA's change s·B·A has exactly rank r or less, so EVBMF finds no noise in it and keeps all of it
(METHOD §10). What can be left out is the part that adds next to nothing.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rankwise._text import format_count, format_name, quote
from rankwise.adapters.stored.lora_folder import LoraFolder, get_module_name, open_lora
from rankwise.adapters.stored.peft_folder import write_peft_folder
from rankwise.adapters.stored.resized_config import make_config, make_readme
from rankwise.errors import ArgumentError, CheckpointError, NotFiniteError
from rankwise.numerics.thin_product import (
    ThinProduct,
    decompose_product,
    find_least_rank,
    measure_difference,
)
from rankwise.weights.tensor import LoraFactors, Weight

DEFAULT_ERROR = 0.01
Pair = tuple[Tensor, Tensor]  # A and B, as they are stored


@dataclass(frozen=True, slots=True)
class ResizedLayer:
    """A layer of an adapter before and after.

    Attributes:
        name: The module in the base.
        shape: Of the change, outputs × inputs.
        rank: r before.
        new_rank: r after; 0 if the layer changes nothing and is left out.
        scale: α/r, or α/√r for rsLoRA; the same before and after.
        norm: ‖ΔW‖ before.
        kept: The share of ‖ΔW‖² that is kept, 1 − ‖ΔW − ΔW'‖²/‖ΔW‖², measured on the factors as
            they are stored; 1 for a layer that changes nothing.
        old_bytes, new_bytes: Of its two factors.
        note: Why it is kept as it is, where it is.
    """

    name: str
    shape: tuple[int, int]
    rank: int
    new_rank: int
    scale: float
    norm: float
    kept: float
    old_bytes: int
    new_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Resizing:
    """An adapter with lower ranks, ready to be written.

    Attributes:
        folder: What was read.
        layers: All layers, those that are left out as well.
        factors: The new A and B by the names that they are stored under.
        error: The share of ‖ΔW‖² that each layer may lose.
    """

    folder: LoraFolder
    layers: tuple[ResizedLayer, ...]
    factors: Mapping[str, Tensor]
    error: float

    def __repr__(self) -> str:
        sizes = f"{self.old_bytes} bytes to {self.new_bytes}"
        layers = format_count(len(self.layers), "layer")
        return f"<Resizing of {quote(self.source)}: {layers}, {sizes}, {self.kept:.2%} kept>"

    @property
    def source(self) -> str:
        """The path of the adapter that was read."""
        return self.folder.source

    @property
    def carried_bytes(self) -> int:
        """The size of tensors that are no factors, and stay as they are."""
        return sum(math.prod(w.shape) * w.dtype.itemsize for w in self.folder.others)

    @property
    def old_bytes(self) -> int:
        """The size of all tensors before."""
        return sum(layer.old_bytes for layer in self.layers) + self.carried_bytes

    @property
    def new_bytes(self) -> int:
        """The size of all tensors after."""
        return sum(layer.new_bytes for layer in self.layers) + self.carried_bytes

    @property
    def kept(self) -> float:
        """The share of Σ‖ΔW‖² over all layers that is kept."""
        total = math.fsum(layer.norm**2 for layer in self.layers)
        lost = math.fsum((1 - layer.kept) * layer.norm**2 for layer in self.layers)
        return 1 - lost / total if total else 1.0

    @property
    def left_out(self) -> tuple[ResizedLayer, ...]:
        """The layers that change nothing."""
        return tuple(layer for layer in self.layers if layer.new_rank == 0)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the factors as plain types."""
        return {
            "source": self.source,
            "error": self.error,
            "old_bytes": self.old_bytes,
            "new_bytes": self.new_bytes,
            "kept": self.kept,
            "layers": [asdict(layer) for layer in self.layers],
        }


def resize_adapter(
    source: str | os.PathLike[str],
    *,
    error: float = DEFAULT_ERROR,
    max_rank: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Resizing:
    """Choose the least rank of each layer of a LoRA; nothing is written yet.

    The ranks come from the QR decompositions of the factors; their product is never formed.

    Args:
        source: The folder that PEFT has saved, or hf://org/name.
        error: The share of a layer's ‖ΔW‖² that may be lost, at least 0 and below 1.
        max_rank: No layer gets more than this, though it may lose more then.
        progress: Called with the number of layers done, and of all.

    Raises:
        ArgumentError: If an option is out of range.
        CheckpointError: If this is no LoRA of PEFT, or one that can't be resized.
        NotFiniteError: If a factor holds NaN or infinity.

    Example:
        >>> import json, pathlib, tempfile, torch
        >>> from safetensors.torch import save_file
        >>> from rankwise.adapters import resize_adapter, write_resized
        >>> _ = torch.manual_seed(0)
        >>> b, a = torch.randn(64, 1) @ torch.ones(1, 8), torch.randn(8, 32)
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = pathlib.Path(name)
        ...     factors = {"base_model.model.fc.lora_A.weight": a}
        ...     factors |= {"base_model.model.fc.lora_B.weight": b}
        ...     save_file(factors, folder / "adapter_model.safetensors")
        ...     config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["fc"]}
        ...     _ = (folder / "adapter_config.json").write_text(json.dumps(config))
        ...     resized = resize_adapter(folder)
        ...     write_resized(resized, folder / "small")
        ...     saved = json.loads((folder / "small" / "adapter_config.json").read_text())
        >>> [(layer.name, layer.rank, layer.new_rank) for layer in resized.layers]
        [('fc', 8, 1)]
        >>> saved["r"], saved["lora_alpha"], resized.old_bytes, resized.new_bytes
        (1, 2, 3072, 384)
    """
    if isinstance(error, bool) or not isinstance(error, int | float) or not 0 <= error < 1:
        raise ArgumentError(f"Expected an error of at least 0 and below 1, got {error!r}.")
    if max_rank is not None and (isinstance(max_rank, bool) or max_rank < 1):
        raise ArgumentError(f"Expected a max_rank of at least 1, got {max_rank!r}.")
    folder = open_lora(source)
    layers: dict[str, ResizedLayer] = {}
    factors: dict[str, Tensor] = {}
    groups = _group_layers(folder)
    for place, group in enumerate(groups):
        for layer, resized, pair in _resize_group(folder, group, float(error), max_rank):
            layers[layer.down.name] = resized
            if resized.new_rank:
                factors |= dict(zip((layer.down.name, layer.up.name), pair, strict=True))
        if progress is not None:
            progress(place + 1, len(groups))
    for down, up in folder.grouped:
        layers[down.name], pair = _keep_grouped(folder, down, up)
        factors |= dict(zip((down.name, up.name), pair, strict=True))
    if not factors:
        raise CheckpointError(
            f"{folder.source}: all layers are zero, as before training; nothing is left to write."
        )
    return Resizing(folder, tuple(layers.values()), factors, float(error))


def write_resized(resizing: Resizing, folder: str | os.PathLike[str]) -> None:
    """Write a resized adapter as a new PEFT folder, or nothing.

    Raises:
        ArgumentError: If the folder holds files, is the input, or its parent is missing.
        OSError: If it can't be written.
    """
    carried = {other.name: other.load() for other in resizing.folder.others}
    ranks = {layer.name: layer.new_rank for layer in resizing.layers}
    scales = {layer.name: layer.scale for layer in resizing.layers}
    write_peft_folder(
        folder,
        make_config(resizing.folder.config, ranks, scales),
        {**resizing.factors, **carried},
        make_readme(resizing.folder, resizing.to_dict()),
        inputs=[resizing.source],
    )


def _group_layers(folder: LoraFolder) -> list[list[LoraFactors]]:
    """Put layers together that PEFT gives one rank: an attention's, and its output projection's."""
    groups: dict[str, list[LoraFactors]] = defaultdict(list)
    for layer in folder.layers:
        groups[layer.module.split(".base_layer.")[0]].append(layer)
    return list(groups.values())


def _resize_group(
    folder: LoraFolder, group: Sequence[LoraFactors], error: float, max_rank: int | None
) -> list[tuple[LoraFactors, ResizedLayer, Pair]]:
    """Return the layers with their new factors; those of one group get the same rank."""
    products = [_decompose(layer) for layer in group]
    rank = max(find_least_rank(product.values.numpy(), error) for product in products)
    whole = min(layer.rank for layer in group)
    limit = min(whole, max_rank or whole)
    # A bias or a norm of a layer needs the layer, and a layer has a rank of at least 1.
    if rank == 0 and any(folder.list_stored(layer.module) for layer in group):
        rank = 1
    step = 1
    while True:
        rank = min(rank, limit)
        found = [
            _truncate(layer, product, rank) for layer, product in zip(group, products, strict=True)
        ]
        if rank in (0, limit) or all(1 - resized.kept <= error for resized, _ in found):
            return [(layer, *one) for layer, one in zip(group, found, strict=True)]
        # Rounding the factors took what was left of the error.
        rank, step = rank + step, 2 * step
        if rank > min(len(product.values) for product in products):
            rank = limit


def _decompose(layer: LoraFactors) -> ThinProduct:
    try:
        return decompose_product(*layer.load())
    except NotFiniteError as problem:
        raise NotFiniteError(
            f"{format_name(layer.module)}: {problem}; go back to an earlier checkpoint."
        ) from problem


def _truncate(layer: LoraFactors, product: ThinProduct, rank: int) -> tuple[ResizedLayer, Pair]:
    """Return a layer of this rank, its factors rounded to the type of the old ones."""
    old = layer.load()
    norm = float(torch.linalg.vector_norm(product.values))
    lost = 0.0
    if rank == layer.rank:
        b, a = old
    elif norm == 0:
        b, a = torch.zeros_like(old[0][:, :rank]), old[1][:rank]
    else:
        sides = [float(torch.linalg.vector_norm(side.double())) for side in old]
        new = product.truncate(rank, sides[0] / sides[1])
        b, a = (side.to(like.dtype) for side, like in zip(new, old, strict=True))
        lost = (measure_difference(old, (b, a)) / norm) ** 2
    scale = layer.compute_scale()
    resized = ResizedLayer(
        get_module_name(layer.module),
        (old[0].shape[0], old[1].shape[1]),
        layer.rank,
        rank,
        scale,
        abs(scale) * norm,
        1 - lost,
        _count_bytes(old),
        _count_bytes((b, a)),
    )
    down = a.reshape(rank, *layer.down.shape[1:])
    up = b.reshape(layer.up.shape[0], rank, *layer.up.shape[2:])
    return resized, (down.contiguous(), up.contiguous())


def _keep_grouped(folder: LoraFolder, down: Weight, up: Weight) -> tuple[ResizedLayer, Pair]:
    """Return a grouped convolution as it is: its rank serves several products."""
    a, b = down.load(), up.load()
    parts = a.shape[0] // b.shape[1]
    pairs = zip(b.flatten(1).chunk(parts), a.flatten(1).chunk(parts), strict=True)
    norms = [float(torch.linalg.vector_norm(decompose_product(*pair).values)) for pair in pairs]
    module = down.name.rpartition(".lora_A.")[0]
    scale = folder.compute_scale(module, a.shape[0])
    size = _count_bytes((a, b))
    resized = ResizedLayer(
        get_module_name(module),
        (b.shape[0], math.prod(a.shape[1:])),
        a.shape[0],
        a.shape[0],
        scale,
        scale * math.hypot(*norms),
        1.0,
        size,
        size,
        "grouped convolution, kept as it is",
    )
    return resized, (a, b)


def _count_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
