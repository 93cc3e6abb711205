"""Which parameters form a layer: every weight, with the biases and norms that follow it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import count
from typing import Any

from torch import Tensor, nn

from rankwise.errors import ArgumentError
from rankwise.numerics.unfold import kind_of

__all__ = ["Group", "layer_groups", "layers_of", "split_group", "weights_in"]

# The end of a name that torch.nn.utils.parametrize gives.
_PARTS = re.compile(r"(^|\.)parametrizations\.\w+\.original\d*$")

# What torch calls a parameter group.
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
    """Splits a network's parameters into one parameter group a layer, for any optimizer.

    Args:
        source: A module, or its named parameters, in the model's order.
        by: "order": every tensor with two or more dimensions opens a layer, and those with fewer
            that follow belong to it. "name": the parameters of one module form a layer. Otherwise
            a regular expression: what it finds in a parameter's name, or its first group, names
            the layer; parameters in which it finds nothing belong to the layer before.
        no_decay: Says of a name and a parameter whether weight decay is to spare it; such
            parameters get a group of their own with the same layer and rate.
        options: Options of the optimizer that every group is to have, as `weight_decay`.

    Returns:
        Groups for `torch.optim` and its like, with two more entries: "name", unique, and "layer",
        shared by the groups of a layer.

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
    groups: list[Group] = []
    for layer, members in _titled(_by_order(named)) if by == "order" else _by_name(named, by):
        spared = [no_decay is not None and no_decay(name or "", p) for name, p in members]
        for without in (False, True):
            part = [m for m, is_spared in zip(members, spared, strict=True) if is_spared is without]
            if part:
                group = {**_group(part, layer, _names(groups)), **options}
                groups.append({**group, "weight_decay": 0.0} if without else group)
    return groups


def split_group(group: Group, others: Sequence[Group]) -> list[Group]:
    """Splits one parameter group of an optimizer into a group for each of its layers.

    A group that says itself which layer it is, as those of `layer_groups`, stays whole. Vectors
    with a name join the layer of their module's weight, if an earlier group has it: trainers hand
    over weights with and vectors without decay in two groups. Without names, vectors that can only
    be the biases of earlier weights join those.
    """
    taken = _names(others) | {other["layer"] for other in others}
    if "layer" in group or not group["params"]:
        group.setdefault("layer", _unique("empty", taken))
        group.setdefault("name", _unique(group["layer"], _names(others)))
        return [group]
    options = {k: v for k, v in group.items() if k not in ("params", "param_names", "name")}
    prefix = f"{group['name']}/" if "name" in group else ""
    names = group.get("param_names") or [None] * len(group["params"])
    layers = _biases(group, others)
    if not layers:
        layers = _by_order(zip(names, group["params"], strict=True), _homes(others))
    parts: list[Group] = []
    for layer, members in _titled(layers, prefix, taken):
        parts.append({**options, **_group(members, layer, taken | _names(parts))})
    return parts


def layers_of(groups: Sequence[Group]) -> dict[str, list[int]]:
    """The layers of an optimizer: each one's name, and which groups it consists of."""
    layers: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        layers.setdefault(group.get("layer", f"group{index}"), []).append(index)
    return layers


def weights_in(
    group: Group, include: Sequence[str] | None, exclude: Sequence[str] | None
) -> list[tuple[str, Tensor]]:
    """The weights of a group that are to be probed; globs match a name or a kind of layer."""

    def matches(name: str, weight: Tensor, globs: Sequence[str]) -> bool:
        called = (name, kind_of(name, tuple(weight.shape)))
        return any(fnmatchcase(text, glob) for text in called for glob in globs)

    return [
        (name, weight)
        for name, weight in _named_members(group)
        if weight.ndim >= 2
        and (include is None or matches(name, weight, include))
        and not (exclude and matches(name, weight, exclude))
    ]


def _named_members(group: Group) -> Iterator[tuple[str, Tensor]]:
    params, names = group["params"], group.get("param_names") or ()
    if len(names) == len(params):
        return zip(names, params, strict=True)
    several = sum(param.ndim >= 2 for param in params) > 1
    # ZeroRedundancyOptimizer leaves some of the parameters and all of the names; a weight is first.
    label = names[0] if names and not several else str(group.get("name", "weight"))
    return ((f"{label}[{i}]" if several else label, param) for i, param in enumerate(params))


