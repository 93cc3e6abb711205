"""Tensor → facts: what the checks know of its entries, filters and inputs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Numbers that are converted at a time.
_CHUNK = 4 << 20
# A filter is dead if its norm is below this share of the norm of strong filters; weight decay takes
# unused filters to 1e-20 and less, small but used ones are above a hundredth.
_DEAD = 1e-4
# The quantile of norms that stands for a strong filter: alive even where 90 % are dead, and not the
# one filter in twenty that a damaged entry may blow up.
_STRONG = 0.95
# Two filters are near-identical if their cosine is above this.
NEAR_IDENTICAL = 0.9999
# Beyond this number of filters only exact copies are looked for.
_MAX_PAIRED = 8192
_MAX_CANDIDATES = 8  # the nearest other filters that a filter is compared with in all dimensions
_ABSURD = 1e6  # times the second largest number; 307 in a healthy bias of 8 numbers
_HUGE = 1e4  # an absolute value that biases, norm scales and running statistics do not reach alone
_FEW = 8  # numbers; constants of a graph may hold fewer, of any size
# Inputs that are projected. Filters that are alike in all of them are alike in these.
_MAX_PROJECTED = 1 << 18
_PROJECTED = 48  # dimensions that filters are projected to before pairs are compared


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What one pass over a tensor shows; only counts where it is not finite.

    Attributes:
        entries: How many numbers it holds.
        not_finite: How many are NaN or infinite.
        minus_infinite: How many are −inf.
        zeros: How many are exactly zero.
        rms: Root of the mean square.
        kurtosis: The mean fourth power over the squared mean square: 3 for normal numbers, 1.8 for
            uniform ones.
        largest: The largest absolute value.
        runner_up: The second largest.
        low, high: The smallest and the largest number.
        filters: Its length along the output axis; 0 for vectors.
        inputs: The product of its other sides.
        dead_filters: How many filters are zero, or nearly so against the others.
        dead_inputs: The same for inputs.
        copies: How many filters are identical, or nearly so, to an earlier one.
        top_filter: The largest norm of a filter over the second largest.
        digest: Equal for tensors with equal values.
    """

    entries: int
    not_finite: int
    minus_infinite: int = 0
    zeros: int = 0
    rms: float = 0.0
    kurtosis: float = 0.0
    largest: float = 0.0
    runner_up: float = 0.0
    low: float = 0.0
    high: float = 0.0
    filters: int = 0
    inputs: int = 0
    dead_filters: int = 0
    dead_inputs: int = 0
    copies: int = 0
    top_filter: float = 1.0
    digest: str = ""

    @property
    def is_constant(self) -> bool:
        """Whether all entries are one number other than zero."""
        return self.entries > 1 and self.low == self.high != 0.0

    @property
    def has_absurd_entry(self) -> bool:
        """Whether one number is beyond anything that a weight, bias or statistic can be."""
        return self.entries >= _FEW and self.largest > max(_HUGE, _ABSURD * self.runner_up)

    @property
    def is_zero(self) -> bool:
        """Whether all entries are zero."""
        return self.entries > 0 and self.zeros == self.entries


def gather_facts(tensor: Tensor, axis: int = 0) -> TensorFacts:
    """Gather the facts of a floating tensor whose filters run along `axis`.

    Example:
        >>> import torch
        >>> from rankwise.checks.facts import gather_facts
        >>> facts = gather_facts(torch.eye(4)[[0, 0, 1, 2]])
        >>> facts.copies, facts.dead_inputs
        (1, 1)
    """
    with torch.no_grad():
        return _gather(tensor.detach(), axis)


