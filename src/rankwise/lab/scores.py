"""Scores on data that a network has not learned from: computing, judging and formatting them.

Counts and shares can be combined over batches and processes: counts by adding them up, shares
weighted by the number of examples. An AUC needs all values at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import rankwise

if TYPE_CHECKING:
    from rankwise.lab.records import EpochRecord

SCORES = ("accuracy", "perplexity", "frechet")  # that runs are judged by: the first they have
_FALLING = ("perplexity", "frechet", "loss")
_SHARES = ("accuracy", "top5")  # written in percent


def find_main_score(epochs: Iterable[EpochRecord | None], *, otherwise: str = "loss") -> str:
    """Return the test score that runs are judged by, or `otherwise` where the epochs have none."""
    known = {score for epoch in epochs if epoch is not None for score in epoch.test}
    return next((score for score in SCORES if score in known), otherwise)


def is_falling(score: str) -> bool:
    """Return whether lower values of a score are better.

    Example:
        >>> is_falling("perplexity"), is_falling("accuracy")
        (True, False)
    """
    return score in _FALLING


def format_score(values: Sequence[float], score: str) -> str:
    """Format a score over trials: shares in percent, others with four digits of the mean.

    Example:
        >>> format_score([0.79, 0.81], "accuracy"), format_score([0.0042], "frechet")
        ('80.00 ± 1.41 %', '0.004200')
    """
    if score in _SHARES:
        return format_mean([100 * value for value in values], ".2f", " %")
    return format_mean(values, _four_digits(values))


def format_mean(values: Sequence[float], form: str, unit: str = "") -> str:
    """Format mean ± standard deviation; the mean alone of a single value, a dash for none.

    Example:
        >>> format_mean([1.0, 3.0], ".1f"), format_mean([1.0], ".1f", " s"), format_mean([], ".1f")
        ('2.0 ± 1.4', '1.0 s', '–')
    """
    if not values:
        return "–"
    parts = [statistics.fmean(values)]
    parts += [statistics.stdev(values)] if len(values) > 1 else []
    return " ± ".join(f"{part:{form}}" for part in parts) + unit


def _four_digits(values: Sequence[float]) -> str:
    """Return the format that shows four digits of the mean, and the deviation to the same place."""
    size = abs(statistics.fmean(values)) if values else 0.0
    if size == 0:
        return ".2f"
    if not 1e-6 <= size < 1e6:
        return ".3e"
    return f".{max(0, 3 - math.floor(math.log10(size)))}f"


def count_top_k(logits: Tensor, targets: Tensor, k: int) -> Tensor:
    """Count the targets (…) that are among the k classes with the largest logits (…, classes).

    With no more than k classes every target is among them.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.4, 0.1]])
        >>> [int(count_top_k(logits, torch.tensor([1, 1]), k)) for k in (1, 2)]
        [1, 2]
    """
    best = logits.topk(min(k, logits.shape[-1]), dim=-1).indices  # (…, k)
    return (best == targets.unsqueeze(-1)).sum()


def compute_label_accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the share of yes-or-no answers (N, K) that are right; a logit above 0 means yes.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, -1.0], [3.0, 1.0]])
        >>> float(compute_label_accuracy(logits, torch.tensor([[1.0, 0.0], [0.0, 1.0]])))
        0.75
    """
    right = (logits > 0) == (targets > 0.5)
    return right.sum() / right.numel()


def compute_auc(scores: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve; for several labels, (N, K), its mean over them.

    Labels that all examples have, or none, are left out. It is nan if no label remains, or a score
    of one is nan.

    Example:
        >>> import torch
        >>> compute_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
        0.875
    """
    try:
        from sklearn.metrics import roc_auc_score  # noqa: PLC0415
    except ImportError:
        raise rankwise.MissingExtraError("scikit-learn", "lab", "The area under a curve") from None
    columns = scores.cpu().double().reshape(len(scores), -1)
    yes = (targets.cpu() > 0.5).reshape(len(scores), -1)
    kept = yes.any(dim=0) & (~yes).any(dim=0)
    if not bool(kept.any()) or bool(columns[:, kept].isnan().any()):
        return math.nan
    # By their order, which is all that counts: scikit-learn refuses infinite scores.
    ranks = [column.unique(return_inverse=True)[1] for column in columns[:, kept].T]
    return float(roc_auc_score(yes[:, kept].numpy(), torch.stack(ranks, dim=1).numpy()))


def compute_perplexity(mean_loss: float) -> float:
    """Return the exponential of the mean loss per word; inf where that is beyond a float.

    Example:
        >>> compute_perplexity(0.0), compute_perplexity(1e6)
        (1.0, inf)
    """
    try:
        return math.exp(mean_loss)
    except OverflowError:
        return math.inf