def _by_order(
    members: Iterable[Member], homes: Mapping[str, str] | None = None
) -> list[tuple[str | None, list[Member]]]:
    """A tensor of two or more dimensions opens a layer, smaller ones join the one before.

    Where torch's parametrizations keep a module's weight in parts, all of the module is a layer:
    its bias comes before its weight there, and weight norm's lengths before its directions.

    Returns:
        The layers in their order, each with its name if it exists already, and its members.
    """
    members = list(members)
    inside = {_module(name) for name, param in members if name and param.ndim >= 2}
    elsewhere = {m: home for m, home in (homes or {}).items() if m not in inside}
    new: list[tuple[str | None, list[Member]]] = []
    joined: dict[str, list[Member]] = {}
    in_parts = {_PARTS.sub("", name) for name, _ in members if name and _PARTS.search(name)}
    whole: dict[str, list[Member]] = {}  # their layers
    for name, param in members:
        home = elsewhere.get(_module(name)) if name and param.ndim < 2 else None
        module = _module(_PARTS.sub(".weight", name)) if name else None
        if home is not None:
            joined.setdefault(home, []).append((name, param))
        elif module in whole:
            whole[module].append((name, param))
        elif param.ndim >= 2 or module in in_parts or not new:
            new.append((None, [(name, param)]))
            if module in in_parts:
                whole[module] = new[-1][1]
        else:
            new[-1][1].append((name, param))
    return [*new, *joined.items()]


def _biases(group: Group, others: Sequence[Group]) -> list[tuple[str | None, list[Member]]]:
    """Vectors without names as biases: one for each weight so far, with as many outputs.

    Returns:
        Each one's layer, as `_by_order` does; nothing where they don't match one by one.
    """
    vectors, weights = group["params"], [param for other in others for param in other["params"]]
    outputs = [weight.shape[:1] if weight.ndim >= 2 else None for weight in weights]
    if "param_names" in group or [vector.shape for vector in vectors] != outputs:
        return []
    pairs = zip(others, vectors, strict=True)
    return [(other["layer"], [(None, vector)]) for other, vector in pairs]


def _titled(
    layers: Iterable[tuple[str | None, list[Member]]], prefix: str = "", taken: Collection[str] = ()
) -> Iterator[tuple[str, list[Member]]]:
    """The layers with names that no other has."""
    used = set(taken)
    for number, (home, members) in enumerate(layers, start=len(used)):
        name, first = next((m for m in members if m[1].ndim >= 2), members[0])
        title = f"layer{number}" if name is None else _PARTS.sub("", name) or name
        title = title.removesuffix(".weight") if first.ndim >= 2 else title
        layer = home or _unique(prefix + title, used)
        used.add(layer)
        yield layer, members


def _by_name(named: Named, by: str | re.Pattern[str]) -> list[tuple[str, list[Member]]]:
    layers: dict[str, list[Member]] = {}
    current: str | None = None
    for name, param in named:
        if by == "name":
            current = _module(name) or name
        elif found := re.search(by, name):
            current = found.group(1) if found.re.groups else found.group(0)
        current = name if current is None else current
        layers.setdefault(current, []).append((name, param))
    return list(layers.items())


def _homes(groups: Sequence[Group]) -> dict[str, str]:
    """Where each module's weight is: the module's path → its layer."""
    return {
        _module(name): group["layer"]
        for group in groups
        for name, param in zip(group.get("param_names") or (), group["params"], strict=False)
        if param.ndim >= 2
    }


def _group(members: Sequence[Member], layer: str, taken: Collection[str]) -> Group:
    names = [name for name, _ in members if name is not None]
    has_weight = any(param.ndim >= 2 for _, param in members)
    group: Group = {
        "params": [param for _, param in members],
        "name": _unique(layer if has_weight or not names else names[0], taken),
        "layer": layer,
    }
    return {**group, "param_names": names} if names else group


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _names(groups: Sequence[Group]) -> set[str]:
    return {group["name"] for group in groups}


def _unique(title: str, taken: Collection[str]) -> str:
    numbered = (f"{title} ({i})" for i in count(2))
    return title if title not in taken else next(name for name in numbered if name not in taken)
