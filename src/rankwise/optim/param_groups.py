"""Parameter groups by layer: every weight, with the biases and norms that follow it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import count
from typing import Any

from torch import Tensor, nn

from rankwise.errors import ArgumentError
from rankwise.weights.kinds import infer_kind, is_weight_matrix
from rankwise.weights.module import find_kinds

# The end of a name that torch.nn.utils.parametrize gives.
_ORIGINAL = re.compile(r"(^|\.)parametrizations\.\w+\.original\d*$")

# A parameter group of torch's.
Group = dict[str, Any]
Named = Iterable[tuple[str, Tensor]]
Member = tuple[str | None, Tensor]


def layer_groups(
    source: nn.Module | Named,
    *,
    by: str | re.Pattern[str] = "order",
    no_decay: Callable[[str, Tensor], bool] | None = None,
    **options: object,
) -> list[Group]:
    """Split a network's parameters into one parameter group per layer, for any optimizer.

    Args:
        source: A module, or its named parameters, in the model's order.
        by: "order": every weight matrix, convolution or stack of experts opens a layer, and the
            biases, norm scales and constants that follow belong to it. "name": the parameters of
            one module form a layer. Otherwise a regular expression: its match in a parameter's
            name, or its first group, names the layer; parameters without a match belong to the
            layer before.
        no_decay: Takes a name and a parameter and returns whether to leave it out of weight decay;
            such parameters get a group of their own with the same layer and rate.
        options: Options of the optimizer for every group, such as `weight_decay`.

    Returns:
        Groups for `torch.optim` and the like, with more entries: "name", unique; "layer", shared
        by the groups of a layer; and "kind", that of a group's first weight, as its module shows.

    Raises:
        ArgumentError: If there are no parameters.

    Example:
        >>> import torch, rankwise
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
        >>> groups = rankwise.layer_groups(net, weight_decay=0.1, no_decay=lambda n, p: p.ndim < 2)
        >>> [(g["name"], g["layer"], g["weight_decay"], g["param_names"]) for g in groups]
        [('0', '0', 0.1, ['0.weight']), ('0.bias', '0', 0.0, ['0.bias', '1.weight', '1.bias'])]
    """
    named = list(source.named_parameters() if isinstance(source, nn.Module) else source)
    if not named:
        raise ArgumentError("Expected a module or named parameters, got none.")
    layers = _name_layers(_split_by_order(named)) if by == "order" else _split_by_name(named, by)
    kinds = find_kinds(source) if isinstance(source, nn.Module) else {}
    groups: list[Group] = []
    for layer, members in layers:
        undecayed = [no_decay is not None and no_decay(name or "", p) for name, p in members]
        for without in (False, True):
            part = [m for m, flag in zip(members, undecayed, strict=True) if flag is without]
            if part:
                entries = {**_find_kind(part, kinds), **options}
                group = {**_make_group(part, layer, _group_names(groups)), **entries}
                groups.append({**group, "weight_decay": 0.0} if without else group)
    return groups


def _find_kind(members: Sequence[Member], kinds: Mapping[int, str]) -> dict[str, str]:
    """Return an entry for the kind of the first weight, if there is one."""
    name, param = next((m for m in members if is_weight(*m)), (None, None))
    if param is None:
        return {}
    return {"kind": kinds.get(id(param)) or infer_kind(name or "", tuple(param.shape))}


def split_group(group: Group, others: Sequence[Group]) -> list[Group]:
    """Split one parameter group of an optimizer into a group for each of its layers.

    A group with an entry "layer", as `layer_groups` makes them, stays whole. Vectors with a name
    join the layer of their module's weight if an earlier group has it: trainers pass weights with
    and vectors without decay in two groups. Vectors without names that match the earlier weights
    one by one are their biases and join them.
    """
    taken = _group_names(others) | {other["layer"] for other in others}
    if "layer" in group or not group["params"]:
        group.setdefault("layer", _make_unique("empty", taken))
        group.setdefault("name", _make_unique(group["layer"], _group_names(others)))
        return [group]
    options = {k: v for k, v in group.items() if k not in ("params", "param_names", "name")}
    prefix = f"{group['name']}/" if "name" in group else ""
    names = group.get("param_names") or [None] * len(group["params"])
    layers = _match_biases(group, others)
    if not layers:
        named = zip(names, group["params"], strict=True)
        layers = _split_by_order(named, _find_module_layers(others))
    parts: list[Group] = []
    for layer, members in _name_layers(layers, prefix, taken):
        parts.append({**options, **_make_group(members, layer, taken | _group_names(parts))})
    return parts


def list_layers(groups: Sequence[Group]) -> dict[str, list[int]]:
    """Return the layers of an optimizer: the name and the indices of the groups of each."""
    layers: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        layers.setdefault(group.get("layer", f"group{index}"), []).append(index)
    return layers


def is_weight(name: str | None, param: Tensor) -> bool:
    """Return whether a parameter opens a layer: a matrix, a convolution or a stack of matrices."""
    return is_weight_matrix(name or "", tuple(param.shape))


def select_weights(
    group: Group, include: Sequence[str] | None, exclude: Sequence[str] | None
) -> list[tuple[str, Tensor]]:
    """Return the weights of a group to measure; globs match a name or a kind of layer."""
    return split_params(group, include, exclude)[0]


def split_params(
    group: Group, include: Sequence[str] | None, exclude: Sequence[str] | None
) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    """Return the weights of a group to measure, and its other parameters, each with a name."""

    def matches(name: str, weight: Tensor, globs: Sequence[str]) -> bool:
        texts = (name, infer_kind(name, tuple(weight.shape)))
        return any(fnmatchcase(text, glob) for text in texts for glob in globs)

    weights: list[tuple[str, Tensor]] = []
    others: list[tuple[str, Tensor]] = []
    for name, param in name_params(group):
        is_measured = (
            is_weight(name, param)
            and (include is None or matches(name, param, include))
            and not (exclude and matches(name, param, exclude))
        )
        (weights if is_measured else others).append((name, param))
    return weights, others


def name_params(group: Group) -> Iterator[tuple[str, Tensor]]:
    """Return the parameters of a group, each with a name."""
    params, names = group["params"], group.get("param_names") or ()
    if len(names) == len(params):
        return zip(names, params, strict=True)
    several = sum(param.ndim >= 2 for param in params) > 1
    # ZeroRedundancyOptimizer leaves some of the parameters and all of the names; a weight is first.
    label = names[0] if names and not several else str(group.get("name", "weight"))
    return (
        (f"{label}[{i}]" if several or param.ndim < 2 else label, param)
        for i, param in enumerate(params)
    )


def _split_by_order(
    members: Iterable[Member], module_layers: Mapping[str, str] | None = None
) -> list[tuple[str | None, list[Member]]]:
    """Open a layer with every weight; biases, scales and the like join the one before.

    Where torch's parametrizations keep a module's weight in parts, the whole module is a layer:
    its bias comes before its weight there, and weight norm's lengths before its directions.
    """
    members = list(members)
    inside = {_module_path(name) for name, param in members if name and is_weight(name, param)}
    elsewhere = {m: layer for m, layer in (module_layers or {}).items() if m not in inside}
    new: list[tuple[str | None, list[Member]]] = []
    joined: dict[str, list[Member]] = {}
    parametrized = {
        _ORIGINAL.sub("", name) for name, _ in members if name and _ORIGINAL.search(name)
    }
    whole: dict[str, list[Member]] = {}  # the layers of parametrized modules
    for name, param in members:
        layer = elsewhere.get(_module_path(name)) if name and not is_weight(name, param) else None
        module = _module_path(_ORIGINAL.sub(".weight", name)) if name else None
        if layer is not None:
            joined.setdefault(layer, []).append((name, param))
        elif module in whole:
            whole[module].append((name, param))
        elif is_weight(name, param) or module in parametrized or not new:
            new.append((None, [(name, param)]))
            if module in parametrized:
                whole[module] = new[-1][1]
        else:
            new[-1][1].append((name, param))
    return [*new, *joined.items()]


def _match_biases(group: Group, others: Sequence[Group]) -> list[tuple[str | None, list[Member]]]:
    """Match vectors without names to the weights so far, one by one, by the number of outputs."""
    vectors, weights = group["params"], [param for other in others for param in other["params"]]
    outputs = [weight.shape[:1] if weight.ndim >= 2 else None for weight in weights]
    if "param_names" in group or [vector.shape for vector in vectors] != outputs:
        return []
    pairs = zip(others, vectors, strict=True)
    return [(other["layer"], [(None, vector)]) for other, vector in pairs]


def _name_layers(
    layers: Iterable[tuple[str | None, list[Member]]], prefix: str = "", taken: Collection[str] = ()
) -> Iterator[tuple[str, list[Member]]]:
    used = set(taken)
    for number, (existing, members) in enumerate(layers, start=len(used)):
        name, first = next((m for m in members if is_weight(*m)), members[0])
        title = f"layer{number}" if name is None else _ORIGINAL.sub("", name) or name
        title = title.removesuffix(".weight") if is_weight(name, first) else title
        layer = existing or _make_unique(prefix + title, used)
        used.add(layer)
        yield layer, members


def _split_by_name(named: Named, by: str | re.Pattern[str]) -> list[tuple[str, list[Member]]]:
    layers: dict[str, list[Member]] = {}
    current: str | None = None
    for name, param in named:
        if by == "name":
            current = _module_path(name) or name
        elif match := re.search(by, name):
            current = match.group(1) if match.re.groups else match.group(0)
        current = name if current is None else current
        layers.setdefault(current, []).append((name, param))
    return list(layers.items())


def _find_module_layers(groups: Sequence[Group]) -> dict[str, str]:
    """Return the layer that holds each module's weight, by the module's path."""
    return {
        _module_path(name): group["layer"]
        for group in groups
        for name, param in zip(group.get("param_names") or (), group["params"], strict=False)
        if is_weight(name, param)
    }


def _make_group(members: Sequence[Member], layer: str, taken: Collection[str]) -> Group:
    names = [name for name, _ in members if name is not None]
    has_weight = any(is_weight(*member) for member in members)
    group: Group = {
        "params": [param for _, param in members],
        "name": _make_unique(layer if has_weight or not names else names[0], taken),
        "layer": layer,
    }
    return {**group, "param_names": names} if names else group


def _module_path(name: str) -> str:
    return name.rpartition(".")[0]


def _group_names(groups: Sequence[Group]) -> set[str]:
    return {group["name"] for group in groups}


def _make_unique(title: str, taken: Collection[str]) -> str:
    numbered = (f"{title} ({i})" for i in count(2))
    return title if title not in taken else next(name for name in numbered if name not in taken)
