"""Weights → rows: the metrics of each unfolding and their mean, or a status and a reason."""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankwise.errors import NotFiniteError
from rankwise.numerics import metrics
from rankwise.numerics.evbmf import LowRank, evbmf, factorise
from rankwise.numerics.random_matrix import check_seed, draw_gaussian_spectrum
from rankwise.numerics.randomness import RandomnessTest, Verdict, compare_with_random
from rankwise.numerics.rounding import StoredType
from rankwise.numerics.spectrum import (
    Spectrum,
    Workspace,
    convert_to_float64,
    count_block_entries,
)
from rankwise.numerics.unfold import Modes, Unfolding, plan_unfoldings
from rankwise.probes.layer_metrics import LayerMetrics, LayerSpectrum, ModeMetrics
from rankwise.probes.workers import Task, run_tasks
from rankwise.weights.kinds import infer_kind
from rankwise.weights.tensor import LOAD_ERRORS, Status, Weight

_RANK_ONE = "rank 1: κ = 0, so q is at its maximum by definition, not by learning"
_RANK_ONE_PARTLY = "rank 1 in one unfolding, which raises q by definition, not by learning"
_ZERO = "all zeros"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a probe has come.

    Attributes:
        done: Work done, in the same unit as `total`.
        total: All work.
        name: The layer that was just finished.

    Example:
        >>> import torch, rankwise
        >>> seen = []
        >>> _ = rankwise.probe({"w": torch.ones(4, 4)}, progress=seen.append)
        >>> (seen[-1].name, seen[-1].done == seen[-1].total)
        ('w', True)
    """

    done: float
    total: float
    name: str


class Cost(NamedTuple):
    """What measuring a weight takes: work in multiplications, memory in bytes."""

    work: float
    memory: int


def measure_weights(
    weights: Sequence[Weight],
    *,
    p: float = 2.0,
    modes: Modes = "both",
    spectra: bool = False,
    compare: bool = False,
    inspect: Callable[[Weight, Tensor], object] | None = None,
    progress: Callable[[Progress], None] | None = None,
    release: Callable[[Tensor], None] | None = None,
) -> list[LayerMetrics]:
    """Measure many weights in parallel; return their rows in the same order.

    `compare` asks for a verdict on each layer: does it differ from random weights? `inspect` is
    called with every weight that is measured, on the worker's thread, while its tensor is loaded;
    `release` with each loaded tensor when it is no longer needed.
    """
    loading = threading.Lock()  # readers need not be thread-safe, and reading is fast
    local = threading.local()  # holds one workspace per thread, freed with the probe

    def run(weight: Weight, workers: int) -> LayerMetrics:
        local.workspace = getattr(local, "workspace", None) or Workspace(workers)
        loaded: list[Tensor] = []

        def load() -> Tensor:
            with loading:
                loaded.append(weight.load())
            return loaded[0]

        locked = dataclasses.replace(weight, load=load)
        row = measure_weight(
            locked,
            p=p,
            modes=modes,
            spectra=spectra,
            compare=compare,
            workspace=local.workspace,
        )
        if inspect is not None and loaded:
            inspect(weight, loaded[0])
        if release is not None and loaded:
            release(loaded[0])
        return row

    places = [i for i, weight in enumerate(weights) if can_measure(weight, modes)]
    tasks = [
        Task(partial(run, weights[i]), *estimate_cost(weights[i], modes), weights[i].collective)
        for i in places
    ]
    total = math.fsum(task.cost for task in tasks)
    done = 0.0

    def on_done(index: int) -> None:
        nonlocal done
        done += tasks[index].cost
        if progress is not None:
            progress(Progress(min(done, total), total, weights[places[index]].name))

    rows = dict(zip(places, run_tasks(tasks, on_done), strict=True))
    return [
        rows[i] if i in rows else measure_weight(weight, p=p, modes=modes)
        for i, weight in enumerate(weights)
    ]


def estimate_cost(weight: Weight, modes: Modes = "both") -> Cost:
    """Estimate the work and memory of measuring a weight that can be measured."""
    if weight.singular_values is not None:
        stored = weight.parameters or 0
        return Cost(64.0 * stored, 64 * stored)
    sides = [(u.rows, u.columns) for u in _plan(weight, modes)]
    # A Gram matrix takes L²M/2 multiplications, its eigenvalues 4L³/3 at a third of the speed.
    work = math.fsum(rows * rows * (columns / 2 + 4 * rows) for rows, columns in sides)
    largest = max(
        16 * rows * rows + 8 * count_block_entries(rows, columns) for rows, columns in sides
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
) -> LayerMetrics:
    """Measure one weight. Whatever is wrong with its values becomes the row's status."""
    obstacle = _find_obstacle(weight, modes)
    if obstacle is not None:
        return _make_row(weight, *obstacle)
    try:
        with torch.no_grad():
            plan = _plan(weight, modes)
            if weight.singular_values is not None:
                unfoldings, norm = _measure_product(weight, plan[0], p=p, spectra=spectra)
                test = None
            else:
                tensor, workspace = weight.load(), workspace or Workspace()
                stored = _find_stored_type(weight, tensor)
                unfoldings, norm, overlap = _measure_modes(
                    plan, tensor, stored, workspace, p=p, spectra=spectra, compare=compare
                )
                share = _find_spectral_share(unfoldings, norm)
                test = _compare(weight, tensor, share, overlap, workspace) if compare else None
    except NotFiniteError as error:
        return _make_row(weight, Status.NOT_FINITE, str(error))
    except LOAD_ERRORS as error:  # a row, never the end of a probe or of a training run
        reason = " ".join(str(error).split()) or repr(error)
        return _make_row(weight, Status.UNREADABLE, reason)
    caveats = [weight.note, _ZERO if norm == 0.0 else "", *_list_rank_caveats(unfoldings)]
    row = _make_row(weight, Status.PROBED, "; ".join(filter(None, caveats)))
    row = _fill_row(row, unfoldings, norm)
    if test is None:
        return row
    return dataclasses.replace(row, verdict=test.verdict, chance=test.chance, overlap=test.overlap)


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


