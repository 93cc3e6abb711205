"""One weight → its row: metrics of each unfolding and their mean, or a status and a reason."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from rankwise.errors import NotFiniteError, RankwiseError
from rankwise.numerics import metrics
from rankwise.numerics.evbmf import LowRank, evbmf, factorise
from rankwise.numerics.spectrum import Spectrum, Workspace, exact_spectrum, in_float64
from rankwise.numerics.unfold import Modes, Unfolding, kind_of, plan
from rankwise.probes.results import LayerMetrics, LayerSpectrum, ModeMetrics, Status
from rankwise.probes.tensor import Weight

__all__ = ["means", "measure", "mode_metrics", "needs_measuring", "rank_caveats", "unfoldings"]

_RANK_ONE = "rank 1: κ = 0, so q is at its maximum by definition, not by learning"
_RANK_ONE_PARTLY = "rank 1 in one unfolding, which lifts q by definition, not by learning"
_ZERO = "all zeros"
_AVERAGED = (
    "rank",
    "rank_fraction",
    "stable_rank",
    "condition",
    "quality",
    "noise_fraction",
    "noise_variance",
    "spectral_norm",
    "effective_rank",
)


def unfoldings(weight: Weight, modes: Modes) -> tuple[Unfolding, ...]:
    """The matrices that a weight is laid out as."""
    transposed = (weight.kind or "").startswith("conv_transpose")
    return plan(weight.shape, modes=modes, transposed=transposed)


def needs_measuring(weight: Weight, modes: Modes) -> bool:
    """Whether a weight's values have to be looked at; where not, its row is known beforehand."""
    return _obstacle(weight, modes) is None


def measure(
    weight: Weight,
    *,
    p: float,
    modes: Modes,
    spectra: bool = False,
    workspace: Workspace | None = None,
) -> LayerMetrics:
    """The row of one weight. Whatever goes wrong with its values becomes the row's status."""
    obstacle = _obstacle(weight, modes)
    if obstacle is not None:
        return _row(weight, *obstacle)
    try:
        with torch.no_grad():
            found = _modes(weight, p, modes, spectra, workspace or Workspace())
            return _summarised(weight, *found)
    except NotFiniteError as error:
        return _row(weight, Status.NOT_FINITE, str(error))
    except (RankwiseError, RuntimeError, TypeError, ValueError, OSError, MemoryError) as error:
        # A broken file, a tensor subclass without this operation, no memory left: a row, never the
        # end of a probe or of a training run. (torch's and numpy's LinAlgError are among these.)
        return _row(weight, Status.UNREADABLE, " ".join(str(error).split()) or repr(error))


def _obstacle(weight: Weight, modes: Modes) -> tuple[Status, str] | None:
    if weight.obstacle is not None:
        return Status(weight.obstacle[0]), weight.obstacle[1]
    if weight.dtype.is_complex:
        return Status.COMPLEX, "complex numbers are not probed"
    if not weight.dtype.is_floating_point:
        return (
            Status.INTEGER,
            f"{_dtype(weight)}: an index, a mask, a counter or a quantised weight",
        )
    if len(weight.shape) < 2:
        return Status.VECTOR, f"{len(weight.shape)}-D: biases and norm scales are not probed"
    if 0 in weight.shape:
        return Status.TOO_SMALL, "it holds no numbers"
    if not unfoldings(weight, modes):
        return Status.TOO_SMALL, "a single row or column has no rank to speak of"
    return None


def _modes(
    weight: Weight, p: float, modes: Modes, spectra: bool, workspace: Workspace
) -> tuple[list[ModeMetrics], float]:
    """The metrics of every unfolding, and the norm that they share."""
    found: list[ModeMetrics] = []
    norm = 0.0
    tensor = weight.load()
    stored, tensor = tensor.dtype, in_float64(tensor, workspace)
    for unfolding in unfoldings(weight, modes):
        spectrum, part = _factorised(
            tensor.movedim(unfolding.axis, 0), unfolding, stored, workspace
        )
        norm = min(spectrum.norm, sys.float_info.max)
        found += mode_metrics(unfolding, spectrum, part, p=p, spectra=spectra)
    return found, norm


def _factorised(
    tensor: Tensor, unfolding: Unfolding, stored: torch.dtype, workspace: Workspace
) -> tuple[Spectrum, LowRank]:
    """The factors of a weight, or of the larger one that a product of thin factors stands for."""
    if tensor.numel() == unfolding.rows * unfolding.columns:
        return factorise(tensor, stored, workspace)
    values = np.zeros(unfolding.rows)
    thin = exact_spectrum(tensor)
    values[: len(thin.values)] = thin.values
    whole = Spectrum(values, unfolding.columns, thin.resolution)
    return whole, evbmf(values, columns=unfolding.columns)


def mode_metrics(
    unfolding: Unfolding, spectrum: Spectrum, part: LowRank, *, p: float, spectra: bool
) -> list[ModeMetrics]:
    """The metrics of an unfolding, once for every mode that it serves."""
    s = metrics.stable_rank(part.values, unfolding.rows, p=p)
    kappa = metrics.condition(part.values)
    found = ModeMetrics(
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
        spectrum=_kept(spectrum, part) if spectra else None,
    )
    return [found, *(dataclasses.replace(found, mode=mode) for mode in unfolding.modes[1:])]


def _kept(spectrum: Spectrum, part: LowRank) -> LayerSpectrum:
    threshold = min(part.threshold, sys.float_info.max)
    return LayerSpectrum(tuple(spectrum.values.tolist()), tuple(part.values.tolist()), threshold)


def means(modes: Sequence[ModeMetrics]) -> dict[str, float]:
    """A layer's metrics: the means over its unfoldings."""
    return {
        name: math.fsum(getattr(mode, name) for mode in modes) / len(modes) for name in _AVERAGED
    }


def _summarised(weight: Weight, modes: Sequence[ModeMetrics], norm: float) -> LayerMetrics:
    return _row(
        weight,
        Status.PROBED,
        "; ".join(_caveats(weight, modes, norm)),
        frobenius_norm=norm,
        modes=tuple(modes),
        **means(modes),
    )


def _caveats(weight: Weight, modes: Sequence[ModeMetrics], norm: float) -> Iterator[str]:
    if weight.note:
        yield weight.note
    if norm == 0.0:
        yield _ZERO
    yield from rank_caveats(modes)


def rank_caveats(modes: Sequence[ModeMetrics]) -> Iterator[str]:
    """What to know of the figures of a layer of such ranks."""
    ones = sum(mode.rank == 1 for mode in modes)
    if ones:
        yield _RANK_ONE if ones == len(modes) else _RANK_ONE_PARTLY


def _row(weight: Weight, status: Status, reason: str, **figures: object) -> LayerMetrics:
    parameters = math.prod(weight.shape) if weight.parameters is None else weight.parameters
    return LayerMetrics(
        name=weight.name,
        kind=weight.kind or kind_of(weight.name, weight.shape),
        shape=weight.shape,
        dtype=_dtype(weight),
        parameters=parameters,
        status=status,
        reason=reason,
        **figures,  # type: ignore[arg-type]
    )


def _dtype(weight: Weight) -> str:
    return str(weight.dtype).removeprefix("torch.")