def _gather(tensor: Tensor, axis: int) -> TensorFacts:
    if tensor.numel() == 0:
        return TensorFacts(0, 0)
    is_matrix = tensor.ndim > 1
    # A vector is taken for one filter.
    matrix = tensor.movedim(axis, 0) if is_matrix else tensor.reshape(1, -1)
    inputs = matrix[0].numel()
    # Divided by a power of two near the largest entry, so that squares neither overflow nor vanish.
    peak = _find_peak(matrix)
    if not math.isfinite(peak):
        return _count_not_finite(matrix)
    scale = math.ldexp(1.0, math.frexp(peak)[1] - 1) if peak else 1.0
    zeros, fourth, squares = 0, 0.0, matrix.new_zeros(inputs, dtype=find_sum_type(matrix))
    low, high = math.inf, -math.inf
    norms: list[Tensor] = []
    sums: list[Tensor] = []
    peaks: list[Tensor] = []
    projected: list[Tensor] = []
    projection = _draw_projection(min(inputs, _MAX_PROJECTED), matrix) if is_matrix else None
    for block in split_filters(matrix):
        least, most = block.amin(1), block.amax(1)
        low, high = min(low, float(least.min())), max(high, float(most.max()))
        peaks.append(torch.maximum(-least, most))
        zeros += block.numel() - int(torch.count_nonzero(block))
        scaled = block / scale
        square = scaled * scaled
        norms.append(square.sum(1, dtype=squares.dtype).sqrt())
        squares += square.sum(0, dtype=squares.dtype)
        fourth += float(torch.dot(square.flatten(), square.flatten()))
        sums.append(scaled.sum(1, dtype=squares.dtype))
        if projection is not None:
            projected.append(scaled[:, : len(projection)] @ projection)
    norm = torch.cat(norms)
    top = torch.cat(peaks)
    largest, runner_up = _find_two_largest(matrix, top)
    mean = float(squares.sum()) / tensor.numel()
    facts = TensorFacts(
        entries=tensor.numel(),
        not_finite=0,
        zeros=zeros,
        rms=math.sqrt(mean) * scale,
        kurtosis=fourth / tensor.numel() / mean**2 if mean else 0.0,
        largest=largest,
        runner_up=runner_up,
        low=low,
        high=high,
        digest=_digest(norm, squares, torch.cat(sums), scale),
    )
    if not is_matrix:
        return facts
    two = norm.topk(min(2, len(norm))).values.tolist()
    return replace(
        facts,
        filters=len(norm),
        inputs=inputs,
        dead_filters=_count_dead(norm),
        dead_inputs=_count_dead(squares.sqrt()),
        copies=_count_copies(matrix, norm, torch.cat(projected)),
        top_filter=two[0] / two[1] if len(two) == 2 and two[1] > 0 else 1.0,
    )


