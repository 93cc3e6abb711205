"""A pair of tensors → what changed: its size, its singular values, whether it is only rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.adapters.pairs import Pair, subtract
from rankwise.numerics.evbmf import LowRank, factorise
from rankwise.numerics.spectrum import CHUNK, Spectrum

# Types that weights are converted to, from the finest to the coarsest.
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_PREVIEW = 4096  # numbers that show most often that a change is more than rounding


@dataclass(frozen=True, slots=True)
class Delta:
    """How a tensor differs from the base's.

    Attributes:
        energy: ‖Δ‖²; 0 if nothing changed.
        base_energy: ‖W‖² of the base.
        tuned_energy: ‖W‖² of the tuned network.
        rounding: The type that one side is the other one rounded to, where that is all.
        spectrum: The singular values of Δ as outputs × all other axes, of a matrix that changed.
        signal: What EVBMF keeps of them.
    """

    energy: float
    base_energy: float
    tuned_energy: float
    rounding: torch.dtype | None = None
    spectrum: Spectrum | None = None
    signal: LowRank | None = None

    @property
    def cosine(self) -> float | None:
        """Of the angle between both tensors; None if one is zero."""
        norm = (self.base_energy * self.tuned_energy) ** 0.5
        inner = (self.base_energy + self.tuned_energy - self.energy) / 2
        return inner / norm if norm else None


def measure_delta(pair: Pair, *, spectrum: bool) -> Delta:
    """Load a pair and measure how it changed.

    Args:
        pair: Of tensors that can be compared.
        spectrum: Whether it is a matrix whose singular values are wanted.

    Raises:
        NotFiniteError: If one side holds NaN or infinity.

    Example:
        >>> import torch
        >>> from rankwise.adapters.pairs import open_pairs
        >>> old, new = {"a.weight": torch.eye(4)}, {"a.weight": torch.eye(4) + 1}
        >>> (pair,) = open_pairs(old, new).pairs
        >>> measure_delta(pair, spectrum=True).energy
        16.0
    """
    base, tuned = pair.load()
    change = subtract(base, tuned)
    energies = [compute_energy(tensor) for tensor in (change, base, tuned)]
    if energies[0] == 0:
        return Delta(*energies)
    rounding = find_rounding(base, tuned)
    if rounding is not None or not spectrum:
        return Delta(*energies, rounding)
    values, signal = factorise(pair.unfold(change))
    return Delta(*energies, None, values, signal)


def find_rounding(base: Tensor, tuned: Tensor) -> torch.dtype | None:
    """Return the type that one tensor is the other one rounded to, if nothing else differs.

    A tensor of equal numbers, such as the ones of a new norm, is taken for no rounding of another.

    Example:
        >>> import torch
        >>> weight = torch.tensor([0.1, 0.2])
        >>> find_rounding(weight, weight.bfloat16())
        torch.bfloat16
    """
    sides = [
        (one, other) for one, other in ((base, tuned), (tuned, base)) if not _is_constant(other)
    ]
    for dtype in dict.fromkeys((*_TYPES, base.dtype, tuned.dtype)):
        for one, other in sides:
            if all(_is_rounded(*pieces, dtype) for pieces in _split(one, other)):
                return dtype
    return None


def _is_constant(tensor: Tensor) -> bool:
    numbers = tensor.detach().reshape(-1)
    numbers = numbers.float() if numbers.dtype.itemsize == 1 else numbers
    return not bool((numbers != numbers[0]).any())


def _split(one: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both tensors' numbers in pieces; the first is short and shows most differences."""
    first, second = one.detach().reshape(-1), other.detach().reshape(-1)
    yield first[:_PREVIEW], second[:_PREVIEW]
    size = CHUNK // 8
    yield from zip(first[_PREVIEW:].split(size), second[_PREVIEW:].split(size), strict=True)


def _is_rounded(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(one.to(dtype).to(torch.float64), other.to(torch.float64))


def compute_energy(tensor: Tensor) -> float:
    """Return ‖tensor‖² in float64, converted some numbers at a time."""
    flat = tensor.detach().reshape(-1)
    blocks = flat.split(CHUNK // 8)
    return sum(float(block.to("cpu", torch.float64).square().sum()) for block in blocks)
