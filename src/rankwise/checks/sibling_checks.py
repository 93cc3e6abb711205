"""Findings about a layer and its siblings: layers of the same role and shape elsewhere."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rankwise._text import format_count, sanitize
from rankwise.checks.calibration import describe_width
from rankwise.checks.facts import TensorFacts
from rankwise.checks.findings import Finding, Severity, make_finding
from rankwise.checks.inspection import Inspection
from rankwise.numerics.randomness import MIN_WIDTH, Verdict
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.weights.kinds import find_role

# Chosen on one half of the families of real networks, measured on the other (docs/check.md).
_CLEAR_OVERLAP = 8.0  # standard deviations of a sibling that clearly differs from random weights
_CLEAR_SHARE = 0.8  # of the siblings must do so
_SURE_WIDTH = 32  # below, a layer that looks untrained is a warning
_MIN_SIBLINGS = 2
_MAX_SIBLINGS = 100
_KURTOSIS_ERRORS = 5.0  # standard errors; training leaves heavier tails than any initialisation
_SCALE_WARNING, _SCALE_ERROR = math.log(6), math.log(1000)  # 316, in a face detector
_SPREADS = 4.0  # a deviation counts if it is so many times the spread of the siblings
_COLLAPSED, _COLLAPSE = 2.0, math.log(8)
_MAX_EXPONENT = 700.0  # math.exp overflows beyond
_MIN_JUDGED = 3  # layers without which a whole network is not said to look untrained


@dataclass(frozen=True, slots=True)
class Layer:
    """A probed weight with its facts."""

    row: LayerMetrics
    facts: TensorFacts
    role: str  # its name without numbers: equal for the same part of all blocks

    @property
    def name(self) -> str:
        """Its name."""
        return self.row.name

    @property
    def width(self) -> int:
        """The smaller of the numbers of filters and inputs that are alive."""
        return min(
            self.facts.filters - self.facts.dead_filters,
            self.facts.inputs - self.facts.dead_inputs,
        )

    @property
    def is_spread_like_initial(self) -> bool:
        """Whether its numbers have no heavier tails than a normal initialisation."""
        return self.facts.kurtosis <= 3 + _KURTOSIS_ERRORS * math.sqrt(24 / self.facts.entries)

    @property
    def is_clear(self) -> bool:
        """Whether it differs from random weights beyond doubt."""
        return self.row.verdict is Verdict.DIFFERS and (self.row.overlap or 0.0) >= _CLEAR_OVERLAP


def list_matrices(inspection: Inspection) -> list[Layer]:
    """Return the probed weights that have two sides and a value other than zero."""
    return [
        Layer(row, facts, find_role(row.name))
        for row, facts in inspection.list_layers()
        if min(facts.filters, facts.inputs) > 1
    ]


def check_siblings(inspection: Inspection) -> Iterator[Finding]:
    """Compare every layer with those of its role and shape."""
    layers = list_matrices(inspection)
    shapes: dict[tuple[object, ...], list[Layer]] = defaultdict(list)
    roles: dict[tuple[object, ...], list[Layer]] = defaultdict(list)
    for layer in layers:
        shapes[layer.row.kind, layer.row.shape].append(layer)
        roles[layer.row.kind, layer.row.shape, layer.role].append(layer)
    yield from _check_network(layers)
    for layer in layers:
        same_shape = _select_others(shapes[layer.row.kind, layer.row.shape], layer)
        siblings = _select_others(roles[layer.row.kind, layer.row.shape, layer.role], layer)
        if layer.row.verdict in (Verdict.RANDOM, Verdict.NORMS_ONLY):
            yield _check_untrained(layer, layer.row.verdict, siblings, same_shape)
        if not layer.facts.has_absurd_entry:  # which explains its scale and its rank
            yield from _check_scale(layer, siblings)
            yield from _check_collapse(layer, siblings)
    yield from _find_identical(layers)


def _select_others(group: Sequence[Layer], layer: Layer) -> list[Layer]:
    """Return the others of a group; of thousands, as experts are, some spread over all of them."""
    step = -(-len(group) // _MAX_SIBLINGS)
    return [other for other in group[::step] if other is not layer]


def _check_network(layers: Sequence[Layer]) -> Iterator[Finding]:
    judged = [x for x in layers if x.row.verdict not in (None, Verdict.TOO_SMALL)]
    if len(judged) >= _MIN_JUDGED and all(x.row.verdict is Verdict.RANDOM for x in judged):
        message = (
            f"None of the {len(judged)} layers that can be judged differs from random weights: "
            "this looks like an initialised network that was not trained."
        )
        yield make_finding("untrained-network", Severity.WARNING, None, message, judged=len(judged))


def _check_untrained(
    layer: Layer, verdict: Verdict, siblings: Sequence[Layer], same_shape: Sequence[Layer]
) -> Finding:
    """Grade a layer in which no direction stands out by what its siblings show."""
    others, severity = siblings, Severity.ERROR
    if len(siblings) < _MIN_SIBLINGS:
        others, severity = same_shape, Severity.WARNING
    if layer.width < _SURE_WIDTH or verdict is not Verdict.RANDOM:
        severity = Severity.WARNING
    clear = sum(other.is_clear for other in others)
    if not layer.is_spread_like_initial:
        severity = Severity.NOTE
        context = "But its numbers have heavier tails than an initialisation gives them."
    elif len(others) < _MIN_SIBLINGS or clear < _CLEAR_SHARE * len(others):
        severity = Severity.NOTE
        context = (
            "This alone proves nothing: healthy layers can have a flat spectrum, and no siblings "
            "of the same shape show what is usual here."
            if not others
            else "This alone proves nothing: healthy layers can have a flat spectrum, and "
            f"{clear} of {format_count(len(others), 'sibling')} differ clearly from random weights."
        )
    else:
        context = (
            f"{clear} of {format_count(len(others), 'sibling')} of the same shape clearly differ."
        )
    return make_finding(
        "looks-untrained",
        severity,
        layer.name,
        f"{_DESCRIPTIONS[verdict]} {context}",
        confidence=describe_width(layer.width),
        width=layer.width,
        chance=layer.row.chance or 0.0,
        overlap=layer.row.overlap or 0.0,
        kurtosis=layer.facts.kurtosis,
        siblings=len(others),
        clear_siblings=clear,
    )


_DESCRIPTIONS = {
    Verdict.RANDOM: "The layer can't be distinguished from random weights.",
    Verdict.NORMS_ONLY: "With all filters scaled to one norm, the layer can't be distinguished "
    "from random weights.",
}


def _check_scale(layer: Layer, siblings: Sequence[Layer]) -> Iterator[Finding]:
    scales = [math.log(other.facts.rms) for other in siblings if other.facts.rms > 0]
    if len(scales) < _MIN_SIBLINGS or layer.facts.rms == 0:
        return
    center = statistics.median(scales)
    spread = statistics.median(abs(scale - center) for scale in scales)
    deviation = math.log(layer.facts.rms) - center
    if abs(deviation) < max(_SCALE_WARNING, _SPREADS * spread):
        return
    ratio = math.exp(min(abs(deviation), _MAX_EXPONENT))
    how = "larger" if deviation > 0 else "smaller"
    yield make_finding(
        "scale-outlier",
        Severity.ERROR if deviation >= _SCALE_ERROR else Severity.WARNING,
        layer.name,
        f"Its weights are {ratio:.3g} times {how} than those of its "
        f"{format_count(len(scales), 'sibling')} (median).",
        rms=layer.facts.rms,
        siblings_rms=math.exp(center),
        siblings=len(scales),
    )


def _check_collapse(layer: Layer, siblings: Sequence[Layer]) -> Iterator[Finding]:
    ranks = [rank for other in siblings if (rank := numerical_rank(other.row)) is not None]
    own = numerical_rank(layer.row)
    if len(ranks) < _MIN_SIBLINGS or own is None or layer.width < MIN_WIDTH:
        return
    usual = statistics.median(ranks)
    if has_collapsed(own, usual):
        yield make_finding(
            "rank-collapse",
            Severity.WARNING,
            layer.name,
            f"Its stable rank ‖W‖²/s₁² is {own:.3g}; that of its "
            f"{format_count(len(ranks), 'sibling')} is {usual:.3g} (median).",
            stable_rank=own,
            siblings_stable_rank=usual,
            siblings=len(ranks),
        )


def has_collapsed(rank: float, usual: float) -> bool:
    """Return whether a stable rank is next to nothing compared with the usual one."""
    return rank <= _COLLAPSED and math.log(usual / rank) >= _COLLAPSE


def numerical_rank(row: LayerMetrics) -> float | None:
    """Return ‖W‖²/s₁², the stable rank of the weight itself; None for a weight of zeros."""
    if not row.spectral_norm or not row.frobenius_norm:
        return None
    return (row.frobenius_norm / row.spectral_norm) ** 2


def _find_identical(layers: Sequence[Layer]) -> Iterator[Finding]:
    """Find layers that repeat an earlier one of their role; heads may equal embeddings."""
    first: dict[str, Layer] = {}
    for layer in layers:
        facts = layer.facts
        if facts.is_zero or facts.is_constant or min(facts.filters, facts.inputs) < MIN_WIDTH:
            continue
        other = first.setdefault(facts.digest, layer)
        if other is not layer and other.role == layer.role:
            message = f"It holds the same values as {sanitize(other.name)}."
            yield make_finding(
                "identical-layers", Severity.WARNING, layer.name, message, other=other.name
            )
