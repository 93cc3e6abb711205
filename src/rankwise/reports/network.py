"""The figures of a whole network as tiles and sentences, in the order of what they can tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rankwise._text import format_count, format_percent
from rankwise.probes.text import format_metric, format_total_rank
from rankwise.reports.page import Fact

if TYPE_CHECKING:
    from rankwise.probes.results import Probe

PAPER = (
    "The paper describes a layer by its condition κ and its quality q = arctan(s/κ), and a network "
    "by Q, the root mean square of q. They are here for comparison with the paper: neither of them "
    "ranks networks, and a layer of rank 1 has the highest possible q by definition. Don't choose "
    "a model by them; rankwise explain Q says why."
)


def list_network_facts(probe: Probe) -> Iterator[Fact]:
    """Yield a tile for each figure of the network."""
    figures = probe.figures
    yield Fact("Layers that differ from random", *_describe_differing(probe))
    signal = format_percent(figures.signal_energy)
    yield Fact("Signal energy", signal, "in directions above the noise")
    stable_rank = format_metric(figures.stable_rank_by_width)
    yield Fact("Stable rank S", stable_rank, "weighted by width")
    yield Fact("Total rank", format_total_rank(figures.total_rank), "directions above the noise")
    covered = f"{format_percent(figures.coverage)} in probed layers"
    yield Fact("Parameters", f"{figures.parameters:,}", covered)


def list_changed_facts(before: Probe, after: Probe, *, since: str) -> Iterator[Fact]:
    """Yield the same tiles with the earlier value below each; `since` is what that one is of."""
    for old, new in zip(list_network_facts(before), list_network_facts(after), strict=True):
        yield Fact(new.label, new.value, f"{since}: {old.value}")


def describe_paper_quality(probe: Probe) -> str:
    """Return Q in a sentence, with the rank-1 layers that it consists of."""
    text = f"Q = {format_metric(probe.figures.quality)}"
    inflated = sum(layer.has_inflated_quality for layer in probe.probed)
    if not inflated:
        return f"{text}."
    verb = "has" if inflated == 1 else "have"
    return f"{text}; {format_count(inflated, 'layer')} (*) {verb} rank 1 in an unfolding."


def _describe_differing(probe: Probe) -> tuple[str, str]:
    figures = probe.figures
    unknown = sum(layer.verdict is None for layer in probe.probed)
    remarks = [f"{figures.too_small} too small to tell"] if figures.too_small else []
    remarks += [f"{unknown} not compared"] if unknown else []
    return f"{figures.differing} of {figures.judged}", ", ".join(remarks)
