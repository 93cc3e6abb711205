"""What each metric of a layer and each figure of a network means, and where it misleads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one metric, by its name in `LayerMetrics` or `NetworkFigures`.

    Example:
        >>> ENTRIES[0].symbol
        "n'"
    """

    name: str
    symbol: str
    formula: str
    meaning: str
    range: str
    reading: str  # what a high or low value says, and what it does not
    caveats: tuple[str, ...] = ()


_LAYERS = (
    Explanation(
        "rank",
        "n'",
        "how many singular values of W rise above the noise level that EVBMF finds",
        "How many directions of the weight stand out from random noise of the same strength. EVBMF "
        "splits W into a low-rank part Ŵ and noise, with no setting to tune; n' is the rank of Ŵ.",
        "0 to n, the smaller side of the matrix; a convolution's rank is the mean of its two "
        "unfoldings, so it can end in .5",
        "0: no direction stands out. More is not better.",
        (
            "A layer of rank 0 can be trained and useful: 12 % of the unfoldings of trained "
            "networks have rank 0. In a well-trained language model they were the value "
            "projections.",
            "A rank above 0 need not come from training: filters of unequal norms have it, and so "
            "do pruned initialisations. See verdict.",
        ),
    ),
    Explanation(
        "rank_fraction",
        "n'/n",
        "n' / n, n = min(rows, columns)",
        "The rank as a share of the largest it could be.",
        "0 to 1",
        "Near 1, low-rank compression could drop nothing.",
        ("For small n the steps are coarse: with n = 3 there are four possible values.",),
    ),
    Explanation(
        "stable_rank",
        "s",
        "s = (1/n) Σ (d_i / d_1)^p over the singular values d_i of Ŵ; p = 2 by default",
        "How evenly the directions that stand out share the layer's strength: small where one "
        "dominates, larger the more of them are about equally strong.",
        "0 (no direction stands out) to 1 (all directions do, and equally)",
        "It mostly rises while a layer is trained, and keeps rising while the network overfits. "
        "Compare a layer with itself over time; between shapes it compares only roughly.",
        (
            "It depends on p: p = 1 gives larger values than p = 2. Compare like with like.",
            "It is divided by n, so one strong direction alone gives 1/n, not 1.",
        ),
    ),
    Explanation(
        "condition",
        "κ",
        "κ = 1 − d_n' / d_1, the smallest against the largest singular value of Ŵ",
        "How unevenly strong the directions that stand out are; near 1, small changes of the input "
        "along the strong directions mask those along the weak ones.",
        "0 (all equal) to 1; 1 by convention where Ŵ is empty",
        "The paper takes a low κ for good; our data do not bear that out.",
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
        "The paper's combination of stable rank and condition.",
        "0 (no direction stands out) to π/2 = 1.571",
        "The paper takes a high q for good; our data do not bear that out. Look at s, rank and "
        "verdict instead.",
        (
            "A rank-1 layer gets the maximum π/2, since its κ is 0. That says nothing about "
            "learning; such layers are marked with a star.",
            "In most trained layers κ is close to 1, so q follows s; it inherits s's dependence "
            "on p.",
        ),
    ),
    Explanation(
        "prominence",
        "",
        "ln(s_1 / t), s_1 the largest singular value of W, t EVBMF's threshold for noise; the mean "
        "over unfoldings",
        "How far the strongest direction stands out from the noise.",
        "below 0 where no direction stands out; none where a weight has no noise",
        "Against random initialisations it tells trained layers with an AUC of .75–.86 for n < 16, "
        ".93 for 16–31, .96 for 32–63, .99 for 64–127 and 1.00 from 128 on. It does not rank "
        "networks.",
        ("Unequal filter norms raise it in random weights too; the verdict does not count them.",),
    ),
    Explanation(
        "verdict",
        "",
        "two tests of the filters scaled to unit norm: the overlap of all pairs, and the largest "
        "direction; 1 in 1000 random layers differs by chance",
        "Whether the weights differ from independent random numbers, as initialisations draw them.",
        "differs from random, flatter than random, differs only in its filters' norms, no "
        "direction stands out, too small to tell",
        "A layer that differs is not untrained. One in which no direction stands out may be: "
        "compare it with layers of the same kind, since well-trained layers can be flat too.",
        (
            "Below 16 filters or inputs there is no verdict: there a fifth of trained layers look "
            "like random ones.",
            "It says that a layer has changed from random numbers, not that it has learned well.",
        ),
    ),
    Explanation(
        "chance",
        "p",
        "the smaller p of the two tests behind the verdict, doubled",
        "The probability that random weights differ from the expectation as much.",
        "0 (too small for float64) to 1",
        "Below 0.001 the verdict is that the layer differs.",
    ),
    Explanation(
        "overlap",
        "",
        "(Σ r² − its mean) / its standard deviation, r the cosines of all pairs of filters; mean "
        "and deviation are those of random filters",
        "How much more alike the filters are than random ones.",
        "around 0 for random filters; below 0 where they are more nearly orthogonal",
        "Far from 0 on either side the filters are not random.",
    ),
    Explanation(
        "noise_fraction",
        "1 − ‖Ŵ‖²/‖W‖²",
        "1 − ‖Ŵ‖²_F / ‖W‖²_F",
        "The share of the weight's energy that the low-rank part does not explain.",
        "0 (all of it is in directions that stand out) to 1 (none)",
        "It mostly falls while a layer is trained.",
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
        "It scales with the weights.",
        ("Not comparable between layers whose weights have different scales.",),
    ),
    Explanation(
        "spectral_norm",
        "‖W‖₂",
        "the largest singular value of W, noise included",
        "How much the layer can stretch an input at most.",
        "0 and above",
        "Very large values go with unstable training.",
        ("For a convolution it is that of the unfolded weight, not of the convolution itself.",),
    ),
    Explanation(
        "frobenius_norm",
        "‖W‖_F",
        "√(sum of all squared entries)",
        "The size of the weight as a whole.",
        "0 and above",
        "Weight decay and normalisation layers shift it.",
    ),
    Explanation(
        "effective_rank",
        "exp H",
        "exp(−Σ p_i ln p_i), p_i = the singular values of W divided by their sum",
        "How many directions W spreads over, without separating structure from noise.",
        "1 to n",
        "It mostly falls while a layer is trained, since random weights score high; compare it "
        "with n'.",
    ),
    Explanation(
        "status",
        "",
        "one word per tensor: probed, or why it was not",
        "Every tensor of the model has a row. vector: a bias or norm scale. not a weight: a table "
        "of biases, a token, a grid or a constant, which multiplies no input. too small: a single "
        "row or column. tied: the same weights as another tensor. merged: part of another layer's "
        "weight. filtered: by include or exclude. not finite: holds NaN or Inf. integer, "
        "quantised, complex: not plain real weights. no data: shape without values. unreadable: "
        "damaged.",
        "probed, vector, not a weight, too small, tied, merged, filtered, not finite, integer, "
        "quantised, complex, no data, unreadable",
        "not finite and unreadable need attention.",
    ),
)
_NETWORK = (
    Explanation(
        "differing",
        "",
        "how many layers have the verdict 'differs from random', of those that can be judged",
        "In how many layers the weights are no longer like an initialisation.",
        "0 to the number of probed layers",
        "In a trained network nearly all layers differ; look at those that do not.",
    ),
    Explanation(
        "signal_energy",
        "",
        "Σ ‖Ŵ‖²_F / Σ ‖W‖²_F over the probed layers",
        "How much of the weights' energy is in directions that stand out from noise.",
        "0 to 1",
        "It mostly rises during training. It does not say which of two networks is better.",
        ("Layers of large norm, such as embeddings, dominate it.",),
    ),
    Explanation(
        "stable_rank_by_width",
        "S",
        "S = Σ n s / Σ n over the unfoldings of all probed layers",
        "The stable rank of the whole network: wide layers count more than narrow ones.",
        "0 to 1",
        "Of two epochs of one run, the later one has the higher S in 95 % of pairs. That is time, "
        "not quality: it keeps rising while a network overfits. Don't choose a model by it.",
        ("A 1×1 convolution counts twice: its two unfoldings have the same singular values.",),
    ),
    Explanation(
        "total_rank",
        "Σ n'",
        "the sum of n' over the probed layers, a convolution's being the mean of its unfoldings",
        "How many directions of the whole network stand out from noise.",
        "0 to the sum of n",
        "Of two epochs of one run, the later one has the higher total rank in 92 % of pairs. That "
        "is time, not quality, as with S.",
        ("It grows with the size of the network.",),
    ),
    Explanation(
        "network_quality",
        "Q",
        "Q = √(mean of q²) over the probed layers",
        "The paper's figure for a whole network.",
        "0 to π/2 = 1.571; none where no layer was probed",
        "The paper takes a high Q for good; our data do not bear that out. It is no gate, and "
        "nothing to monitor or choose a model by.",
        (
            "Over 444 real networks in 12 families Q has the right sign in 3; the number of "
            "parameters has it in 10 of 11. Of two epochs of one run it orders 56–66 % of pairs "
            "rightly.",
            "It is decided by rank-1 layers (q = π/2): in a real sentence encoder 98.9 % of Q² "
            "came from two of them; along a run that stays at 99 % accuracy Q jumped from .57 to "
            ".11 and back to .56.",
            "For your own networks, `rankwise study correlate` compares it with norms and size.",
            "Every layer counts the same, whatever its size. Layers of rank 0 count with q = 0 "
            "unless left out (skip_empty).",
        ),
    ),
    Explanation(
        "coverage",
        "",
        "parameters in probed layers / all parameters, biases and norms included",
        "How much of the model the metrics cover.",
        "0 to 1",
        "Where it is far below 1, look at what was skipped and why.",
    ),
)
ENTRIES = (*_LAYERS, *_NETWORK)