def _find_stored_type(weight: Weight, tensor: Tensor) -> StoredType:
    if weight.rounded_to is None:
        return StoredType.from_dtype(tensor.dtype)
    return StoredType.from_dtype(weight.rounded_to, scaled=True)


def _measure_modes(
    plan: Sequence[Unfolding],
    tensor: Tensor,
    stored: StoredType,
    workspace: Workspace,
    *,
    p: float,
    spectra: bool,
    compare: bool,
) -> tuple[list[ModeMetrics], float, float | None]:
    """Return the metrics of every unfolding, the Frobenius norm, and the filters' overlap."""
    rows: list[ModeMetrics] = []
    norm, overlap = 0.0, None
    tensor = convert_to_float64(tensor, workspace)
    for unfolding in plan:
        matrix = tensor.movedim(unfolding.axis, 0)
        by_filters = compare and unfolding.modes != ("input",)
        spectrum, part = factorise(matrix, stored, workspace, overlap=by_filters)
        norm = min(spectrum.norm, sys.float_info.max)
        overlap = overlap if spectrum.overlap is None else spectrum.overlap
        row = _measure_mode(unfolding, spectrum, part, p=p, spectra=spectra)
        rows += [dataclasses.replace(row, mode=mode) for mode in unfolding.modes]
    return rows, norm, overlap


def _measure_product(
    weight: Weight, unfolding: Unfolding, *, p: float, spectra: bool
) -> tuple[list[ModeMetrics], float]:
    """Measure a product of thin factors by the singular values that follow from these."""
    assert weight.singular_values is not None  # noqa: S101
    thin = weight.singular_values()
    if not np.isfinite(thin).all():
        raise NotFiniteError("it holds NaN or infinity")
    values = np.zeros(unfolding.rows)
    values[: len(thin)] = np.sort(thin)[::-1][: len(values)]
    resolution = unfolding.columns * float(np.finfo(np.float64).eps) * float(values[0])
    values = np.where(values > resolution, values, 0.0)
    spectrum = Spectrum(values, unfolding.columns, resolution)
    part = evbmf(values, columns=unfolding.columns)
    return [_measure_mode(unfolding, spectrum, part, p=p, spectra=spectra)], spectrum.norm


def _measure_mode(
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


def _make_row(weight: Weight, status: Status, reason: str) -> LayerMetrics:
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


def _fill_row(row: LayerMetrics, modes: Sequence[ModeMetrics], norm: float) -> LayerMetrics:
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


def _list_rank_caveats(modes: Sequence[ModeMetrics]) -> Iterator[str]:
    ones = sum(mode.rank == 1 for mode in modes)
    if ones:
        yield _RANK_ONE if ones == len(modes) else _RANK_ONE_PARTLY


def _format_dtype(weight: Weight) -> str:
    return weight.stored or str(weight.dtype).removeprefix("torch.")


def measure_random_layers(
    layers: Iterable[LayerMetrics], *, p: float, seed: int
) -> list[LayerMetrics]:
    """Return the rows that Gaussian weights of the same shapes and norms would have.

    Layers that were not probed stay as they are; unfoldings of one size get one spectrum.
    """
    check_seed(seed)
    spectra: dict[tuple[int, int], tuple[Spectrum, LowRank]] = {}

    def factorise_random(rows: int, columns: int, norm: float) -> tuple[Spectrum, LowRank]:
        if (rows, columns) not in spectra:
            values = draw_gaussian_spectrum(rows, columns, seed)
            values = values / np.linalg.norm(values)
            spectra[rows, columns] = Spectrum(values, columns, 0.0), evbmf(values, columns=columns)
        unit, part = spectra[rows, columns]
        variance = part.noise_variance * norm * norm
        scaled = LowRank(part.values * norm, variance, part.threshold * norm)
        return Spectrum(unit.values * norm, columns, 0.0), scaled

    def measure_random(layer: LayerMetrics) -> LayerMetrics:
        norm = layer.frobenius_norm or 1.0  # a layer of zeros has no scale to keep
        modes = []
        for mode in layer.modes:
            unfolding = Unfolding((mode.mode,), 0, mode.rows, mode.columns)
            spectrum, part = factorise_random(mode.rows, mode.columns, norm)
            keep = mode.spectrum is not None
            modes.append(_measure_mode(unfolding, spectrum, part, p=p, spectra=keep))
        reason = "; ".join(_list_rank_caveats(modes))
        judged = layer.verdict not in (None, Verdict.TOO_SMALL)
        row = dataclasses.replace(
            layer,
            reason=reason,
            verdict=Verdict.RANDOM if judged else layer.verdict,
            chance=None,
            overlap=None,
        )
        return _fill_row(row, modes, norm)

    return [measure_random(layer) if layer.is_probed and layer.modes else layer for layer in layers]
