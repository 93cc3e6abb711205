"""What a trainer or logger needs of an optimizer: the one inside its wrappers, and its figures."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.optim.rmsgd import RMSGD
from rankwise.optim.stable_rank_lr import StableRankLR

__all__ = ["Source", "figures", "unwrapped"]

Source = RMSGD | StableRankLR


def unwrapped(thing: object) -> Source | None:
    """The RMSGD or StableRankLR that something is, wraps or schedules; None if there is none."""
    while thing is not None and not isinstance(thing, RMSGD | StableRankLR):
        # Accelerate's scheduler calls what it wraps `scheduler`, its optimizer `optimizer`.
        thing = getattr(thing, "scheduler", None) or getattr(thing, "optimizer", None)
    return thing


def figures(source: Source, kinds: Sequence[str]) -> dict[str, float]:
    """The layers' figures, as "rate/conv1", and Q of the network.

    Args:
        source: Where they come from; before the first epoch's end it knows nothing but rates.
        kinds: "rate" for the groups' rates, and names of metrics.
    """
    found: dict[str, float] = {}
    if "rate" in kinds:
        found = {f"rate/{name}": rate for name, rate in source.rates().items()}
    probe = source.last_probe
    if probe is None:
        return found
    for kind in kinds:
        for layer in probe.probed if kind != "rate" else ():
            found[f"{kind}/{layer.name.removesuffix('.weight')}"] = getattr(layer, kind)
    return found if probe.quality is None else {**found, "Q": probe.quality}
