"""What an adapter would hold: options, a record for every layer, and what stays out and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rankwise._text import format_count
from rankwise.adapters.extraction.peft_layout import Form
from rankwise.adapters.extraction.peft_tensors import count_bytes, list_specs
from rankwise.adapters.extraction.rank_budget import Rank, check_rank
from rankwise.adapters.pairs import Pair, Pairing
from rankwise.api import Target
from rankwise.errors import ArgumentError
from rankwise.weights.tensor import Weight

Place = Literal["module", "bias", "tensor"]
LORA_TYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class ExtractionOptions:
    """How large an adapter may be, and which type it is stored in.

    Attributes:
        rank: "auto" for EVBMF's rank of each change, a whole number for the same rank everywhere,
            or a share such as 0.9 for the least rank with this share of ‖Δ‖².
        max_rank: The highest rank of any layer.
        max_size: Bytes of adapter_model.safetensors; the highest ranks are cut until it fits.
        shrink: Whether to take EVBMF's shrunk singular values, which are closer to a change
            without noise; the plain ones are closest to the change as it is.
        dtype: Of the factors; that of the tuned weights if not given.

    Example:
        >>> from rankwise.adapters import ExtractionOptions
        >>> ExtractionOptions(rank=0.9, max_size=50_000_000).rank
        0.9
    """

    rank: Rank = "auto"
    max_rank: int | None = None
    max_size: int | None = None
    shrink: bool = False
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        check_rank(self.rank)
        for name, value in (("max_rank", self.max_rank), ("max_size", self.max_size)):
            if value is not None and (type(value) is not int or value < 1):
                raise ArgumentError(f"Expected a whole number from 1 on as {name}, got {value!r}.")
        if self.dtype is not None and self.dtype not in LORA_TYPES:
            raise ArgumentError(
                f"Expected float32, float16 or bfloat16 as dtype, got {self.dtype}."
            )


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """A weight that changed and could get a LoRA.

    Attributes:
        name: Of the weight, in the network that the adapter is put on.
        form: What PEFT sees in its layer.
        shape: Of the weight as it is stored.
        rank: r of the LoRA; 0 if the layer is left out.
        signal: n', EVBMF's rank of the change.
        energy: ‖Δ‖².
        relative: ‖Δ‖/‖W‖, W of the base; infinite where that is zero.
        kept: The share of ‖Δ‖² that the LoRA holds.
        parameters: How many the LoRA has.
        dtype: Of the factors.
    """

    name: str
    form: Form
    shape: tuple[int, ...]
    rank: int
    signal: int
    energy: float
    relative: float
    kept: float
    parameters: int
    dtype: torch.dtype
    pair: Pair = field(repr=False, compare=False)
    values: tuple[float, ...] | None = field(default=None, repr=False)  # if they are shrunk

    @property
    def module(self) -> str:
        """The name of the module that PEFT wraps."""
        return self.name.rpartition(".")[0]

    @property
    def rank_parameters(self) -> int:
        """How many parameters each rank has."""
        # PEFT gives attention's output projection a LoRA of the same rank, which stays zero.
        unused = 2 * self.shape[1] if self.form == "attention" else 0
        return sum(self.pair.matrix_shape) + unused


@dataclass(frozen=True, slots=True)
class CopiedTensor:
    """A tensor of the tuned network that the adapter holds as it is.

    Attributes:
        name: In the network that the adapter is put on.
        place: "module" for those of `modules_to_save`, "bias", or "tensor" for what is neither,
            which PEFT loads under its own name.
        energy: ‖Δ‖², 0 where it has not changed.
    """

    name: str
    place: Place
    energy: float
    weight: Weight = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """As it is stored."""
        return (1,) * self.weight.squeezed + self.weight.shape

    def load(self) -> Tensor:
        """Load it as it is stored."""
        return self.weight.load().reshape(self.shape)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A tensor that is not in the adapter.

    Attributes:
        name: In the tuned network, or in the base if only that has it.
        reason: Why.
        energy: ‖Δ‖², where it could be measured.
    """

    name: str
    reason: str
    energy: float | None = None


@dataclass(frozen=True)
class ExtractionPlan:
    """What an adapter would hold.

    Attributes:
        base: The network that the adapter is for, as it was given.
        pairing: Both networks.
        options: As given.
        layers: Weights that changed and could get a LoRA, in the network's order.
        copied: Tensors that are stored whole.
        left_out: Tensors that are not in the adapter, but for layers of rank 0.
        unchanged: How many tensors are the same in both.
        modules: All modules of the network.
        choose: Returns the plan that other options make of the same measurements.
        notes: Sentences about the whole.
    """

    base: Target = field(repr=False)
    pairing: Pairing = field(repr=False)
    options: ExtractionOptions
    layers: tuple[LayerPlan, ...]
    copied: tuple[CopiedTensor, ...]
    left_out: tuple[LeftOut, ...]
    unchanged: int
    modules: tuple[str, ...] = field(repr=False)
    choose: Callable[[ExtractionOptions], ExtractionPlan] = field(repr=False)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        layers = format_count(len(self.adapted), "layer")
        size = f"{self.parameters} parameters, {self.kept:.2%} of the change kept"
        return f"<ExtractionPlan: a LoRA of {layers}, {size}>"

    @property
    def adapted(self) -> tuple[LayerPlan, ...]:
        """The layers with a LoRA."""
        return tuple(layer for layer in self.layers if layer.rank)

    @property
    def parameters(self) -> int:
        """How many numbers the adapter holds."""
        whole = sum(math.prod(tensor.weight.shape) for tensor in self.copied)
        return whole + sum(layer.parameters for layer in self.layers)

    @property
    def bytes(self) -> int:
        """The size of adapter_model.safetensors."""
        return count_bytes(list_specs(self.layers, self.copied))

    @property
    def energy(self) -> float:
        """‖Δ‖² of all tensors where it could be measured."""
        energies = [layer.energy for layer in self.layers]
        energies += [tensor.energy for tensor in self.copied]
        return math.fsum(energies + [item.energy or 0.0 for item in self.left_out])

    @property
    def kept(self) -> float:
        """The share of ‖Δ‖² of all tensors that the adapter holds, by the singular values."""
        return self.compute_kept({})

    def compute_kept(self, shares: Mapping[str, float]) -> float:
        """Return the share of ‖Δ‖² that is kept where some layers keep other shares of theirs."""
        kept = math.fsum(shares.get(x.name, x.kept) * x.energy for x in self.layers)
        return (kept + math.fsum(tensor.energy for tensor in self.copied)) / self.energy
