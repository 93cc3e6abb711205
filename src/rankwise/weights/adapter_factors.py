"""Adapters: thin factors → the change of a weight that they make.

LoRA and AdaLoRA store B and A, LoHa two such pairs whose products are multiplied entry by entry,
LoKr two matrices of which it takes the Kronecker product. The singular values of the change follow
from the factors (METHOD §10); the product is formed only if it is loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankwise.errors import NotFiniteError
from rankwise.weights.adapter_scale import compute_scale
from rankwise.weights.parts import Context, Rule, Whole, join_parts
from rankwise.weights.tensor import Array, LoraFactors, Weight

_FACTOR = re.compile(
    r"(?P<base>.*?)[._]?"
    r"(?P<factor>lora[._](embedding_)?(?P<lora>[AB]|down|up)|hada_w1_a|lokr_w[12](_a)?)"
    r"(?P<adapter>\.(?!weight$)\w+)?(?P<end>\.weight)?",
    re.DOTALL,
)
_DORA = "DoRA: the factors alone, without the new norms of the weight's columns"
_MAX_NAME = 2000


class _Names(NamedTuple):
    """The names of an adapter's tensors for one layer."""

    base: str
    factor: str
    adapter: str  # as in ".default", where several adapters are in memory
    end: str

    def find(self, context: Context, factor: str) -> Weight | None:
        """Return another tensor of the same adapter."""
        start = f"{self.base}." if self.base else ""
        for name in (f"{start}{factor}{self.adapter}{self.end}", f"{start}{factor}{self.adapter}"):
            weight = context.by_name.get(name)
            if weight is not None and weight.obstacle is None and weight.dtype.is_floating_point:
                return weight
        return None

    def make_name(self, kind: str) -> str:
        """Return the name of the change that the adapter makes."""
        return ".".join(filter(None, (self.base, kind + self.adapter)))


class _Scale(NamedTuple):
    """What the product of the factors is multiplied by: a number, times a tensor's where stored."""

    factor: float
    alpha: Weight | None = None

    is_known: bool = True

    def compute(self) -> float:
        """Return the number."""
        return self.factor * (
            1.0 if self.alpha is None else float(self.alpha.load().reshape(-1)[0])
        )


class _Change(NamedTuple):
    """The change of a weight, before it is scaled."""

    kind: str
    factors: tuple[Weight, ...]
    shape: tuple[int, int]
    rank: int  # r, that the scale α/r is divided by
    load: Callable[[], Tensor]
    compute_values: Callable[[], Array]


def _load(factor: Weight) -> Tensor:
    tensor = factor.load().detach().double()
    if not bool(torch.isfinite(tensor).all()):
        raise NotFiniteError(f"{factor.name} holds NaN or infinity")
    return tensor


def _is_factor(weight: Weight) -> bool:
    return len(weight.shape) >= 2 and weight.obstacle is None and weight.dtype.is_floating_point


def _match_factor(weight: Weight) -> _Names | None:
    if not _is_factor(weight) or len(weight.name) > _MAX_NAME:
        return None
    match = _FACTOR.fullmatch(weight.name)
    if match is None:
        return None
    return _Names(match["base"], match["factor"], match["adapter"] or "", match["end"] or "")


def _match_lora(weight: Weight, context: Context) -> Whole | None:
    """`lora_A`, `lora_B`: s·B·A; with AdaLoRA's `lora_E`: s·B·diag(E)·A."""
    names = _match_factor(weight)
    if names is None or not names.factor.endswith(("A", "down")):
        return None
    twin = names.factor[:-1] + "B" if names.factor.endswith("A") else names.factor[:-4] + "up"
    joined = weight.name.rpartition(names.factor)  # kohya joins base and factor by "_"
    other = context.by_name.get(f"{joined[0]}{twin}{joined[2]}")
    if other is None or not _is_factor(other) or math.prod(other.shape[1:]) != weight.shape[0]:
        return None
    diagonal = names.find(context, "lora_E")
    if diagonal is not None and math.prod(diagonal.shape) != weight.shape[0]:
        return None
    factors = (weight, other) if diagonal is None else (weight, other, diagonal)

    def get_factors() -> tuple[Tensor, Tensor]:
        a, b, *rest = (_load(part).flatten(1) for part in factors)
        return b, a * rest[0].reshape(-1, 1) if rest else a

    shape = (other.shape[0], math.prod(weight.shape[1:]))
    change = _multiply("lora", factors, shape, weight.shape[0], get_factors)
    return _finish(change, names, context)


