"""A weight → its row: the metrics of each unfolding and their mean, or a status and a reason."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankwise.errors import NotFiniteError
from rankwise.numerics import metrics
from rankwise.numerics.evbmf import LowRank, evbmf, factorise
from rankwise.numerics.randomness import RandomnessTest, compare_with_random
from rankwise.numerics.rounding import StoredType
from rankwise.numerics.spectrum import (
    Spectrum,
    Workspace,
    convert_to_float64,
    count_block_entries,
)
from rankwise.numerics.unfold import Modes, Unfolding, plan_unfoldings
from rankwise.probes.cache import MIN_WORK, LayerCache, Measured
from rankwise.probes.layer_metrics import LayerMetrics, LayerSpectrum, ModeMetrics
from rankwise.weights.kinds import infer_kind
from rankwise.weights.tensor import LOAD_ERRORS, Status, Weight

_RANK_ONE = "rank 1: κ = 0, so q is at its maximum by definition, not by learning"
_RANK_ONE_PARTLY = "rank 1 in one unfolding, which raises q by definition, not by learning"
_ZERO = "all zeros"


class Options(NamedTuple):
    """What to measure of every weight."""

    p: float
    modes: Modes
    spectra: bool  # whether to keep the singular values
    compare: bool  # whether to compare with random weights


class Cost(NamedTuple):
    """What measuring a weight takes: work in multiplications, memory in bytes."""

    work: float
    memory: int


def estimate_cost(weight: Weight, modes: Modes = "both") -> Cost:
    """Estimate the work and memory of measuring a weight that can be measured."""
    if weight.singular_values is not None:
        stored = weight.parameters or 0
        return Cost(64.0 * stored, 64 * stored)
    sides = [(u.rows, u.columns) for u in _plan(weight, modes)]
    # A Gram matrix takes L²M/2 multiplications, its eigenvalues 4L³/3 at a third of the speed.
    work = math.fsum(rows * rows * (columns / 2 + 4 * rows) for rows, columns in sides)
    # The Gram matrix, and two copies that the library for eigenvalues makes.
    largest = max(
        24 * rows * rows + 8 * count_block_entries(rows, columns) for rows, columns in sides
    )
    return Cost(work, largest + math.prod(weight.shape) * weight.dtype.itemsize)


def can_measure(weight: Weight, modes: Modes = "both") -> bool:
    """Return whether a weight's values must be loaded, or its row is known without them."""
    return _find_obstacle(weight, modes) is None


def measure_weight(
    weight: Weight,
    *,
    p: float = 2.0,
    modes: Modes = "both",
    spectra: bool = False,
    compare: bool = False,
    workspace: Workspace | None = None,
    cache: LayerCache | None = None,
) -> LayerMetrics:
    """Measure one weight. Whatever is wrong with its values becomes the row's status."""
    obstacle = _find_obstacle(weight, modes)
    if obstacle is not None:
        return make_row(weight, *obstacle)
    options = Options(p, modes, spectra, compare)
    try:
        with torch.no_grad():
            if weight.singular_values is not None:
                measured = _measure_product(weight, options)
            else:
                measured = _measure_once(weight, options, workspace or Workspace(), cache)
    except NotFiniteError as error:
        return make_row(weight, Status.NOT_FINITE, str(error))
    except LOAD_ERRORS as error:  # a row, never the end of a probe or of a training run
        reason = " ".join(str(error).split()) or repr(error)
        return make_row(weight, Status.UNREADABLE, reason)
    unfoldings, norm, test = measured
    caveats = [weight.note, _ZERO if norm == 0.0 else "", *list_rank_caveats(unfoldings)]
    row = make_row(weight, Status.PROBED, "; ".join(filter(None, caveats)))
    row = fill_row(row, unfoldings, norm)
    if test is None:
        return row
    return dataclasses.replace(row, verdict=test.verdict, chance=test.chance, overlap=test.overlap)


