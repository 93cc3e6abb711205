import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise import (
    condition,
    effective_rank,
    network_quality,
    quality,
    stable_rank,
    theorem_rate_bound,
)

spectra = st.lists(st.floats(1e-150, 1e150), min_size=1, max_size=20)


@given(spectra, st.integers(0, 20), st.floats(0.5, 4))
def test_ranges(values, extra, p):
    size = len(values) + extra
    s, kappa = stable_rank(values, size, p=p), condition(values)
    assert 0 < s <= 1
    assert 0 <= kappa <= 1
    assert 0 <= quality(s, kappa) <= math.pi / 2
    assert 1 - 1e-9 <= effective_rank(values) <= len(values) * (1 + 1e-9)


@given(spectra, st.floats(1e-100, 1e100))
def test_scale_does_not_matter(values, scale):
    scaled = [scale * value for value in values]
    assert stable_rank(scaled, 20) == pytest.approx(stable_rank(values, 20))
    assert condition(scaled) == pytest.approx(condition(values), abs=1e-12)


def test_by_hand():
    assert stable_rank([4.0, 2.0, 1.0], 7) == pytest.approx((1 + 1 / 4 + 1 / 16) / 7)
    assert stable_rank([4.0, 2.0, 1.0], 7, p=1) == pytest.approx((1 + 1 / 2 + 1 / 4) / 7)
    assert condition([4.0, 2.0, 1.0]) == 0.75
    assert quality(0.3, 0.4) == pytest.approx(math.atan(0.3 / 0.4))


def test_empty():
    assert stable_rank([], 5) == 0.0
    assert condition([]) == 1.0
    assert quality(0.0, 1.0) == 0.0
    assert effective_rank([0.0, 0.0]) == 0.0


def test_rank_one_has_the_largest_quality():
    assert quality(stable_rank([3.0], 10), condition([3.0])) == math.pi / 2


def test_network_quality():
    q = [0.5, 1.0, 0.0]
    assert network_quality(q) == pytest.approx(np.linalg.norm(q) / math.sqrt(3))
    assert network_quality(q, squared=True) == pytest.approx(np.linalg.norm(q) ** 2 / 3)
    assert network_quality(q, skip_empty=True) == pytest.approx(np.linalg.norm(q) / math.sqrt(2))
    assert network_quality([]) is None
    assert network_quality([0.0], skip_empty=True) is None


def frobenius_stable_rank(matrix):
    values = torch.linalg.svdvals(matrix)
    return float((values**2).sum() / values[0] ** 2)


class TestTheorem:
    def test_above_the_bound_the_stable_rank_does_not_fall(self):
        checked = 0
        for _ in range(200):
            weight = torch.randn(6, 2).double() @ torch.randn(2, 9).double()
            gradient = torch.randn(6, 9).double()
            bound = theorem_rate_bound(weight, gradient)
            if math.isfinite(bound):
                for rate in (bound * 1.0001 + 1e-9, bound * 3 + 1):
                    after = frobenius_stable_rank(weight - rate * gradient)
                    assert after >= frobenius_stable_rank(weight) - 1e-9
                checked += 1
        assert checked > 100

    def test_formula(self):
        weight, gradient = torch.randn(5, 1) @ torch.randn(1, 8), torch.randn(5, 8)
        W, G = weight.double(), gradient.double()
        ratio = torch.linalg.matrix_norm(G, 2) / torch.linalg.matrix_norm(W, 2)
        top = 2 * (torch.trace(W.T @ G) + ratio * torch.trace(W.T @ W))
        bottom = torch.trace(G.T @ G) - ratio**2 * torch.trace(W.T @ W)
        assert theorem_rate_bound(weight, gradient) == pytest.approx(max(float(top / bottom), 0.0))

    def test_no_rate_is_sure_where_the_gradient_has_the_lower_stable_rank(self):
        gradient = torch.randn(6, 1) @ torch.randn(1, 9)
        assert theorem_rate_bound(torch.randn(6, 9), gradient) == math.inf

    def test_convolutions_are_unfolded(self):
        weight, gradient = torch.randn(6, 1, 3, 3), torch.randn(6, 1, 3, 3)
        flat = theorem_rate_bound(weight.flatten(1), gradient.flatten(1))
        assert theorem_rate_bound(weight, gradient) == flat

    def test_degenerate(self):
        weight = torch.randn(4, 5)
        assert theorem_rate_bound(weight, torch.zeros(4, 5)) == 0.0
        assert theorem_rate_bound(torch.zeros(4, 5), weight) == 0.0
        assert theorem_rate_bound(weight, weight) == math.inf
        assert theorem_rate_bound(weight, -weight) == 0.0

    def test_shapes_must_agree(self):
        with pytest.raises(ValueError, match=r"\(4, 5\) and \(5, 4\)"):
            theorem_rate_bound(torch.randn(4, 5), torch.randn(5, 4))
