"""Scores against scikit-learn's and against plain counting."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sklearn.metrics import roc_auc_score

from rankwise.lab.scores import (
    compute_auc,
    compute_label_accuracy,
    compute_perplexity,
    count_top_k,
    find_main_score,
    format_score,
    is_falling,
)
from tests.lab.runs import epoch

# Few distinct scores, so that ties are the rule.
PAIRS = st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=40)


def both(pairs):
    scores, targets = zip(*pairs, strict=True)
    return torch.tensor(scores, dtype=torch.float32), torch.tensor(targets).long()


@given(PAIRS)
@settings(deadline=None)
def test_two_class_auc_is_scikit_learns_with_any_ties(pairs):
    scores, targets = both(pairs)
    result = compute_auc(scores, targets)
    if targets.unique().numel() == 1:
        assert math.isnan(result)
    else:
        assert result == pytest.approx(roc_auc_score(targets, scores), abs=1e-12)


@given(PAIRS)
@settings(deadline=None)
def test_two_class_auc_counts_the_pairs_that_stand_right(pairs):
    scores, targets = both(pairs)
    above = scores[targets == 1][:, None] - scores[targets == 0][None]
    if above.numel():
        share = ((above > 0).double() + (above == 0).double() / 2).mean().item()
        assert compute_auc(scores, targets) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_two_class_auc_takes_scores_of_any_type(dtype):
    scores, targets = torch.randn(500).to(dtype), torch.randint(2, (500,))
    expected = roc_auc_score(targets, scores.double())
    assert compute_auc(scores, targets) == pytest.approx(expected, abs=1e-12)


def test_two_class_auc_is_exact_where_single_precision_is_not():
    scores, targets = torch.arange(10_000.0), torch.zeros(10_000)
    targets[5000:] = 1.0
    targets[5000], targets[4999] = 0.0, 1.0  # one pair stands wrong
    # The sum of the ranks is odd and beyond 2²⁴, where a float32 holds even numbers only.
    assert compute_auc(scores, targets) == (5000**2 - 1) / 5000**2


def test_infinite_scores_are_ranked_and_nan_gives_nan():
    targets = torch.tensor([0, 1, 1])
    assert compute_auc(torch.tensor([-math.inf, 0.0, math.inf]), targets) == 1.0
    assert math.isnan(compute_auc(torch.tensor([0.0, math.nan, 1.0]), targets))


def test_multilabel_auc_is_the_mean_over_labels_that_have_both():
    scores, targets = torch.randn(60, 5), torch.randint(2, (60, 5)).float()
    targets[:, 1], targets[:, 3] = 0.0, 1.0
    expected = np.mean([roc_auc_score(targets[:, k], scores[:, k]) for k in (0, 2, 4)])
    assert compute_auc(scores, targets) == pytest.approx(expected, abs=1e-12)


def test_multilabel_auc_is_nan_without_such_a_label_or_with_nan_in_one():
    scores, targets = torch.randn(6, 2), torch.zeros(6, 2)
    assert math.isnan(compute_auc(scores, targets))
    targets[0, 1], scores[2, 1] = 1.0, math.nan
    assert math.isnan(compute_auc(scores, targets))


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_top_k_counts_targets_that_fewer_than_k_classes_beat(k):
    logits, targets = torch.randn(50, 6), torch.randint(6, (50,))
    beaten_by = (logits > logits.gather(1, targets[:, None])).sum(dim=1)
    assert count_top_k(logits, targets, k).item() == (beaten_by < k).sum().item()


def test_top_k_of_parts_adds_up_and_works_on_texts():
    logits, targets = torch.randn(4, 5, 6), torch.randint(6, (4, 5))
    whole = count_top_k(logits, targets, 2)
    assert whole == sum(count_top_k(logits[i], targets[i], 2) for i in range(4))
    assert whole == count_top_k(logits.flatten(0, 1), targets.flatten(), 2)


def test_label_accuracy_is_the_share_of_right_answers():
    logits, targets = torch.randn(20, 7), torch.randint(2, (20, 7)).float()
    pairs = zip(logits.flatten().tolist(), targets.flatten().tolist(), strict=True)
    right = sum((logit > 0) == (target == 1) for logit, target in pairs)
    assert compute_label_accuracy(logits, targets).item() == pytest.approx(right / 140, rel=1e-6)


def test_label_accuracy_of_parts_adds_up_when_weighted_by_examples():
    logits, targets = torch.randn(20, 7), torch.randint(2, (20, 7)).float()
    first, second = (
        compute_label_accuracy(logits[i], targets[i]) for i in (slice(6), slice(6, 20))
    )
    assert 20 * compute_label_accuracy(logits, targets) == pytest.approx(6 * first + 14 * second)


def test_label_accuracy_of_all_right_and_all_wrong():
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert compute_label_accuracy(targets - 0.5, targets) == 1
    assert compute_label_accuracy(0.5 - targets, targets) == 0


def test_perplexity_of_a_uniform_guess_is_the_vocabulary():
    assert compute_perplexity(math.log(10_000)) == pytest.approx(10_000)
    assert compute_perplexity(1e4) == compute_perplexity(math.inf) == math.inf
    assert math.isnan(compute_perplexity(math.nan))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"loss": 1.0, "top5": 1.0, "accuracy": 0.5}, "accuracy"),
        ({"loss": 1.0, "perplexity": 9.0}, "perplexity"),
        ({"frechet": 9.0}, "frechet"),
        ({"loss": 1.0}, "loss"),
        ({}, "loss"),
    ],
)
def test_a_run_is_judged_by_the_score_of_its_task(scores, expected):
    epochs = [None, replace(epoch(1), test={}), replace(epoch(2), test=scores)]
    assert find_main_score(epochs) == expected
    assert is_falling(expected) is (expected != "accuracy")


@pytest.mark.parametrize(
    ("values", "score", "text"),
    [
        ([0.8], "accuracy", "80.00 %"),
        ([0.79, 0.81], "accuracy", "80.00 ± 1.41 %"),
        ([0.995], "top5", "99.50 %"),
        ([0.004], "frechet", "0.004000"),
        ([0.004, 0.005], "frechet", "0.004500 ± 0.000707"),
        ([80.0, 81.0], "perplexity", "80.50 ± 0.71"),
        ([12345.6], "perplexity", "12346"),
        ([1.5e30], "perplexity", "1.500e+30"),
        ([3e-9], "frechet", "3.000e-09"),
        ([0.0], "frechet", "0.00"),
        ([], "accuracy", "–"),
    ],
)
def test_a_score_is_written_with_the_digits_that_tell_it(values, score, text):
    assert format_score(values, score) == text