def _measure_once(
    weight: Weight, options: Options, workspace: Workspace, cache: LayerCache | None
) -> Measured:
    """Measure a tensor, or take what was measured before."""
    tensor = weight.load()
    if cache is None or estimate_cost(weight, options.modes).work < MIN_WORK:
        return _measure_tensor(weight, tensor, options, workspace)
    depends_on = (options.p, options.modes, options.compare, weight.output_axis, weight.rounded_to)
    key = cache.make_key(tensor, *depends_on)
    measured = cache.get(key, spectra=options.spectra)
    if measured is None:
        measured = _measure_tensor(weight, tensor, options, workspace)
        cache.put(key, measured)
    return measured


def _measure_tensor(
    weight: Weight, tensor: Tensor, options: Options, workspace: Workspace
) -> Measured:
    stored = find_stored_type(weight, tensor)
    plan = _plan(weight, options.modes)
    unfoldings, norm, overlap = _measure_modes(plan, tensor, stored, workspace, options)
    share = _find_spectral_share(unfoldings, norm)
    test = _compare(weight, tensor, share, overlap, workspace) if options.compare else None
    return Measured(tuple(unfoldings), norm, test)


def _compare(
    weight: Weight,
    tensor: Tensor,
    share: float,
    overlap: float | None,
    workspace: Workspace,
) -> RandomnessTest | None:
    """Compare a weight with random numbers, along its output axis; None for zeros."""
    if share == 0.0:
        return None
    return compare_with_random(tensor.movedim(weight.output_axis, 0), share, overlap, workspace)


def _find_spectral_share(modes: Sequence[ModeMetrics], norm: float) -> float:
    """Return s₁²/‖W‖² of the unfolding by filters; 0 for zeros."""
    outputs = [mode.spectral_norm for mode in modes if mode.mode != "input" or len(modes) == 1]
    return (max(outputs) / norm) ** 2 if norm else 0.0


def _plan(weight: Weight, modes: Modes) -> tuple[Unfolding, ...]:
    return plan_unfoldings(weight.shape, modes=modes, transposed=weight.output_axis == 1)


def _find_obstacle(weight: Weight, modes: Modes) -> tuple[Status, str] | None:
    if weight.obstacle is not None:
        return weight.obstacle
    if weight.dtype.is_complex:
        return Status.COMPLEX, "complex numbers are not probed"
    if not weight.dtype.is_floating_point:
        reason = f"{_format_dtype(weight)}: an index, a mask, a counter or a quantised weight"
        return Status.INTEGER, reason
    if len(weight.shape) < 2:
        return Status.VECTOR, f"{len(weight.shape)}-D: biases and norm scales are not probed"
    if 0 in weight.shape:
        return Status.TOO_SMALL, "it holds no numbers"
    if not _plan(weight, modes):
        return Status.TOO_SMALL, "a single row or column has no rank to speak of"
    return None


def find_stored_type(weight: Weight, tensor: Tensor) -> StoredType:
    """Return the type that the numbers of a weight were rounded to."""
    if weight.rounded_to is None:
        return StoredType.from_dtype(tensor.dtype)
    return StoredType.from_dtype(weight.rounded_to, scaled=True)


def _measure_modes(
    plan: Sequence[Unfolding],
    tensor: Tensor,
    stored: StoredType,
    workspace: Workspace,
    options: Options,
) -> tuple[list[ModeMetrics], float, float | None]:
    """Return the metrics of every unfolding, the Frobenius norm, and the filters' overlap."""
    rows: list[ModeMetrics] = []
    norm, overlap = 0.0, None
    tensor = convert_to_float64(tensor, workspace)
    for unfolding in plan:
        matrix = tensor.movedim(unfolding.axis, 0)
        by_filters = options.compare and unfolding.modes != ("input",)
        spectrum, part = factorise(matrix, stored, workspace, overlap=by_filters)
        norm = min(spectrum.norm, sys.float_info.max)
        overlap = overlap if spectrum.overlap is None else spectrum.overlap
        row = measure_mode(unfolding, spectrum, part, p=options.p, spectra=options.spectra)
        rows += [dataclasses.replace(row, mode=mode) for mode in unfolding.modes]
    return rows, norm, overlap


