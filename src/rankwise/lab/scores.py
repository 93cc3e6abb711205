"""How well a network does on data it has not learned from.

Counts and shares can be put together over batches and processes: counts by adding them up, shares
weighted by the number of examples. An AUC needs all scores at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["label_accuracy", "multilabel_auc", "perplexity", "top_k", "two_class_auc"]


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
