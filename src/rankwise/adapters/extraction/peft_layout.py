"""Where PEFT can put a changed tensor: a LoRA, a module stored whole, or the tensor itself.

PEFT finds the modules of `target_modules` by the end of their names at a dot, and those of
`modules_to_save` by the end alone: "bn1" also means "layer1.0.bn1" and "mybn1".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from torch import nn

from rankwise.adapters.pairs import Pair
from rankwise.weights.kinds import infer_kind
from rankwise.weights.tensor import Status, Weight

# What a LoRA is put on; "transposed" is GPT-2's Conv1D, stored as in × out; "attention" the stacked
# q, k and v of nn.MultiheadAttention.
Form = Literal["linear", "transposed", "embedding", "convolution", "attention"]

_CONVOLUTIONS = (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
_PLAIN = re.compile(r"[\w.]+", re.ASCII)


def find_lora_form(pair: Pair, module: nn.Module | None = None) -> Form | None:
    """Return what kind of layer PEFT sees in a weight, None where it can't put a LoRA on it.

    Args:
        pair: The weight in both networks.
        module: The module that owns it, where that is known; else name and shape must tell.
    """
    if pair.name.endswith(".in_proj_weight"):
        return _find_attention(pair, module)
    if not pair.name.removesuffix(".weight") or not pair.name.endswith(".weight"):
        return None
    if pair.tuned.squeezed:
        return None
    if module is not None:
        return _find_form_of_module(module)
    weight = pair.tuned
    if weight.obstacle is not None and weight.obstacle[0] is Status.NOT_A_WEIGHT:
        return None
    kind = weight.kind or pair.base.kind or infer_kind(pair.name, weight.shape)
    if kind == "embedding" and len(weight.shape) == 2:
        return "embedding"
    if kind == "linear" and len(weight.shape) == 2:
        return "transposed" if pair.output_axis == 1 else "linear"
    # One channel per filter may be a depthwise convolution, to which PEFT can't merge a LoRA.
    is_plain = kind in ("conv1d", "conv2d", "conv3d") and weight.shape[1] > 1
    return "convolution" if is_plain and pair.output_axis == 0 else None


def _find_attention(pair: Pair, module: nn.Module | None) -> Form | None:
    """Return "attention" for a stack of q, k and v of one width."""
    shape = pair.tuned.shape
    is_stack = len(shape) == 2 and shape[0] == 3 * shape[1]
    is_torch = module is None or type(module) is nn.MultiheadAttention
    return "attention" if is_stack and is_torch else None


def _find_form_of_module(module: nn.Module) -> Form | None:
    if isinstance(module, nn.Embedding):
        # One with a forward of its own, as BART's positions, may take other inputs than PEFT's.
        is_own = type(module).forward is not nn.Embedding.forward
        return None if is_own and not hasattr(module, "embed_scale") else "embedding"
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return "transposed"
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return None  # of nn.MultiheadAttention, which never calls it
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        # PEFT merges no grouped ones, and its factors know neither dilation nor padding modes.
        is_plain = module.groups == 1 and set(module.dilation) == {1}
        is_plain = is_plain and type(module).forward in _CONVOLUTIONS
        return "convolution" if is_plain and module.padding_mode == "zeros" else None
    return None


def find_special(weights: Sequence[Weight]) -> Iterator[str]:
    """Yield weights that can't have a LoRA of their own, as far as other tensors tell.

    nn.MultiheadAttention never calls its output projection. A grouped convolution shows only by its
    few inputs: fewer than any layer before it has outputs, or as many as divide those of the layer
    right before it, which then has the same width. A transposed one has a bias per column.

    Example:
        >>> import torch
        >>> from rankwise.weights.module import describe_tensor
        >>> shapes = {"a.weight": (32, 3, 3, 3), "b.weight": (32, 8, 3, 3)}
        >>> list(find_special([describe_tensor(n, torch.zeros(s)) for n, s in shapes.items()]))
        ['b.weight']
    """
    shapes = {weight.name: weight.shape for weight in weights}
    outputs: list[int] = []
    for weight in weights:
        parent = weight.name.removesuffix("out_proj.weight")
        stacked = {f"{parent}in_proj_weight", f"{parent}q_proj_weight"}
        if parent != weight.name and stacked & shapes.keys():
            yield weight.name
        if len(weight.shape) not in (3, 4, 5) or not weight.name.endswith(".weight"):
            continue
        count, inputs = weight.shape[:2]
        bias = shapes.get(f"{weight.name.removesuffix('weight')}bias", (count,))
        has_width = bool(outputs) and outputs[-1] == count and inputs < count
        is_wide = max(weight.shape[2:]) > 1
        is_grouped = is_wide and has_width and count % inputs == 0
        if is_grouped or bias != (count,) or inputs < min(outputs, default=0):
            yield weight.name
        outputs.append(count)


def make_lora_options(ranks: Mapping[str, int], modules: Iterable[str]) -> dict[str, Any]:
    """Return options of `peft.LoraConfig`: which modules, and r = α of each.

    PEFT takes names as the ends of modules' names: where one means another module too, the modules
    are given as one regular expression.

    Args:
        ranks: The rank of each module.
        modules: All modules of the network.

    Example:
        >>> make_lora_options({"a.fc": 4, "b.fc": 4, "c.fc": 2}, [])["rank_pattern"]
        {'c.fc': 2}
        >>> make_lora_options({"fc": 4}, ["fc", "a.fc"])["target_modules"]
        '(fc)'
    """
    counts = Counter(ranks.values())
    usual = max(counts, key=lambda rank: (counts[rank], -rank))
    known = list(modules)
    meant = {name: _list_others(name, known) for name in ranks}
    # PEFT takes the first key that matches the end of a name. Those that another one matches too
    # need a key and come first: longer ones, and those with fewer dots, which match any sign.
    others = {name for name, rank in ranks.items() if rank != usual}
    others |= {other for name in list(others) for other in meant[name] if other in ranks}
    pattern = {escape(name): ranks[name] for name in sorted(others, key=_rate_pattern)}
    is_ambiguous = any(meant.values())
    return {
        "r": usual,
        "lora_alpha": usual,
        "target_modules": make_regex(ranks) if is_ambiguous else list(ranks),
        "rank_pattern": pattern,
        "alpha_pattern": dict(pattern),
    }


def _rate_pattern(name: str) -> tuple[int, int, str]:
    return -len(name), name.count("."), name


def _list_others(name: str, modules: Sequence[str]) -> list[str]:
    """Return the other modules whose names end as this one does, for PEFT's patterns."""
    ending = re.compile(rf"(.*\.)?({escape(name)})$")
    return [other for other in modules if other != name and ending.match(other)]


