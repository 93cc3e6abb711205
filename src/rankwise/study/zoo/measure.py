"""Networks → their scores, and what their layers are like; those that can't be read are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import rankwise
from rankwise.study.zoo.networks import LeftOut, Network
from rankwise.study.zoo.scores import SCORES, modes_of

__all__ = ["Measured", "measure"]

Watcher = Callable[[rankwise.Progress], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """A network and what its weights tell.

    Attributes:
        network: The network.
        scores: Every score, by name; None where it is not defined.
        qualities: The q of every probed layer.
        shapes: The shape of every probed layer: networks with the same have one architecture.
        rank_one: How many layers are of rank 1.
        empty: How many layers hold noise only.
        modes: How many unfoldings there are.
        rank_one_widths: The smaller side of each unfolding of rank 1.
    """

    network: Network
    scores: Mapping[str, float | None]
    qualities: Mapping[str, float]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    rank_one: int
    empty: int
    modes: int
    rank_one_widths: tuple[int, ...]

    @property
    def rank_one_share(self) -> float:
        """The share of unfoldings that are of rank 1."""
        return len(self.rank_one_widths) / self.modes


def measure(
    networks: Iterable[Network], watch: Watcher | None = None
) -> tuple[list[Measured], list[LeftOut]]:
    """Probe every network; one that can't be is left out with its reason, and the others go on.

    Args:
        networks: Those to probe.
        watch: Called after each, with how many are done.
    """
    measured: list[Measured] = []
    left_out: list[LeftOut] = []
    listed = list(networks)
    for done, network in enumerate(listed, 1):
        found = _measured(network)
        if isinstance(found, Measured):
            measured.append(found)
        else:
            left_out.append(found)
        if watch is not None:
            watch(rankwise.Progress(done, len(listed), network.name))
    return measured, left_out


def _measured(network: Network) -> Measured | LeftOut:
    try:
        probe = rankwise.probe(network.path, spectra=True)
    except (rankwise.RankwiseError, OSError) as error:
        return LeftOut(network.name, str(error))
    if not probe.probed:
        return LeftOut(network.name, "holds no layer that can be probed")
    modes = modes_of(probe)
    return Measured(
        network,
        {name: score.of(probe) for name, score in SCORES.items()},
        {layer.name: layer.quality for layer in probe.probed if layer.quality is not None},
        tuple((layer.name, layer.shape) for layer in probe.probed),
        sum(layer.is_rank_one for layer in probe.probed),
        sum(layer.is_empty for layer in probe.probed),
        len(modes),
        tuple(mode.rows for mode in modes if mode.rank == 1),
    )
