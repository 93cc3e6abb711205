"""Records of the noise calibration → its section in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, spearmanr

from benchmarks.timing import format_table

_KAPPA_SHARE = 0.2  # of the layers that PEFT's selector takes by default
_WIDTHS = (("8–16", 8, 16), ("32–128", 32, 128), ("256–1024", 256, 1024))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the rules say of one matrix with a known number of directions.

    Attributes:
        rows: L, the smaller side.
        columns: M, the larger side.
        planted: The number of directions that the matrix has.
        evbmf: The number that EVBMF finds.
        median_rule: The number that Gavish and Donoho's rule finds.
        edge_rule: The number above the edge of the noise.
        spectrum: The number of singular values that Spectrum calls signal.
        kappa: The condition number by which PEFT's selector ranks.
    """

    rows: int
    columns: int
    planted: int
    evbmf: int
    median_rule: int
    edge_rule: int
    spectrum: int
    kappa: float

    @property
    def aspect(self) -> float:
        """Larger side over smaller side."""
        return self.columns / self.rows

    @property
    def is_kernel(self) -> bool:
        """Whether it has the shape of a 3 × 3 convolution's weight."""
        return self.columns % 9 == 0


def format_section(
    gaussian: Sequence[Outcome],
    others: Mapping[str, Sequence[Outcome]],
    planted: Mapping[float, Sequence[Outcome]],
) -> str:
    """Return the section: Gaussian noise, other noise by name, and planted ranks by strength."""
    return "\n\n".join(
        (
            "## Noise: directions found where there are none",
            _introduce_gaussian(gaussian),
            _format_gaussian(gaussian),
            _describe_kappa(gaussian),
            "### Noise that is not Gaussian",
            _introduce_others(others),
            _format_others(others),
            "### Planted ranks",
            _introduce_planted(planted),
            _format_planted(planted),
        )
    )


def _introduce_gaussian(outcomes: Sequence[Outcome]) -> str:
    shapes = {(outcome.rows, outcome.columns) for outcome in outcomes}
    shares = [outcome.spectrum / outcome.rows for outcome in outcomes]
    return f"""{len(outcomes):,} matrices of independent normal numbers: {len(shapes)} shapes from
8 × 8 to 1024 × 4096, standard deviations from 10⁻⁶ to 10³, stored as float32. "False" is the number
of matrices in which a rule finds any direction, with the exact 95 % interval of its share.

- Spectrum chooses the layers to train by a formula that calls {min(shares):.0%} to
  {max(shares):.0%} of these singular values signal (mean {np.mean(shares):.0%}): it takes the
  spread of the singular values for that of the entries.
- The edge rule is what that formula is meant to be: the upper edge of Marchenko and Pastur's law.
  It has no margin for the fluctuations of a finite matrix.
- The median rule is Gavish and Donoho's hard threshold for unknown noise."""


def _format_gaussian(outcomes: Sequence[Outcome]) -> str:
    aspects = sorted({o.aspect for o in outcomes if not o.is_kernel})
    groups = {"all": list(outcomes)}
    for aspect in aspects:
        groups[f"1 : {aspect:g}"] = [o for o in outcomes if o.aspect == aspect and not o.is_kernel]
    groups["3 × 3 convolutions"] = [o for o in outcomes if o.is_kernel]
    for name, lowest, highest in _WIDTHS:
        groups[f"smaller side {name}"] = [o for o in outcomes if lowest <= o.rows <= highest]
    rows = [
        (
            name,
            f"{len(group):,}",
            _format_false([o.evbmf > 0 for o in group]),
            _format_false([o.median_rule > 0 for o in group]),
            _format_false([o.edge_rule > 0 for o in group]),
            _format_shares([o.spectrum / o.rows for o in group]),
            f"{np.median([o.kappa for o in group]):.3g}",
        )
        for name, group in groups.items()
    ]
    heads = (
        "matrices",
        "n",
        "EVBMF: false",
        "median rule: false",
        "edge rule: false",
        "Spectrum: share called signal (range)",
        "κ, median",
    )
    return format_table(heads, rows)