def _match_loha(weight: Weight, context: Context) -> Whole | None:
    """`hada_w1_a` … `hada_w2_b`: s·(w1_a·w1_b)∘(w2_a·w2_b), with cores `hada_t1`, `hada_t2`."""
    names = _match_factor(weight)
    if names is None or names.factor != "hada_w1_a":
        return None
    w1_b, w2_a, w2_b, t1, t2 = (
        names.find(context, f"hada_{name}") for name in ("w1_b", "w2_a", "w2_b", "t1", "t2")
    )
    if w1_b is None or w2_a is None or w2_b is None:
        return None
    if not all(map(_is_factor, (w1_b, w2_a, w2_b))):
        return None
    pairs = (weight, w1_b, w2_a, w2_b)
    if t1 is not None and t2 is not None:
        change = _multiply_cores((*pairs, t1, t2))
    else:
        change = _multiply_pairs(pairs)
    return None if change is None else _finish(change, names, context)


def _multiply_pairs(parts: tuple[Weight, Weight, Weight, Weight]) -> _Change | None:
    a, b, c, d = (part.shape for part in parts)
    if (a[0], a[1:], b[1:], c[1:]) != (c[0], b[:1], d[1:], d[:1]):
        return None

    def get_factors() -> tuple[Tensor, Tensor]:
        a, b, c, d = (_load(part).flatten(1) for part in parts)
        # (ab)∘(cd) is the product of all pairs of columns and all pairs of rows.
        left = (a[:, :, None] * c[:, None, :]).flatten(1)
        right = (b[:, None, :] * d[None, :, :]).flatten(0, 1)
        return left, right

    return _multiply("loha", parts, (a[0], math.prod(b[1:])), a[1], get_factors)


def _multiply_cores(parts: tuple[Weight, ...]) -> _Change | None:
    """Multiply two triples of factors, each with a core for the kernel of a convolution."""
    a, b, c, d, s, t = (part.shape for part in parts)
    fits = all(
        len(core) > 2 and core[:2] == (left[0], right[0]) and len(left) == len(right) == 2
        for core, left, right in ((s, a, b), (t, c, d))
    )
    if not fits or (a[1], b[1], s[2:]) != (c[1], d[1], t[2:]):
        return None

    def load() -> Tensor:
        a, b, c, d, s, t = (_load(part) for part in parts)
        return _expand(s, a, b) * _expand(t, c, d)

    def compute_values() -> Array:
        return torch.linalg.svdvals(load()).numpy()

    shape = (a[1], b[1] * math.prod(s[2:]))
    return _Change("loha", parts, shape, a[0], load, compute_values)