def make_regex(modules: Iterable[str]) -> str:
    """Return one regular expression that matches the names of these modules and no others."""
    return f"({'|'.join(map(re.escape, modules))})"


def escape(name: str) -> str:
    r"""Return a name as a pattern; older versions of PEFT also look a plain one up as it is.

    Example:
        >>> print(escape("h.0.fc"), escape("h.(0)"))
        h.0.fc h\.\(0\)
    """
    return name if _PLAIN.fullmatch(name) else re.escape(name)


def list_modules(tensors: Iterable[str]) -> dict[str, set[str]]:
    """Return all modules that hold tensors, each with the names of its own ones.

    Example:
        >>> sorted(list_modules(["a.fc.weight", "a.scale"]).items())
        [('a', {'scale'}), ('a.fc', {'weight'})]
    """
    modules: dict[str, set[str]] = defaultdict(set)
    for tensor in tensors:
        owner, _, last = tensor.rpartition(".")
        modules[owner].add(last)
        while owner:
            owner = owner.rpartition(".")[0]
            modules[owner] |= set()
    modules.pop("", None)
    return dict(modules)


def choose_saved_modules(
    wanted: Sequence[str], modules: Iterable[str], adapted: Iterable[str]
) -> list[str]:
    """Return the modules to store whole: those wanted, and others that PEFT takes them to mean.

    A module can't be stored so if it, or one that its name means too, holds other modules or gets
    a LoRA.

    Args:
        wanted: Modules with changed tensors.
        modules: All modules of the network.
        adapted: Modules with a LoRA.

    Example:
        >>> choose_saved_modules(["bn1"], ["bn1", "a", "a.bn1", "fc"], ["fc"])
        ['bn1', 'a.bn1']
    """
    known, lora = list(modules), set(adapted)
    parents = {module.rpartition(".")[0] for module in known}
    chosen: dict[str, None] = {}
    for module in wanted:
        meant = [other for other in known if other.endswith(module)]
        closed = {other for name in meant for other in known if other.endswith(name)}
        if not _PLAIN.fullmatch(module) or closed != set(meant) or closed & (parents | lora):
            continue
        excluded = re.compile(rf"(^|.*\.){module}($|\..*)")  # as PEFT has it: dots match all
        if not any(excluded.match(name) for name in lora):
            chosen.update(dict.fromkeys([module, *meant]))
    return list(chosen)
