"""A model, a mapping or a path → named tensors."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd as _Convolution
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from rankwise.checkpoints import open_weights
from rankwise.checkpoints.nested import select_weights
from rankwise.errors import TargetError
from rankwise.probes.tensor import Weight, Weights

__all__ = ["Target", "weights_of"]

Target = nn.Module | Mapping[str, object] | str | os.PathLike[str]

# What DDP, torch.compile, FSDP and activation checkpointing put into parameters' names.
_WRAPPERS = re.compile(
    r"(?:^module\.)|(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)


def weights_of(target: Target, *, key: str | None = None) -> Weights:
    """All tensors of a model, state dict or file, by name, without wrappers' prefixes."""
    if isinstance(target, nn.Module):
        weights = Weights(_title(target), tuple(_module_tensors(target)))
    elif isinstance(target, Mapping):
        weights = _mapping_weights(target, key)
    elif isinstance(target, str | os.PathLike):
        weights = open_weights(target, key=key)
    else:
        raise TargetError(
            f"Expected a module, a mapping of tensors or a path, got {type(target).__name__}."
        )
    return dataclasses.replace(weights, tensors=_stripped(weights.tensors))


def _title(module: nn.Module) -> str:
    """The class of the network itself, not of what it is wrapped in."""
    for wrapper in ("_orig_mod", "module"):
        inner = getattr(module, wrapper, None)
        if isinstance(inner, nn.Module) and len(list(module.children())) == 1:
            return _title(inner)
    return type(module).__name__


def _module_tensors(module: nn.Module) -> Iterator[Weight]:
    """Parameters and buffers, each as often as it has a name, and parametrized ones as they act."""
    wholes: dict[str, str] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, chain in _parametrizations(part):
            wholes[f"{prefix}parametrizations.{name}"] = prefix + name
            yield _parametrized(prefix + name, chain)
        whole = next((n for stem, n in wholes.items() if prefix.startswith(f"{stem}.")), None)
        merged = None if whole is None else ("merged", f"part of {whole}")
        for name, tensor in _own_tensors(part):
            weight = described(prefix + name, tensor, _kind(part))
            yield dataclasses.replace(weight, obstacle=merged or weight.obstacle)


def _own_tensors(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from part.named_parameters(recurse=False, remove_duplicate=False)
    yield from part.named_buffers(recurse=False, remove_duplicate=False)


def _parametrizations(part: nn.Module) -> list[tuple[str, nn.Module]]:
    chains = part.parametrizations if parametrize.is_parametrized(part) else None
    return list(chains.items()) if isinstance(chains, nn.ModuleDict) else []


def _parametrized(name: str, chain: nn.Module) -> Weight:
    """The weight that a chain of parametrizations gives, computed on a copy of the chain.

    Computed on the original, spectral norm would take a step of its power iteration.
    """

    def load() -> Tensor:
        with torch.no_grad():
            result: Tensor = copy.deepcopy(chain).eval()()
        return result

    originals = [p for key, p in chain.named_parameters(recurse=False) if key.startswith("orig")]
    # weight norm keeps its length first and its direction, which has the weight's shape, second
    largest = max(originals, key=lambda p: p.numel())
    parameters = sum(p.numel() for p in originals)
    weight = described(name, largest.detach(), None)
    identity = tuple(id(p) for p in originals)
    return dataclasses.replace(weight, load=load, identity=identity, parameters=parameters)


def _kind(part: nn.Module) -> str | None:
    """What shape and name do not tell: transposed and depthwise convolutions, embeddings."""
    if isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if isinstance(part, _Convolution):
        transposed, depthwise = part.transposed, 1 < part.groups == part.in_channels
        how = "conv_transpose" if transposed else "depthwise" if depthwise else "conv"
        return f"{how}{len(part.kernel_size)}d"
    return None


def described(name: str, tensor: Tensor, kind: str | None = None) -> Weight:
    """What is known of a tensor in memory; where it can't be probed, why."""
    if is_lazy(tensor):
        obstacle = ("no data", "not initialised yet: run the model once")
        return Weight(name, (0,), tensor.dtype, tensor.detach, obstacle=obstacle)
    sharded = hasattr(tensor, "full_tensor")  # a DTensor: each process holds a piece
    return Weight(
        name,
        tuple(tensor.shape),
        tensor.dtype,
        lambda: _dense(tensor),
        identity=_identity(tensor),
        kind=kind,
        obstacle=_obstacle(tensor),
        alone=sharded,
    )


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):
        whole: Tensor = tensor.full_tensor()
        return whole
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _obstacle(tensor: Tensor) -> tuple[str, str] | None:
    if tensor.device.type == "meta":
        return "no data", "on the meta device: a shape without values"
    if tensor.is_quantized:
        return "quantised", f"stored in the quantised type {tensor.dtype}"
    if tensor.is_nested:
        return "unreadable", "a nested tensor has no one shape"
    return None


def _identity(tensor: Tensor) -> Hashable:
    """Equal for tensors on the same memory, transposed or not."""
    if tensor.layout is not torch.strided or hasattr(tensor, "full_tensor"):
        return id(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # subclasses without memory of their own
        return id(tensor)
    if address == 0 or tensor.numel() == 0:
        return None
    layout = tuple(sorted(zip(tensor.stride(), tensor.shape, strict=True)))
    return (str(tensor.device), address, layout, tensor.dtype)


def _mapping_weights(mapping: Mapping[str, object], key: str | None) -> Weights:
    chosen = select_weights(_with_tensors(mapping), key)
    tensors = tuple(described(name, tensor) for name, tensor in chosen.tensors)
    return Weights("state dict", tensors, chosen.notes)


def _with_tensors(mapping: Mapping[str, object]) -> dict[str, object]:
    """The mapping with its numpy arrays as tensors."""
    return {
        name: torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
        else value
        for name, value in mapping.items()
    }


def _stripped(tensors: Sequence[Weight]) -> tuple[Weight, ...]:
    """Without wrappers' prefixes, unless two names would become one."""
    names = [_WRAPPERS.sub("", weight.name) for weight in tensors]
    if len(set(names)) < len(names):
        return tuple(tensors)
    return tuple(
        dataclasses.replace(weight, name=name) for weight, name in zip(tensors, names, strict=True)
    )