def _describe_kappa(outcomes: Sequence[Outcome]) -> str:
    kappas = [outcome.kappa for outcome in outcomes]
    correlation = spearmanr(kappas, [outcome.aspect for outcome in outcomes]).statistic
    ranking = sorted(outcomes, key=lambda outcome: outcome.kappa)
    chosen = ranking[: int(_KAPPA_SHARE * len(ranking))]
    narrow = sum(outcome.aspect >= 16 for outcome in outcomes)
    return f"""PEFT's `KappaTuneSelector` ranks linear layers by the condition number κ, the lowest
first. On this noise κ follows the shape: its rank correlation with the aspect ratio is
{correlation:.2f}, and {sum(o.aspect >= 16 for o in chosen)} of the {len(chosen)} matrices that it
ranks first ({_KAPPA_SHARE:.0%}, its default) have an aspect ratio of 16 or more, against {narrow}
of all {len(outcomes):,}."""


def _introduce_others(others: Mapping[str, Sequence[Outcome]]) -> str:
    (count,) = {len(outcomes) for outcomes in others.values()}
    return f"""{count} matrices each, of the same shapes and scales. All rules assume entries of one
variance without heavy tails, and this is where EVBMF is wrong too: it takes rows of unequal norm
and the largest entries of a heavy-tailed matrix for directions. Scaling every row to norm 1 removes
the first; nothing here removes the second."""


def _format_others(others: Mapping[str, Sequence[Outcome]]) -> str:
    rows = [
        (
            name,
            _format_false([o.evbmf > 0 for o in group]),
            _format_shares([o.evbmf / o.rows for o in group]),
            _format_false([o.median_rule > 0 for o in group]),
            _format_false([o.edge_rule > 0 for o in group]),
            _format_shares([o.spectrum / o.rows for o in group]),
        )
        for name, group in others.items()
    ]
    heads = (
        "entries",
        "EVBMF: false",
        "EVBMF: share called signal (range)",
        "median rule: false",
        "edge rule: false",
        "Spectrum: share called signal (range)",
    )
    return format_table(heads, rows)


def _introduce_planted(planted: Mapping[float, Sequence[Outcome]]) -> str:
    outcomes = [outcome for group in planted.values() for outcome in group]
    too_many = sum(o.evbmf > o.planted for o in outcomes)
    spectrum = sum(o.spectrum == o.planted for o in outcomes)
    return f"""r equal directions in Gaussian noise of sides L and M. Their singular value is given
as a multiple of σ(LM)^¼; a weaker direction leaves no trace in the singular values of a large
matrix. EVBMF's own limit is 1.59 times that value for one direction, and higher for many: weaker
ones are left out by design, and there the edge rule finds more. "Exact" is the share of matrices in
which the found rank is the planted one, with the exact 95 % interval; "error" is the mean of
found − planted. EVBMF finds too many directions in {too_many} of {len(outcomes):,} matrices.
Spectrum's formula gives the planted rank in {spectrum}."""


def _format_planted(planted: Mapping[float, Sequence[Outcome]]) -> str:
    rows = []
    for strength, outcomes in planted.items():
        for name in ("1", "L/16", "L/8"):
            group = [o for o in outcomes if _name_rank(o) == name]
            errors = (
                [o.evbmf - o.planted for o in group],
                [o.median_rule - o.planted for o in group],
                [o.edge_rule - o.planted for o in group],
            )
            cells = (cell for found in errors for cell in _format_errors(found))
            rows.append((f"{strength:g}", name, str(len(group)), *cells))
    rules = ("EVBMF", "median rule", "edge rule")
    heads = (f"{rule}: {head}" for rule in rules for head in ("exact", "error"))
    return format_table(("strength", "r", "n", *heads), rows)


def _name_rank(outcome: Outcome) -> str:
    if outcome.planted == 1:
        return "1"
    return "L/16" if outcome.planted == outcome.rows // 16 else "L/8"


def _format_errors(errors: Sequence[int]) -> tuple[str, str]:
    exact = [error == 0 for error in errors]
    low, high = _compute_interval(exact)
    return f"{np.mean(exact):.0%} ({low:.0%}–{high:.0%})", f"{np.mean(errors):.2f}"


def _format_false(hits: Sequence[bool]) -> str:
    low, high = _compute_interval(hits)
    return f"{sum(hits)} ({low:.1%}–{high:.1%})"


def _compute_interval(hits: Sequence[bool]) -> tuple[float, float]:
    """Return Clopper and Pearson's 95 % interval."""
    interval = binomtest(sum(hits), len(hits)).proportion_ci(method="exact")
    return interval.low, interval.high


def _format_shares(shares: Sequence[float]) -> str:
    return f"{np.mean(shares):.1%} ({min(shares):.0%}–{max(shares):.0%})"
