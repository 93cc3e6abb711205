"""An epoch's end: an optimizer's parameter groups → the layers' new states."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from rankwise.optim.param_groups import Group, layers_of, weights_in
from rankwise.optim.ranks import Found, Held, measure_layers
from rankwise.optim.rates import Reading, Rule, State, Unread, Variant, next_states
from rankwise.probes.probe_result import Probe
from rankwise.probes.results import LayerMetrics, Status

__all__ = ["Setting", "ended_epoch", "started"]

_FAILED = (Status.NOT_FINITE, Status.UNREADABLE, Status.NO_DATA)


class Setting(NamedTuple):
    """What is measured, and by whom.

    Attributes:
        include: Globs; only weights whose name or kind matches one are probed.
        exclude: Globs; weights whose name or kind matches one are not probed.
        share: Whether processes that train together divide the work.
        variant: "released" reads the stable rank as rmsgd 1.0.2 does, the others by Eq. 2.
        p: The power in the stable rank.
    """

    include: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    share: bool = True
    variant: Variant = "paper"
    p: float = 2.0


def started(
    groups: Sequence[Group], states: Sequence[State], which: Collection[int], setting: Setting
) -> list[State]:
    """The states with s(0) of the layers that some groups belong to.

    Nothing is exchanged here: a process may take its first step when others don't.
    """
    layers = {n: g for n, g in layers_of(groups).items() if not set(g).isdisjoint(which)}
    held = {layer: Held(_weights(groups, members, setting)) for layer, members in layers.items()}
    found = measure_layers(held, p=setting.p, share=False)
    new = list(states)
    for layer, members in layers.items():
        reading = _reading(found[layer], setting)
        known = None if isinstance(reading, Unread) else reading
        for index in members:
            new[index] = states[index]._replace(stable_rank=known)
    return new


def ended_epoch(
    groups: Sequence[Group],
    states: Sequence[State],
    rules: Sequence[Rule],
    stepped: Sequence[bool],
    setting: Setting,
) -> tuple[list[State], Probe]:
    """The layers' states after an epoch, and what the probe found.

    Groups of one layer share its stable rank and its pace; its first group with a weight leads.
    """
    layers = layers_of(groups)
    leads = {layer: _lead(groups, members) for layer, members in layers.items()}
    held = {
        layer: Held(
            _weights(groups, members, setting),
            states[leads[layer]].stable_rank,
            any(stepped[index] for index in members),
        )
        for layer, members in layers.items()
    }
    found = measure_layers(held, p=setting.p, share=setting.share)
    before = [states[leads[n]]._replace(stable_rank=found[n].before) for n in layers]
    readings = [_reading(found[layer], setting) for layer in layers]
    after = next_states(before, readings, [rules[lead] for lead in leads.values()])
    new = list(states)
    for state, members in zip(after, layers.values(), strict=True):
        for index in members:
            own = states[index].initial
            pace = own / state.initial if state.initial else 0.0
            new[index] = state._replace(initial=own, rate=state.rate * pace)
    rows = tuple(row for known in found.values() for row in known.rows)
    probe = Probe("optimizer", rows, setting.p)
    _warn_of_failures(layers, readings, found)
    return new, probe


def _weights(
    groups: Sequence[Group], members: Sequence[int], setting: Setting
) -> list[tuple[str, Tensor]]:
    include = setting.include
    if setting.variant == "released" and include is None:
        include = ("conv2d",)
    return [w for index in members for w in weights_in(groups[index], include, setting.exclude)]


def _lead(groups: Sequence[Group], members: Sequence[int]) -> int:
    """The group that a layer's rate is kept by: the first with a weight."""
    with_weight = (i for i in members if any(p.ndim >= 2 for p in groups[i]["params"]))
    return next(with_weight, members[0])


def _reading(found: Found, setting: Setting) -> Reading:
    """A layer's stable rank, the mean over its weights."""
    if not found.stepped:
        return Unread.IDLE
    if any(row.status in _FAILED for row in found.rows):
        return Unread.FAILED
    released = setting.variant == "released"
    counted = (Status.PROBED, Status.TOO_SMALL) if released else (Status.PROBED,)
    read = _released_rank if released else _rank
    ranks = [read(row) for row in found.rows if row.status in counted]
    return math.fsum(ranks) / len(ranks) if ranks else Unread.UNPROBED


def _rank(row: LayerMetrics) -> float:
    return 0.0 if row.stable_rank is None else row.stable_rank


def _released_rank(row: LayerMetrics) -> float:
    """As rmsgd 1.0.2 has it: over the unfolding's rows, and a single row or column counts as 0."""
    rows = {"matrix": row.shape[0], "output": row.shape[0], "input": row.shape[1]}
    sums = (mode.stable_rank * mode.rows / rows[mode.mode] for mode in row.modes)
    return math.fsum(sums) / (1 if len(row.shape) == 2 else 2)


def _warn_of_failures(
    layers: Collection[str], readings: Sequence[Reading], found: Mapping[str, Found]
) -> None:
    failed = [
        f"{layer} ({next(row.reason for row in found[layer].rows if row.status in _FAILED)})"
        for layer, reading in zip(layers, readings, strict=True)
        if reading is Unread.FAILED
    ]
    if failed:
        warnings.warn(
            f"These layers could not be measured and keep their rates: {', '.join(failed)}.",
            UserWarning,
            stacklevel=4,
        )