def split_filters(matrix: Tensor) -> Iterator[Tensor]:
    """Yield some filters at a time, each as a row, in float64 or, where that holds it, float32."""
    if matrix.ndim < 2:
        matrix = matrix.reshape(1, -1)
    wide = torch.float64 if matrix.dtype is torch.float64 else torch.float32
    step = max(1, _CHUNK // max(1, matrix[0].numel()))
    for start in range(0, len(matrix), step):
        yield matrix[start : start + step].to(wide).flatten(1)


def find_sum_type(matrix: Tensor) -> torch.dtype:
    """Return the type for sums: float64, but for devices that have none."""
    return torch.float32 if matrix.device.type == "mps" else torch.float64


def _find_peak(matrix: Tensor) -> float:
    """Return the largest absolute value; NaN or infinity if any entry is."""
    ends = [float(end) for block in split_filters(matrix) for end in block.aminmax()]
    return math.nan if any(map(math.isnan, ends)) else max(map(abs, ends))


def _count_not_finite(matrix: Tensor) -> TensorFacts:
    not_finite = minus_infinite = zeros = 0
    for block in split_filters(matrix):
        zeros += block.numel() - int(torch.count_nonzero(block))
        not_finite += block.numel() - int(torch.isfinite(block).sum())
        minus_infinite += int(torch.isneginf(block).sum())
    return TensorFacts(matrix.numel(), not_finite, minus_infinite, zeros)


def _find_two_largest(matrix: Tensor, peaks: Tensor) -> tuple[float, float]:
    """Return the two largest absolute values, from the peaks of all filters."""
    row = int(peaks.argmax())
    inside = next(split_filters(matrix[row : row + 1])).abs().flatten()
    two = inside.topk(min(2, len(inside))).values.tolist()
    others = torch.cat((peaks[:row], peaks[row + 1 :]))
    candidates = [*two[1:], *([float(others.max())] if len(others) else [])]
    return two[0], max(candidates, default=0.0)


def _count_dead(norms: Tensor) -> int:
    if len(norms) < 2:
        return 0
    # Not torch.quantile, which takes no more than 16 million values.
    strong = float(norms.kthvalue(max(1, math.ceil(_STRONG * len(norms)))).values)
    if strong == 0.0:  # more than 95 % are exactly zero
        strong = float(norms.max())
    return int((norms <= _DEAD * strong).sum())


def _draw_projection(inputs: int, matrix: Tensor) -> Tensor:
    """Draw a fixed matrix that projects filters to a few dimensions and keeps their distances."""
    wide = torch.float64 if matrix.dtype is torch.float64 else torch.float32
    if inputs <= _PROJECTED:
        return torch.eye(inputs, dtype=wide, device=matrix.device)
    generator = torch.Generator(device="cpu").manual_seed(0)
    drawn = torch.randn((inputs, _PROJECTED), generator=generator, device="cpu")
    return (drawn / math.sqrt(_PROJECTED)).to(matrix.device, wide)


def _count_copies(matrix: Tensor, norms: Tensor, projected: Tensor) -> int:
    """Count the filters that are identical or near-identical to an earlier one."""
    alive = norms > _DEAD * float(norms.max())
    points, lengths = projected[alive], norms[alive]
    if len(points) < 2 or matrix[0].numel() < 2:
        return 0
    if len(points) > _MAX_PAIRED:
        keys = torch.cat((points[:, :4], lengths[:, None]), 1)
        return len(keys) - len(torch.unique(keys, dim=0))
    where = alive.nonzero().flatten()
    unit = (points / lengths[:, None]).to(torch.float32)
    # Projecting changes a distance by a factor of about 1 ± 1/√(2·48); four times that is safe.
    limit = 2 * 2 * (1 - NEAR_IDENTICAL)
    copies = 0
    step = max(1, _CHUNK // len(unit))
    square = (unit * unit).sum(1)
    for start in range(0, len(unit), step):
        rows = slice(start, start + step)
        distance = square[rows, None] + square - 2 * (unit[rows] @ unit.T)
        if int((distance < limit + 1e-6).sum()) == len(distance):  # each is close to itself alone
            continue
        earlier = torch.arange(len(unit), device=unit.device) < torch.arange(
            start, start + len(distance), device=unit.device
        ).unsqueeze(1)
        is_close = (distance < limit + 1e-6) & earlier
        distance = distance.masked_fill(~is_close, math.inf)
        count = min(_MAX_CANDIDATES, distance.shape[1])
        nearest = distance.topk(count, dim=1, largest=False)
        copies += _count_confirmed(
            matrix, where[rows], where[nearest.indices], nearest.values < math.inf
        )
    return copies


def _count_confirmed(
    matrix: Tensor, filters: Tensor, candidates: Tensor, is_candidate: Tensor
) -> int:
    """Count the filters that are near-identical to a candidate in all dimensions.

    Args:
        matrix: All filters.
        filters: The numbers of some.
        candidates: The numbers of a few others for each of these.
        is_candidate: Which of them are to be compared.
    """
    confirmed = torch.zeros(len(filters), dtype=torch.bool, device=matrix.device)
    step = max(1, _CHUNK // matrix[0].numel())
    for column in range(candidates.shape[1]):
        open_cases = (is_candidate[:, column] & ~confirmed).nonzero().flatten()
        for piece in torch.split(open_cases, step) if len(open_cases) else ():
            a, b = (
                next(split_filters(matrix[numbers]))
                for numbers in (filters[piece], candidates[piece, column])
            )
            # Divided by their largest entries, so that no product overflows.
            a, b = (rows / rows.abs().amax(1, keepdim=True) for rows in (a, b))
            cosine = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
            confirmed[piece] = cosine > NEAR_IDENTICAL
    return int(confirmed.sum())


def _digest(norms: Tensor, squares: Tensor, sums: Tensor, scale: float) -> str:
    """Return a key of the values: equal tensors have equal norms and sums, bit for bit."""
    key = hashlib.blake2b(repr((len(norms), len(squares), scale)).encode(), digest_size=16)
    for part in (norms, squares, sums):
        key.update(part.cpu().numpy().tobytes())
    return key.hexdigest()
