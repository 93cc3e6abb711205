"""What each metric of a probe means, how far to trust it, and where it misleads."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from rankwise._text import suggest_names, wrap
from rankwise.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one metric, by its name in `LayerMetrics`.

    Example:
        >>> EXPLANATIONS["condition"].symbol
        'κ'
    """

    name: str
    symbol: str
    formula: str
    meaning: str
    range: str
    better: str
    caveats: tuple[str, ...] = ()


_ALL = (
    Explanation(
        "rank",
        "n'",
        "how many singular values of W rise above the noise level that EVBMF finds",
        "How many directions of the weight hold structure that random noise of the same strength "
        "would not show. EVBMF splits W into a low-rank part Ŵ and noise, with no setting to tune; "
        "n' is the rank of Ŵ.",
        "0 to n, the smaller side of the matrix; a convolution's rank is the mean of its two "
        "unfoldings, so it can end in .5",
        "Above 0 is learned; more is not always better.",
        (
            "0 means: not distinguishable from noise. The layer can still be useful, above all a "
            "narrow one, which has few values to estimate the noise from.",
            "Structure need not come from training: orthogonal or pruned initialisations have "
            "it too.",
        ),
    ),
    Explanation(
        "rank_fraction",
        "n'/n",
        "n' / n, n = min(rows, columns)",
        "The rank as a share of the largest it could be.",
        "0 to 1",
        "Above 0 is learned; near 1 leaves nothing that low-rank compression could drop.",
        ("For small n the steps are coarse: with n = 3 there are four possible values.",),
    ),
    Explanation(
        "stable_rank",
        "s",
        "s = (1/n) Σ (d_i / d_1)^p over the singular values d_i of Ŵ; p = 2 by default",
        "How evenly the learned directions share the layer's strength: small where one direction "
        "dominates, larger the more directions are about equally strong. It grows while a layer "
        "learns and flattens out afterwards.",
        "0 (noise only) to 1 (all directions learned and equally strong)",
        "Higher, compared with the same layer at another time; between layers of different shapes "
        "only roughly.",
        (
            "It depends on p: p = 1 gives larger values than p = 2. Compare like with like.",
            "It is divided by n, so one strong direction alone gives 1/n, not 1.",
        ),
    ),
    Explanation(
        "condition",
        "κ",
        "κ = 1 − d_n' / d_1, the smallest against the largest singular value of Ŵ",
        "How unevenly strong the learned directions are; near 1, small changes of the input along "
        "the strong directions mask those along the weak ones.",
        "0 (all equal) to 1; 1 by convention where Ŵ is empty",
        "Lower.",
        (
            "A rank-1 layer has κ = 0: a single direction can't be uneven.",
            "It depends on the smallest value kept, the one closest to the noise, so it jumps when "
            "the rank changes by one.",
        ),
    ),
    Explanation(
        "quality",
        "q",
        "q = arctan(s / κ)",
        "Stable rank and condition in one number: high where many directions are learned about "
        "evenly.",
        "0 (noise only) to π/2 = 1.571",
        "Higher, for the same layer.",
        (
            "A rank-1 layer gets the maximum π/2, since its κ is 0. That says nothing about "
            "learning; such layers are marked with a star.",
            "In most trained layers κ is close to 1, so q follows s; it inherits s's dependence "
            "on p.",
        ),
    ),
    Explanation(
        "network_quality",
        "Q",
        "Q = √(mean of q²) over the probed layers",
        "The layers' quality in one number for the whole network.",
        "0 to π/2 = 1.571; none where no layer was probed",
        "Higher, for one architecture over time or under other settings.",
        (
            "Trust it only between networks of one architecture, trained on the same data in the "
            "same way, and only where there are few rank-1 layers (q = π/2). On 98 networks by "
            "many authors it followed the share of rank-1 layers, in none of four families the "
            "accuracy, and ranked ResNet-20s in reverse. On 48 of our own, one network under many "
            "optimizers, rates and decays, it ranked them, though no better than a plain norm: "
            "see docs/results.md. Don't choose a model by it.",
            "For many networks, `rankwise study correlate` tests whether it is informative there. "
            "Where layers are marked with a star, look at s, rank and noise instead.",
            "Every layer counts the same, whatever its size.",
            "Layers of pure noise count with q = 0 unless left out (skip_empty).",
        ),
    ),
    Explanation(
        "noise_fraction",
        "1 − ‖Ŵ‖²/‖W‖²",
        "1 − ‖Ŵ‖²_F / ‖W‖²_F",
        "The share of the weight's energy that the low-rank part does not explain.",
        "0 (all structure) to 1 (all noise)",
        "Lower as a layer learns.",
        (
            "Noise here means: like independent random numbers. Detail spread over many weak "
            "directions counts as noise as well, though the network may use it.",
        ),
    ),
    Explanation(
        "noise_variance",
        "σ²",
        "σ² = the minimiser of EVBMF's free energy",
        "The variance of a single entry's noise.",
        "0 and above, in units of the weight squared",
        "Neither; it scales with the weights.",
        ("Not comparable between layers whose weights have different scales.",),
    ),
    Explanation(
        "spectral_norm",
        "‖W‖₂",
        "the largest singular value of W, noise included",
        "How much the layer can stretch an input at most.",
        "0 and above",
        "Neither; very large values go with unstable training.",
        ("For a convolution it is that of the unfolded weight, not of the convolution itself.",),
    ),
    Explanation(
        "frobenius_norm",
        "‖W‖_F",
        "√(sum of all squared entries)",
        "The size of the weight as a whole.",
        "0 and above",
        "Neither; weight decay and normalisation layers shift it.",
    ),
    Explanation(
        "effective_rank",
        "exp H",
        "exp(−Σ p_i ln p_i), p_i = the singular values of W divided by their sum",
        "How many directions W spreads over, without separating structure from noise.",
        "1 to n",
        "Neither on its own.",
        ("Pure noise scores high, so it mostly falls while a layer learns; compare it with n'.",),
    ),
    Explanation(
        "coverage",
        "",
        "parameters in probed layers / all parameters",
        "How much of the model the metrics cover.",
        "0 to 1",
        "Near 1; where it is low, look at what was skipped and why.",
    ),
    Explanation(
        "status",
        "",
        "one word per tensor: probed, or why it was not",
        "Every tensor of the model has a row. vector: a bias or norm scale. too small: a single "
        "row or column. tied: the same weights as another tensor. merged: part of another layer's "
        "weight. filtered: by include or exclude. not finite: holds NaN or Inf. integer, "
        "quantised, complex: not plain real weights. no data: shape without values. unreadable: "
        "damaged.",
        "probed, vector, too small, tied, merged, filtered, not finite, integer, quantised, "
        "complex, no data, unreadable",
        "not finite and unreadable need attention.",
    ),
)