def _expand(core: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Multiply the first two sides of a core by factors; the others become columns."""
    return torch.einsum("ijz,ip,jr->prz", core.flatten(2), left, right).flatten(1)


def _match_lokr(weight: Weight, context: Context) -> Whole | None:
    """`lokr_w1` or `lokr_w1_a`·`lokr_w1_b`, the same for w2: s·(w1 ⊗ w2)."""
    names = _match_factor(weight)
    if names is None or not names.factor.startswith("lokr_"):
        return None
    sides = [_find_side(names, context, side) for side in ("w1", "w2")]
    if sides[0] is None or sides[1] is None:
        return None
    first, second = sides[0], sides[1]
    parts = (*first.parts, *second.parts)
    factors = [part.shape for part in parts if re.search("_w[12]_a", part.name[-_MAX_NAME:])]
    rank = min(factors[-1]) if factors else _find_rank(context)

    def compute_values() -> Array:
        values = [torch.linalg.svdvals(side.get_matrix()).numpy() for side in (first, second)]
        return np.multiply.outer(*values).ravel()

    def load() -> Tensor:
        return torch.kron(first.get_matrix(), second.get_matrix())

    shape = (first.shape[0] * second.shape[0], first.shape[1] * second.shape[1])
    return _finish(_Change("lokr", parts, shape, rank, load, compute_values), names, context)


class _Side(NamedTuple):
    """One of the two matrices of a Kronecker product."""

    parts: tuple[Weight, ...]
    shape: tuple[int, int]
    get_matrix: Callable[[], Tensor]


def _find_side(names: _Names, context: Context, side: str) -> _Side | None:
    """Return w1 or w2, whole or as a product of two or three factors."""
    whole = names.find(context, f"lokr_{side}")
    if whole is not None and len(whole.shape) >= 2:
        shape = (whole.shape[0], math.prod(whole.shape[1:]))
        return _Side((whole,), shape, lambda: _load(whole).flatten(1))
    a, b, core = (names.find(context, f"lokr_{name}") for name in (f"{side}_a", f"{side}_b", "t2"))
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) < 2:
        return None
    if core is not None and side == "w2":
        if core.shape[:2] != (a.shape[0], b.shape[0]) or len(b.shape) != 2:
            return None
        shape = (a.shape[1], b.shape[1] * math.prod(core.shape[2:]))

        def get_expanded() -> Tensor:
            return _expand(*(_load(part) for part in (core, a, b)))

        return _Side((a, b, core), shape, get_expanded)
    if a.shape[1] != b.shape[0]:
        return None

    def get_product() -> Tensor:
        return _load(a) @ _load(b).flatten(1)

    return _Side((a, b), (a.shape[0], math.prod(b.shape[1:])), get_product)


def _multiply(
    kind: str,
    factors: tuple[Weight, ...],
    shape: tuple[int, int],
    rank: int,
    get_factors: Callable[[], tuple[Tensor, Tensor]],
) -> _Change:
    """Return the change B·A."""

    def compute_values() -> Array:
        b, a = get_factors()
        right = torch.linalg.qr(a.T, mode="r").R
        left = torch.linalg.qr(b, mode="r").R
        return torch.linalg.svdvals(left @ right.T).numpy()

    def load() -> Tensor:
        return torch.matmul(*get_factors())

    return _Change(kind, factors, shape, rank, load, compute_values)


def _finish(change: _Change, names: _Names, context: Context) -> Whole:
    """Return the scaled change as a weight."""
    scale = _find_scale(names, context, change.rank)
    others = tuple(part for part in _list_others(names, context) if part not in change.factors)
    is_dora = any("magnitude" in part.name or "dora" in part.name for part in others)
    joined = join_parts(
        names.make_name(change.kind), change.factors, change.load, shape=change.shape
    )
    down, up, *rest = change.factors
    factors = LoraFactors(names.base, down, up, (*rest, *others), scale.compute, scale.is_known)
    weight = replace(
        joined,
        kind=change.kind,
        dtype=torch.float32,
        load=lambda: change.load() * scale.compute(),
        load_rows=None,
        singular_values=lambda: change.compute_values() * abs(scale.compute()),
        factors=factors if change.kind == "lora" else None,
        note=_DORA if is_dora else "",
    )
    stored = () if scale.alpha is None else (scale.alpha,)
    return Whole(weight, (*change.factors, *stored, *others))


def _list_others(names: _Names, context: Context) -> Iterator[Weight]:
    """Yield what else an adapter stores: DoRA's norms, the number of ranks."""
    for name in ("lora_magnitude_vector", "dora_scale", "ranknum", "rank_num", "scale"):
        for end in (names.end, ".weight", ""):
            weight = context.by_name.get(f"{names.base}.{name}{names.adapter}{end}")
            if weight is not None:
                yield weight
                break


def _find_scale(names: _Names, context: Context, rank: int) -> _Scale:
    """Return α/r, or α/√r for rsLoRA; 1 where α is not known."""
    rank = max(rank, 1)  # of factors without numbers
    alpha = context.by_name.get(f"{names.base}.alpha")
    if alpha is not None and math.prod(alpha.shape) == 1 and alpha.dtype.is_floating_point:
        return _Scale(1 / rank, alpha)
    config = context.config.get("adapter_config")
    value = None if context.alphas is None else context.alphas.find(names.base)
    if value is None or not isinstance(config, Mapping):
        return _Scale(1.0, is_known=False)
    return _Scale(compute_scale(value, rank, rslora=config.get("use_rslora") is True))


def _find_rank(context: Context) -> int:
    """Return r as the configuration says, where no factor shows it."""
    config = context.config.get("adapter_config")
    rank = config.get("r") if isinstance(config, Mapping) else None
    return rank if type(rank) is int and rank > 0 else 1


ADAPTER_RULES: tuple[Rule, ...] = (_match_lora, _match_loha, _match_lokr)
