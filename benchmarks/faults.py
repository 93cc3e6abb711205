"""Faults that are injected into one layer of a healthy network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# How a fault changes a weight: (weight, a sibling of the same shape or None, generator) → weight.
Apply = Callable[[Tensor, Tensor | None, torch.Generator], Tensor | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to break a layer; `apply` returns None where it can't be applied."""

    name: str
    apply: Apply


def _reinitialise_uniform(w: Tensor, _: Tensor | None, g: torch.Generator) -> Tensor:
    """Draw what torch draws for linear layers and convolutions."""
    bound = w[0].numel() ** -0.5
    return (2 * torch.rand(w.shape, generator=g) - 1) * bound


def _reinitialise_normal(w: Tensor, _: Tensor | None, g: torch.Generator) -> Tensor:
    return torch.randn(w.shape, generator=g) * w.std()


def _flip_bit(bit: int) -> Apply:
    def flip(w: Tensor, _: Tensor | None, g: torch.Generator) -> Tensor:
        bits = w.clone().contiguous().view(torch.int32).flatten()
        place = int(torch.randint(len(bits), (1,), generator=g))
        mask = -(1 << 31) if bit == 31 else 1 << bit
        bits[place] ^= mask
        return bits.view(torch.float32).reshape(w.shape)

    return flip


def _kill(share: float) -> Apply:
    def kill(w: Tensor, _: Tensor | None, g: torch.Generator) -> Tensor | None:
        dead = round(share * len(w))
        if not dead:
            return None
        w = w.clone()
        w[torch.randperm(len(w), generator=g)[:dead]] = 0.0
        return w

    return kill


def _add_noise(deviations: float) -> Apply:
    def add(w: Tensor, _: Tensor | None, g: torch.Generator) -> Tensor:
        return w + deviations * w.std() * torch.randn(w.shape, generator=g)

    return add


def _scale(factor: float) -> Apply:
    return lambda w, _, __: w * factor


def _prune(w: Tensor, _: Tensor | None, __: torch.Generator) -> Tensor:
    limit = w.abs().flatten().kthvalue(max(1, int(0.9 * w.numel()))).values
    return torch.where(w.abs() > limit, w, 0.0)


def _round(w: Tensor, _: Tensor | None, __: torch.Generator) -> Tensor:
    """Round every filter to 16 levels, as 4-bit quantisation does."""
    step = w.abs().flatten(1).amax(1).clamp(min=1e-30) / 7.5
    shape = (-1, *[1] * (w.ndim - 1))
    return (w / step.view(shape)).round() * step.view(shape)


def _copy_sibling(_: Tensor, sibling: Tensor | None, __: torch.Generator) -> Tensor | None:
    return sibling


FAULTS = (
    Fault("re-initialised, torch's default", _reinitialise_uniform),
    Fault("re-initialised, normal of the same scale", _reinitialise_normal),
    Fault("zeroed", lambda w, _, __: torch.zeros_like(w)),
    Fault("one NaN", lambda w, _, g: _put_nan(w, g)),
    *(Fault(f"exponent bit {bit} flipped", _flip_bit(bit)) for bit in range(30, 22, -1)),
    Fault("mantissa bit 22 flipped", _flip_bit(22)),
    Fault("sign bit flipped", _flip_bit(31)),
    *(Fault(f"{share:.0%} of filters dead", _kill(share)) for share in (0.05, 0.25, 0.5, 0.9)),
    *(Fault(f"noise of {x:g} sd added", _add_noise(x)) for x in (0.1, 0.3, 1.0)),
    *(Fault(f"scaled ×{factor:g}", _scale(factor)) for factor in (10.0, 0.1, 1000.0)),
    Fault("a copy of a sibling", _copy_sibling),
    Fault("rounded to 4 bits", _round),
    Fault("90 % of weights pruned", _prune),
)


def _put_nan(w: Tensor, g: torch.Generator) -> Tensor:
    w = w.clone()
    w.view(-1)[int(torch.randint(w.numel(), (1,), generator=g))] = float("nan")
    return w
