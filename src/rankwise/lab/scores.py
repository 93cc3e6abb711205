"""How well a network does on data it has not learned from, and how that is judged and written.

Counts and shares can be put together over batches and processes: counts by adding them up, shares
weighted by the number of examples. An AUC needs all scores at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rankwise.lab.records import EpochRecord

__all__ = [
    "SCORES",
    "is_falling",
    "label_accuracy",
    "main_score",
    "mean_text",
    "multilabel_auc",
    "perplexity",
    "score_text",
    "top_k",
    "two_class_auc",
]

SCORES = ("accuracy", "perplexity", "frechet")  # that runs are judged by: the first they have
_FALLING = ("perplexity", "frechet", "loss")
_SHARES = ("accuracy", "top5")  # written in percent


def main_score(epochs: Iterable[EpochRecord | None], *, otherwise: str = "loss") -> str:
    """Return the test score that runs are judged by.

    Args:
        epochs: As `Run.epochs` or `Run.last` give them.
        otherwise: The answer where they have none.
    """
    known = {score for epoch in epochs if epoch is not None for score in epoch.test}
    return next((score for score in SCORES if score in known), otherwise)


def is_falling(score: str) -> bool:
    """Whether less of a score is better.

    Example:
        >>> is_falling("perplexity"), is_falling("accuracy")
        (True, False)
    """
    return score in _FALLING


def score_text(values: Sequence[float], score: str) -> str:
    """A score over trials as people write it: shares in percent, else four digits of the mean.

    Example:
        >>> score_text([0.79, 0.81], "accuracy"), score_text([0.0042], "frechet")
        ('80.00 ± 1.41 %', '0.004200')
    """
    if score in _SHARES:
        return mean_text([100 * value for value in values], ".2f", " %")
    return mean_text(values, _four_digits(values))


def mean_text(values: Sequence[float], form: str, unit: str = "") -> str:
    """Mean ± standard deviation; the mean alone of a single value, a dash for none.

    Example:
        >>> mean_text([1.0, 3.0], ".1f"), mean_text([1.0], ".1f", " s"), mean_text([], ".1f")
        ('2.0 ± 1.4', '1.0 s', '–')
    """
    if not values:
        return "–"
    parts = [statistics.fmean(values)]
    parts += [statistics.stdev(values)] if len(values) > 1 else []
    return " ± ".join(f"{part:{form}}" for part in parts) + unit


def _four_digits(values: Sequence[float]) -> str:
    """The format that shows four digits of the mean, and the deviation to the same place."""
    size = abs(statistics.fmean(values)) if values else 0.0
    if size == 0:
        return ".2f"
    if not 1e-6 <= size < 1e6:
        return ".3e"
    return f".{max(0, 3 - math.floor(math.log10(size)))}f"


def top_k(logits: Tensor, targets: Tensor, k: int) -> Tensor:
    """How many targets are among the k classes with the largest logits.

    Args:
        logits: (…, classes).
        targets: Classes, int64 (…).
        k: At least 1; with no more than k classes every target is among them.

    Example:
        >>> import torch
        >>> from rankwise.lab.scores import top_k
        >>> logits = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.4, 0.1]])
        >>> [int(top_k(logits, torch.tensor([1, 1]), k)) for k in (1, 2)]
        [1, 2]
    """
    best = logits.topk(min(k, logits.shape[-1]), dim=-1).indices  # (…, k)
    return (best == targets.unsqueeze(-1)).sum()


def label_accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """The share of yes-or-no answers that are right.

    Args:
        logits: (N, K); above 0 means yes.
        targets: (N, K); 1 for yes, 0 for no.

    Example:
        >>> import torch
        >>> from rankwise.lab.scores import label_accuracy
        >>> logits = torch.tensor([[2.0, -1.0], [3.0, 1.0]])
        >>> float(label_accuracy(logits, torch.tensor([[1.0, 0.0], [0.0, 1.0]])))
        0.75
    """
    right = (logits > 0) == (targets > 0.5)
    return right.sum() / right.numel()


def two_class_auc(scores: Tensor, targets: Tensor) -> float:
    """The area under the ROC curve: the chance that a yes scores above a no, ties as half.

    Mann and Whitney's U, from the sum of the ranks of the examples that are yes; equal scores
    share the mean of their ranks.

    Args:
        scores: (N,).
        targets: (N,); 1 for yes, 0 for no.

    Returns:
        0 … 1, or nan if all targets are the same or a score is nan.

    Example:
        >>> import torch
        >>> from rankwise.lab.scores import two_class_auc
        >>> two_class_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
        0.875
    """
    scores, yes = scores.cpu(), targets.cpu() > 0.5  # not every device has float64
    positives, negatives = int(yes.sum()), int((~yes).sum())
    if not positives or not negatives or bool(scores.isnan().any()):
        return math.nan
    _, place, count = torch.unique(scores, return_inverse=True, return_counts=True)
    # In float64 sums of halves are exact below 2⁵².
    rank = count.cumsum(0) - (count.double() - 1) / 2  # of each distinct score
    above = rank[place][yes].sum().item() - positives * (positives + 1) / 2
    return above / (positives * negatives)


def multilabel_auc(scores: Tensor, targets: Tensor) -> float:
    """The mean of `two_class_auc` over the labels that some examples have and some have not.

    Args:
        scores: (N, K).
        targets: (N, K); 1 for yes, 0 for no.

    Returns:
        0 … 1, or nan if there is no such label or a score of one is nan.
    """
    yes = targets > 0.5
    both = (yes.any(dim=0) & (~yes).any(dim=0)).nonzero().flatten().tolist()
    if not both:
        return math.nan
    return sum(two_class_auc(scores[:, k], yes[:, k].long()) for k in both) / len(both)


def perplexity(mean_loss: float) -> float:
    """The exponential of the mean loss per word; inf where that is beyond a float.

    Example:
        >>> from rankwise.lab.scores import perplexity
        >>> perplexity(0.0), perplexity(1e6)
        (1.0, inf)
    """
    try:
        return math.exp(mean_loss)
    except OverflowError:
        return math.inf
