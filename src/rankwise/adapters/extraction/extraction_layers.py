"""Changes of matrices → the layers of an adapter: a rank for each, by a rule and within a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rankwise._text import format_count
from rankwise.adapters.deltas.changes import FactorisedChange
from rankwise.adapters.extraction.extraction_plan import (
    LORA_TYPES,
    CopiedTensor,
    ExtractionOptions,
    LayerPlan,
)
from rankwise.adapters.extraction.peft_layout import Form
from rankwise.adapters.extraction.peft_tensors import count_bytes, list_specs
from rankwise.adapters.extraction.rank_budget import Candidate, choose_rank, distribute
from rankwise.adapters.pairs import Pair
from rankwise.errors import ArgumentError
from rankwise.numerics.spectrum import Array


@dataclass(frozen=True, slots=True)
class MatrixChange:
    """A weight that changed and can get a LoRA.

    Attributes:
        pair: The weight in both networks.
        name: In the network that the adapter is put on.
        form: What PEFT sees in its layer.
        change: What was measured.
    """

    pair: Pair
    name: str
    form: Form
    change: FactorisedChange

    @property
    def values(self) -> Array:
        """The singular values of the change."""
        spectrum = self.change.spectrum
        # Without one it is a single row or column, or something that EVBMF can't judge.
        return np.array([self.change.record.norm]) if spectrum is None else spectrum.values

    @property
    def signal(self) -> int:
        """n', EVBMF's rank."""
        rank = self.change.record.rank
        return 1 if rank is None else rank


def rank_layers(matrices: Sequence[MatrixChange], options: ExtractionOptions) -> list[LayerPlan]:
    """Return the layers with the ranks that the rule gives."""
    layers = []
    for matrix in matrices:
        layer = _make_layer(matrix, options)
        rank = choose_rank(_make_candidate(layer, matrix), options.rank, options.max_rank)
        layers.append(_set_rank(layer, matrix, rank, shrink=options.shrink))
    return layers


def _make_layer(matrix: MatrixChange, options: ExtractionOptions) -> LayerPlan:
    """Return the record of a layer without a rank."""
    pair, record = matrix.pair, matrix.change.record
    dtype = pair.tuned.dtype if pair.tuned.dtype in LORA_TYPES else torch.float32
    return LayerPlan(
        matrix.name,
        matrix.form,
        pair.tuned.shape,
        rank=0,
        signal=matrix.signal,
        energy=(record.norm or 0.0) ** 2,
        relative=math.inf if record.relative is None else record.relative,
        kept=0.0,
        parameters=0,
        dtype=options.dtype or dtype,
        pair=pair,
    )


def _make_candidate(layer: LayerPlan, matrix: MatrixChange) -> Candidate:
    cost = layer.rank_parameters * layer.dtype.itemsize
    return Candidate(matrix.values, layer.signal, cost)


def _set_rank(layer: LayerPlan, matrix: MatrixChange, rank: int, *, shrink: bool) -> LayerPlan:
    """Return a layer with its rank and what that keeps; shrunk values exist up to n' only."""
    own, signal = matrix.values, matrix.change.signal
    shrunk = signal.values[:rank] if shrink and signal is not None else None
    rank = rank if shrunk is None else len(shrunk)
    error = own.copy()
    error[:rank] -= own[:rank] if shrunk is None else shrunk
    kept = 1 - float(np.square(error / own[0]).sum() / np.square(own / own[0]).sum())
    return replace(
        layer,
        rank=rank,
        kept=max(0.0, kept) if rank else 0.0,
        parameters=rank * layer.rank_parameters,
        values=None if shrunk is None else tuple(map(float, shrunk)),
    )


def fit_layers(
    layers: Sequence[LayerPlan],
    matrices: Sequence[MatrixChange],
    copied: Sequence[CopiedTensor],
    options: ExtractionOptions,
) -> list[LayerPlan]:
    """Return the layers with ranks that fit into `max_size`, none above those that they have.

    Raises:
        ArgumentError: If what is stored whole does not fit.
    """
    limit = options.max_size or 0
    # The header of the file counts too: at most what it is with all layers in it.
    factors = sum(layer.parameters * layer.dtype.itemsize for layer in layers)
    fixed = count_bytes(list_specs(layers, copied)) - factors
    if fixed > limit:
        raise ArgumentError(
            f"Expected max_size of at least {fixed} bytes, got {limit}: so much is needed for "
            f"{format_count(len(copied), 'tensor')} that can't be a LoRA, such as norms and biases,"
            " and for the names of all layers."
        )
    candidates = [_make_candidate(*one) for one in zip(layers, matrices, strict=True)]
    ranks = distribute(candidates, [layer.rank for layer in layers], limit - fixed)
    rows = zip(layers, matrices, ranks, strict=True)
    return [_set_rank(layer, matrix, rank, shrink=options.shrink) for layer, matrix, rank in rows]
