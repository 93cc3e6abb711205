"""A probe in words: a summary, what was skipped and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rankwise._text import format_count, format_percent, sanitize, wrap
from rankwise.probes.results import LayerMetrics
from rankwise.probes.tensor import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["format_skipped", "format_summary", "lifted", "names"]

MAX_QUALITY = math.pi / 2
NAMED = 4  # names listed before "and 12 more"

LABELS: Mapping[Status, tuple[str, str]] = {
    Status.VECTOR: ("vector (bias or norm scale)", "vectors (biases, norm scales)"),
    Status.TOO_SMALL: ("too small", "too small"),
    Status.TIED: ("tied", "tied"),
    Status.MERGED: ("merged into another", "merged into others"),
    Status.FILTERED: ("filtered out", "filtered out"),
    Status.NOT_FINITE: ("not finite", "not finite"),
    Status.INTEGER: ("integer tensor", "integer tensors"),
    Status.QUANTISED: ("quantised", "quantised"),
    Status.COMPLEX: ("complex", "complex"),
    Status.NO_DATA: ("without data", "without data"),
    Status.UNREADABLE: ("unreadable", "unreadable"),
}
SELF_EXPLAINING = {Status.VECTOR, Status.FILTERED}


def format_summary(
    layers: Sequence[LayerMetrics],
    quality: float | None,
    coverage: float,
    *,
    width: int | None = 80,
) -> str:
    """A probe in a few sentences; layers that are not finite are named first.

    Args:
        layers: Rows of a probe.
        quality: Network quality Q, None where nothing was probed.
        coverage: The share of all parameters that stand in probed layers.
        width: Where to break lines; None for never.

    Example:
        >>> print(format_summary([], None, 0.0))
        The model holds no tensors.
    """
    if not layers:
        return "The model holds no tensors."
    sentences = [*_warnings(layers), _structure([layer for layer in layers if layer.probed])]
    if quality is not None:
        sentences.append(
            f"Network quality Q = {quality:.3f} (of at most {MAX_QUALITY:.3f}); "
            f"{format_percent(coverage)} of parameters were probed."
        )
    return "\n".join(wrap(sentence, width) for sentence in sentences)


def format_skipped(layers: Sequence[LayerMetrics], *, width: int | None = 80) -> str:
    """What was not probed and why, a line for each kind; the counts add up to `len(layers)`.

    Args:
        layers: Rows of a probe.
        width: Where to break lines; None for never.

    Example:
        >>> import rankwise, torch
        >>> print(format_skipped(rankwise.probe({"fc.bias": torch.ones(8)}).layers))
        0 of 1 tensor probed; not probed:
          1 vector (bias or norm scale): fc.bias
    """
    groups: dict[Status, list[LayerMetrics]] = {}
    for layer in layers:
        groups.setdefault(layer.status, []).append(layer)
    probed = len(groups.pop(Status.PROBED, []))
    if not groups:
        return _all_probed(probed)
    head = f"{probed} of {format_count(len(layers), 'tensor')} probed; not probed:"
    lines = [wrap(_group(status, group), width, "      ") for status, group in groups.items()]
    return "\n".join([wrap(head, width), *lines])


def _all_probed(tensors: int) -> str:
    if tensors > 1:
        return f"All {tensors} tensors were probed."
    return "The only tensor was probed." if tensors else ""


def lifted(layer: LayerMetrics) -> bool:
    """Whether an unfolding of rank 1, where q is π/2 by definition, lifts the layer's q."""
    return any(mode.rank == 1 for mode in layer.modes)


def names(layers: Sequence[LayerMetrics]) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(sanitize(layer.name) for layer in layers[:NAMED])
    hidden = len(layers) - NAMED
    return f"{listed} and {hidden} more" if hidden > 0 else listed


def _warnings(layers: Sequence[LayerMetrics]) -> list[str]:
    broken = [layer for layer in layers if layer.status is Status.NOT_FINITE]
    if not broken:
        return []
    holds = "holds" if len(broken) == 1 else "hold"
    return [f"Warning: {format_count(len(broken), 'layer')} {holds} NaN or Inf: {names(broken)}."]


def _structure(probed: Sequence[LayerMetrics]) -> str:
    if not probed:
        return "No layer was probed."
    held = [layer for layer in probed if not layer.is_empty]
    parts = [_held(len(held), probed)]
    noisiest = max(held, key=lambda layer: layer.noise_fraction or 0.0, default=None)
    if noisiest is not None and (noisiest.noise_fraction or 0.0) >= 0.5:
        parts.append(
            f"{sanitize(noisiest.name)} is {format_percent(noisiest.noise_fraction)} noise"
        )
    return "; ".join([*parts, *_rank_ones(held)]) + "."


def _held(held: int, probed: Sequence[LayerMetrics]) -> str:
    empty = [layer for layer in probed if layer.is_empty]
    zeros = [layer for layer in empty if layer.frobenius_norm == 0]
    noise = [layer for layer in empty if layer.frobenius_norm != 0]
    if not empty:
        return f"All {held} layers hold structure" if held > 1 else "The one layer holds structure"
    if not held and not zeros and len(noise) > 1:
        return f"None of {len(noise)} layers holds structure: all look like pure noise"
    asides = []
    if noise:
        look = "looks" if len(noise) == 1 else "look"
        asides.append(f"{len(noise)} {look} like pure noise: {names(noise)}")
    if zeros:
        asides.append(f"{len(zeros)} {'is' if len(zeros) == 1 else 'are'} all zero: {names(zeros)}")
    holds = "holds" if 1 in {held, len(probed)} else "hold"
    return f"{held} of {format_count(len(probed), 'layer')} {holds} structure ({'; '.join(asides)})"


def _rank_ones(held: Sequence[LayerMetrics]) -> list[str]:
    wholly = [layer for layer in held if lifted(layer) and layer.is_rank_one]
    partly = [layer for layer in held if lifted(layer) and not layer.is_rank_one]
    parts = []
    if wholly:
        verb, their = ("is", "its") if len(wholly) == 1 else ("are", "their")
        why = f"{their} q, marked *, is at its maximum by definition, not by learning"
        parts.append(f"{format_count(len(wholly), 'layer')} {verb} rank 1 ({why})")
    if partly:
        verb, their = ("is", "its") if len(partly) == 1 else ("are", "their")
        why = f"which lifts {their} q, marked *, by definition, not by learning"
        parts.append(f"{format_count(len(partly), 'layer')} {verb} rank 1 in one unfolding ({why})")
    return parts


def _group(status: Status, group: Sequence[LayerMetrics]) -> str:
    label = LABELS.get(status, (status.value, status.value))[len(group) != 1]
    reasons = {sanitize(layer.reason).rstrip(".") for layer in group}
    if status in SELF_EXPLAINING or reasons == {""}:
        listed = names(group)
    elif len(reasons) == 1 and len(group) > 1:
        listed = f"{names(group)} ({reasons.pop()})"
    else:
        listed = _with_reasons(group)
    return f"  {len(group)} {label}: {listed}"


def _with_reasons(group: Sequence[LayerMetrics]) -> str:
    reasons = [sanitize(layer.reason).rstrip(".") for layer in group[:NAMED]]
    named = [sanitize(layer.name) for layer in group[:NAMED]]
    listed = (f"{n} ({r})" if r else n for n, r in zip(named, reasons, strict=True))
    hidden = len(group) - NAMED
    return ", ".join(listed) + (f" and {hidden} more" if hidden > 0 else "")
