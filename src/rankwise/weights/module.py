"""A module, or a tensor in memory → named tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd as _Convolution
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from rankwise.weights.quantised.memory import describe_quantised
from rankwise.weights.tensor import Status, Weight, Weights


def describe_module(module: nn.Module) -> Weights:
    """Describe all parameters and buffers of a module."""
    tensors = tuple(_list_tensors(module))
    return Weights(_class_name(module), tensors, config=_read_config(module))


def _read_config(module: nn.Module) -> dict[str, object]:
    """Return the configuration that a model of transformers or diffusers carries."""
    adapter = _read_adapter(module)
    config = getattr(module, "config", None)
    to_dict = getattr(config, "to_dict", None)
    if callable(to_dict):
        config = to_dict()
    elif config is not None and not isinstance(config, Mapping):
        config = {**vars(type(config)), **getattr(config, "__dict__", {})}
    return {**(config if isinstance(config, Mapping) else {}), **adapter}


def _read_adapter(module: nn.Module) -> dict[str, object]:
    """Return the options of PEFT's adapter; of several, none are those of all layers."""
    configs = getattr(module, "peft_config", None)
    if not isinstance(configs, Mapping) or len(configs) != 1:
        return {}
    to_dict = getattr(next(iter(configs.values())), "to_dict", None)
    return {"adapter_config": to_dict()} if callable(to_dict) else {}


def _class_name(module: nn.Module) -> str:
    """Return the class of the network itself, not of its wrappers."""
    for wrapper in ("_orig_mod", "module"):
        inner = getattr(module, wrapper, None)
        if isinstance(inner, nn.Module) and len(list(module.children())) == 1:
            return _class_name(inner)
    return type(module).__name__


def _list_tensors(module: nn.Module) -> Iterator[Weight]:
    """Yield every tensor once per name; parametrized ones as the network computes with them."""
    wholes: dict[str, str] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, chain in _list_parametrizations(part):
            wholes[f"{prefix}parametrizations.{name}"] = prefix + name
            yield _describe_parametrized(prefix + name, chain, _find_kind(part, name))
        whole = next((n for stem, n in wholes.items() if prefix.startswith(f"{stem}.")), None)
        merged = None if whole is None else (Status.MERGED, f"part of {whole}")
        for name, tensor in _list_own_tensors(part):
            kind = "constant" if _is_constant(part, name, tensor) else _find_kind(part, name)
            weight = describe_tensor(prefix + name, tensor, kind, _find_row_scale(part, tensor))
            yield replace(
                weight,
                output_axis=1 if _is_gpt2_layer(part) else weight.output_axis,
                obstacle=merged or weight.obstacle,
            )


def _list_own_tensors(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from part.named_parameters(recurse=False, remove_duplicate=False)
    yield from part.named_buffers(recurse=False, remove_duplicate=False)


def _list_parametrizations(part: nn.Module) -> list[tuple[str, nn.Module]]:
    chains = part.parametrizations if parametrize.is_parametrized(part) else None
    return list(chains.items()) if isinstance(chains, nn.ModuleDict) else []


def _describe_parametrized(name: str, chain: nn.Module, kind: str | None) -> Weight:
    """Describe the weight that a chain of parametrizations computes.

    It is computed on a copy of the chain: on the original, spectral norm would take a step of its
    power iteration.
    """

    def load() -> Tensor:
        with torch.no_grad():
            result: Tensor = copy.deepcopy(chain).eval()()
        return result

    originals = [p for key, p in chain.named_parameters(recurse=False) if key.startswith("orig")]
    # Weight norm stores a length first and then a direction, which has the weight's shape.
    largest = max(originals, key=lambda p: p.numel())
    parameters = sum(p.numel() for p in originals)
    weight = describe_tensor(name, largest.detach(), kind)
    identity = tuple(id(p) for p in originals)
    return replace(weight, load=load, identity=identity, parameters=parameters)


def _is_constant(part: nn.Module, name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is a table that is not trained; weights may be buffers too."""
    is_table = name in part._buffers and tensor.ndim > 1 and tensor.is_floating_point()
    return is_table and "weight" not in name


def _is_gpt2_layer(part: nn.Module) -> bool:
    return type(part).__name__ == "Conv1D" and hasattr(part, "nf")  # of transformers


def _find_kind(part: nn.Module, name: str) -> str | None:
    """Return the kind that shape and name do not show: transposed, depthwise, embedding."""
    if name != "weight":
        return None
    if isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if isinstance(part, nn.Bilinear):
        return "stack"
    if isinstance(part, _Convolution):
        transposed, depthwise = part.transposed, 1 < part.groups == part.in_channels
        how = "conv_transpose" if transposed else "depthwise" if depthwise else "conv"
        return f"{how}{len(part.kernel_size)}d"
    return None


def find_kinds(module: nn.Module) -> dict[int, str]:
    """Return the kinds that modules show and names may not, by the id of their weight.

    Example:
        >>> layer = nn.Embedding(10, 4)
        >>> find_kinds(layer)[id(layer.weight)]
        'embedding'
    """
    kinds: dict[int, str] = {}
    for part in module.modules():
        weight = getattr(part, "weight", None)
        kind = _find_kind(part, "weight")
        if kind is not None and isinstance(weight, Tensor):
            kinds.setdefault(id(weight), kind)  # a tied weight is what its first module is
    return kinds


def _find_row_scale(part: nn.Module, tensor: Tensor) -> object:
    """Return the scale of int8 codes that bitsandbytes moves from the tensor to its module."""
    return (
        getattr(getattr(part, "state", None), "SCB", None) if tensor.dtype == torch.int8 else None
    )


def describe_tensor(
    name: str, tensor: Tensor, kind: str | None = None, row_scale: object = None
) -> Weight:
    """Describe a tensor in memory, with the reason where it can't be probed."""
    if is_lazy(tensor):
        obstacle = (Status.NO_DATA, "not initialised yet: run the model once")
        return Weight(name, (0,), tensor.dtype, tensor.detach, obstacle=obstacle)
    weight = Weight(
        name,
        tuple(tensor.shape),
        tensor.dtype,
        lambda: _load_dense(tensor),
        identity=_find_identity(tensor),
        kind=kind,
        output_axis=int((kind or "").startswith("conv_transpose")),
        obstacle=_find_obstacle(tensor),
        collective=_is_sharded(tensor),
        load_rows=_find_row_loader(tensor),
    )
    return describe_quantised(weight, tensor, row_scale)


def _find_row_loader(tensor: Tensor) -> Callable[[int, int], Tensor] | None:
    if tensor.layout is not torch.strided or _is_sharded(tensor) or tensor.ndim == 0:
        return None
    return lambda start, count: tensor.detach().narrow(0, start, count)


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor: each process holds a shard


def _load_dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if _is_sharded(tensor):
        full: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
        return full
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _find_obstacle(tensor: Tensor) -> tuple[Status, str] | None:
    if tensor.device.type == "meta":
        return Status.NO_DATA, "on the meta device: a shape without values"
    if tensor.is_nested:
        return Status.UNREADABLE, "a nested tensor has no single shape"
    return None


def _find_identity(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tensors on the same memory, transposed or not."""
    if tensor.layout is not torch.strided or _is_sharded(tensor):
        return id(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # subclasses without memory of their own
        return id(tensor)
    if address == 0 or tensor.numel() == 0:
        return None
    layout = tuple(sorted(zip(tensor.stride(), tensor.shape, strict=True)))
    return (str(tensor.device), address, layout, tensor.dtype)