def _measure_product(weight: Weight, options: Options) -> Measured:
    """Measure a product of thin factors by the singular values that follow from these."""
    assert weight.singular_values is not None  # noqa: S101
    unfolding = _plan(weight, options.modes)[0]
    thin = weight.singular_values()
    if not np.isfinite(thin).all():
        raise NotFiniteError("it holds NaN or infinity")
    values = np.zeros(unfolding.rows)
    values[: len(thin)] = np.sort(thin)[::-1][: len(values)]
    resolution = unfolding.columns * float(np.finfo(np.float64).eps) * float(values[0])
    values = np.where(values > resolution, values, 0.0)
    spectrum = Spectrum(values, unfolding.columns, resolution)
    part = evbmf(values, columns=unfolding.columns)
    mode = measure_mode(unfolding, spectrum, part, p=options.p, spectra=options.spectra)
    return Measured((mode,), spectrum.norm, None)


def measure_mode(
    unfolding: Unfolding, spectrum: Spectrum, part: LowRank, *, p: float, spectra: bool
) -> ModeMetrics:
    """Compute the metrics of an unfolding (METHOD §3)."""
    s = metrics.stable_rank(part.values, unfolding.rows, p=p)  # Eq. 2
    kappa = metrics.condition(part.values)  # Eq. 3
    return ModeMetrics(
        mode=unfolding.modes[0],
        rows=unfolding.rows,
        columns=unfolding.columns,
        rank=part.rank,
        rank_fraction=part.rank / unfolding.rows,
        stable_rank=s,
        condition=kappa,
        quality=metrics.quality(s, kappa),
        noise_fraction=metrics.noise_fraction(part, spectrum),
        noise_variance=min(part.noise_variance, sys.float_info.max),
        spectral_norm=float(spectrum.values[0]),
        effective_rank=metrics.effective_rank(spectrum.values),
        prominence=metrics.prominence(float(spectrum.values[0]), part.threshold),
        spectrum=_keep_spectrum(spectrum, part) if spectra else None,
    )


def _keep_spectrum(spectrum: Spectrum, part: LowRank) -> LayerSpectrum:
    threshold = min(part.threshold, sys.float_info.max)
    return LayerSpectrum(tuple(spectrum.values.tolist()), tuple(part.values.tolist()), threshold)


def make_row(weight: Weight, status: Status, reason: str) -> LayerMetrics:
    """Return a row without metrics."""
    return LayerMetrics(
        name=weight.name,
        kind=weight.kind or infer_kind(weight.name, weight.shape),
        shape=weight.shape,
        dtype=_format_dtype(weight),
        parameters=math.prod(weight.shape) if weight.parameters is None else weight.parameters,
        status=status,
        reason=reason,
        group=weight.group,
    )


def fill_row(row: LayerMetrics, modes: Sequence[ModeMetrics], norm: float) -> LayerMetrics:
    """Return a row with the means of its unfoldings' metrics."""

    def mean(metric: Callable[[ModeMetrics], float]) -> float:
        return math.fsum(metric(mode) / len(modes) for mode in modes)  # no sum may overflow

    prominences = [mode.prominence for mode in modes if mode.prominence is not None]
    return dataclasses.replace(
        row,
        rank=mean(lambda mode: mode.rank),
        rank_fraction=mean(lambda mode: mode.rank_fraction),
        stable_rank=mean(lambda mode: mode.stable_rank),
        condition=mean(lambda mode: mode.condition),
        quality=mean(lambda mode: mode.quality),
        noise_fraction=mean(lambda mode: mode.noise_fraction),
        noise_variance=mean(lambda mode: mode.noise_variance),
        spectral_norm=mean(lambda mode: mode.spectral_norm),
        frobenius_norm=norm,
        effective_rank=mean(lambda mode: mode.effective_rank),
        prominence=math.fsum(prominences) / len(prominences) if prominences else None,
        modes=tuple(modes),
    )


def list_rank_caveats(modes: Sequence[ModeMetrics]) -> Iterator[str]:
    """Say where rank 1 raises q."""
    ones = sum(mode.rank == 1 for mode in modes)
    if ones:
        yield _RANK_ONE if ones == len(modes) else _RANK_ONE_PARTLY


def _format_dtype(weight: Weight) -> str:
    return weight.stored or str(weight.dtype).removeprefix("torch.")