EXPLANATIONS: Mapping[str, Explanation] = MappingProxyType({entry.name: entry for entry in _ALL})

_ALIASES = {
    "n'": "rank",
    "n'/n": "rank_fraction",
    "s": "stable_rank",
    "κ": "condition",
    "kappa": "condition",
    "q": "quality",
    "Q": "network_quality",
    "noise": "noise_fraction",
    "σ²": "noise_variance",
    "sigma2": "noise_variance",
}


def explain(metric: str | None = None, *, width: int | None = 80) -> str:
    """Explain a metric, or list all of them with a line each.

    Args:
        metric: A name such as "stable_rank" or its symbol (s, κ or kappa, q, Q); None for a list.
        width: Where to break lines; None for never.

    Raises:
        ArgumentError: If there is no such metric.

    Example:
        >>> print(explain("coverage"))
        coverage
          Formula: parameters in probed layers / all parameters
          Meaning: How much of the model the metrics cover.
          Range:   0 to 1
          Better:  Near 1; where it is low, look at what was skipped and why.
    """
    if metric is None:
        return "\n".join(_format_line(entry, width) for entry in _ALL)
    return _format_entry(EXPLANATIONS[_find_name(metric)], width)


def _find_name(metric: str) -> str:
    if metric.strip() in _ALIASES:  # before lower(): q and Q are two metrics
        return _ALIASES[metric.strip()]
    name = metric.strip().lower().replace("-", "_").replace(" ", "_")
    name = _ALIASES.get(name, name)
    if name in EXPLANATIONS:
        return name
    raise ArgumentError(
        f"There is no metric {metric!r}.{suggest_names(name, EXPLANATIONS)} "
        f"Choose one of: {', '.join(EXPLANATIONS)}."
    )


def _format_line(entry: Explanation, width: int | None) -> str:
    first, _, _ = entry.meaning.partition(". ")
    return wrap(f"{entry.name:<16} {first.rstrip('.')}.", width, " " * 17)


def _format_entry(entry: Explanation, width: int | None) -> str:
    lines = [
        f"  Formula: {entry.formula}",
        f"  Meaning: {entry.meaning}",
        f"  Range:   {entry.range}",
        f"  Better:  {entry.better}",
        *(f"  Caveat:  {caveat}" for caveat in entry.caveats),
    ]
    title = f"{entry.name} ({entry.symbol})" if entry.symbol else entry.name
    return "\n".join([title, *(wrap(line, width, " " * 11) for line in lines)])
