import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import rankwise
from rankwise.errors import NotFiniteError
from rankwise.numerics.randomness import MIN_WIDTH, SIGNIFICANCE, Verdict, compare_with_random
from tests.reference.randomness_reference import reference_largest, reference_test

SHAPES = [(16, 16), (16, 300), (200, 24), (32, 64), (64, 48), (24, 8, 3, 3), (100, 100)]


def compare(weight):
    """Compare a weight as `rankwise.probe` does."""
    matrix = torch.as_tensor(weight).double().flatten(1)
    scaled = matrix / matrix.abs().max()
    share = float(torch.linalg.matrix_norm(scaled, 2) ** 2 / scaled.square().sum())
    return compare_with_random(torch.as_tensor(weight), share)


def draw(seed, *shape, law="normal"):
    generator = np.random.default_rng(seed)
    if law == "uniform":
        return generator.uniform(-1, 1, shape)
    if law == "truncated":
        return stats.truncnorm.rvs(-2, 2, size=shape, random_state=generator)
    return generator.standard_normal(shape)


def draw_any(seed, *shape, strength=0.0):
    """A random weight, some filters larger than others, with a direction of some strength."""
    generator = np.random.default_rng(seed)
    filters, inputs = shape[0], math.prod(shape[1:])
    direction = np.outer(generator.standard_normal(filters), generator.standard_normal(inputs))
    weight = draw(seed + 1, filters, inputs) + strength * direction
    return (weight * np.exp(0.3 * generator.standard_normal((filters, 1)))).reshape(shape)


def expect(reference, share, filters, inputs):
    """The verdict that the reference's probabilities come to, and the chance of DIFFERS."""
    chance = min(1.0, 2 * min(reference.more, reference.largest))
    if chance < SIGNIFICANCE:
        return Verdict.DIFFERS, chance
    if 2 * reference.less < SIGNIFICANCE:
        return Verdict.FLAT, 2 * reference.less
    only_norms = reference_largest(share, filters, inputs) < SIGNIFICANCE
    return Verdict.NORMS_ONLY if only_norms else Verdict.RANDOM, min(1.0, 2 * reference.more)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strength", [0.0, 0.1, 0.3, 1.0])
def test_agrees_with_the_reference(shape, strength):
    weight = draw_any(3, *shape, strength=strength)
    reference, ours = reference_test(weight), compare(weight)
    matrix = weight.reshape(len(weight), -1)
    share = np.linalg.norm(matrix, 2) ** 2 / np.sum(matrix**2)
    verdict, chance = expect(reference, share, *matrix.shape)
    assert ours.verdict is verdict
    assert ours.overlap == pytest.approx(reference.overlap, rel=1e-8, abs=1e-8)
    if 2 * reference.more < SIGNIFICANCE:  # the other test is not needed then
        chance = 2 * reference.more
    assert ours.chance == pytest.approx(chance, rel=1e-3, abs=1e-300)


@pytest.mark.parametrize(("filters", "inputs"), [(16, 16), (24, 100), (64, 32)])
def test_probabilities_are_those_of_simulated_random_weights(filters, inputs):
    weights = draw(5, 2000, filters, inputs)
    units = weights / np.linalg.norm(weights, axis=2, keepdims=True)
    grams = units @ units.transpose(0, 2, 1)
    largest = np.linalg.eigvalsh(grams)[:, -1] / filters
    for level in (0.5, 0.1, 0.01):
        # No more often than the law says; less often for narrow matrices, as filters of one norm
        # have a fixed sum of eigenvalues, which random matrices do not.
        beyond = np.sum(reference_largest(largest, filters, inputs) < level)
        assert beyond <= stats.binom.ppf(0.9999, 2000, level)
    results = [compare_with_random(torch.tensor(weight), 0.0) for weight in weights[:500]]
    overlaps = [result.overlap for result in results]
    assert abs(np.mean(overlaps)) < 4 / math.sqrt(500)
    assert np.std(overlaps) == pytest.approx(1, abs=0.15)


def test_random_weights_are_rarely_said_to_differ():
    counts = dict.fromkeys(Verdict, 0)
    laws = ("normal", "uniform", "truncated")
    for seed in range(2000):
        shape, law = SHAPES[seed % len(SHAPES)], laws[seed % len(laws)]
        counts[compare(draw(seed, *shape, law=law)).verdict] += 1
    limit = stats.binom.ppf(0.9999, 2000, SIGNIFICANCE)
    assert counts[Verdict.DIFFERS] <= limit
    assert counts[Verdict.FLAT] <= limit
    assert counts[Verdict.NORMS_ONLY] <= limit
    assert counts[Verdict.TOO_SMALL] == 0


@pytest.mark.parametrize("rank", [1, 3, 10])
@pytest.mark.parametrize("shape", [(32, 32), (64, 200), (200, 48), (32, 16, 3, 3)])
def test_planted_directions_differ(shape, rank):
    for seed in range(10):
        generator = np.random.default_rng(seed)
        filters, inputs = shape[0], math.prod(shape[1:])
        left, right = (generator.standard_normal((n, rank)) for n in (filters, inputs))
        planted = 2.5 / (filters * inputs) ** 0.25 * left @ right.T
        weight = (planted + draw(seed, filters, inputs)).reshape(shape)
        assert compare(weight).verdict is Verdict.DIFFERS


def test_one_direction_shows_where_the_overlap_of_all_pairs_does_not():
    weight = draw(0, 256, 256)
    left, right = (v / np.linalg.norm(v) for v in draw(1, 2, 256))
    result = compare(weight + 1.45 * 16 * np.outer(left, right))
    assert result.verdict is Verdict.DIFFERS
    assert stats.norm.sf(result.overlap) > SIGNIFICANCE


@pytest.mark.parametrize("shape", [(64, 64), (64, 32), (32, 64)])
def test_orthogonal_weights_are_flatter_than_random(shape):
    weight = nn.init.orthogonal_(torch.empty(shape))
    result = compare(weight)
    assert result.verdict is Verdict.FLAT
    assert result.overlap < 0
    assert result.chance < SIGNIFICANCE


@pytest.mark.parametrize("power", [0.7, 0.8, 0.9])
def test_spectra_that_are_a_little_flatter_agree_with_the_reference(power):
    left, values, right = np.linalg.svd(draw(0, 48, 48))
    weight = left * values**power @ right
    reference, ours = reference_test(weight), compare(weight)
    assert ours.verdict is Verdict.FLAT
    assert ours.chance == pytest.approx(2 * reference.less, rel=1e-3, abs=1e-14)


def test_unequal_norms_alone_do_not_count():
    norms = np.exp(np.random.default_rng(0).standard_normal((128, 1)))
    assert compare(norms * draw(1, 128, 64)).verdict is Verdict.NORMS_ONLY


@pytest.mark.parametrize("shape", [(15, 100), (100, 15), (100, 5, 3, 1), (1, 100), (2, 2)])
def test_narrow_weights_are_not_judged(shape):
    result = compare(np.ones(shape))
    assert (result.verdict, result.chance, result.overlap) == (Verdict.TOO_SMALL, 1.0, 0.0)


def test_zero_filters_and_inputs_do_not_count():
    weight = draw_any(0, 32, 40, strength=0.2)
    padded = np.zeros((50, 64))
    padded[np.ix_(range(3, 35), range(10, 50))] = weight
    for sparse in (padded, padded.T.copy().T):
        result = compare(sparse)
        assert result.verdict is compare(weight).verdict
        assert result.overlap == pytest.approx(compare(weight).overlap)
    padded[MIN_WIDTH + 2 :] = 0  # 15 filters are left
    assert compare(padded).verdict is Verdict.TOO_SMALL
    assert compare(padded.T.copy()).verdict is Verdict.TOO_SMALL


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("shape", [(20, 40), (40, 20)])
def test_weights_must_be_finite(value, shape):
    weight = torch.randn(shape)
    weight[3, 4] = value
    with pytest.raises(NotFiniteError):
        compare_with_random(weight, 0.1)


def test_the_default_device_does_not_matter():
    weight = torch.randn(32, 32)
    with torch.device("meta"):
        result = compare_with_random(weight, 0.1)
    assert result == compare_with_random(weight, 0.1)


def is_same(one, other):
    assert other.verdict is one.verdict
    assert other.overlap == pytest.approx(one.overlap, rel=1e-7, abs=1e-7)
    assert other.chance == pytest.approx(one.chance, rel=1e-4, abs=1e-200)


weights = st.builds(
    lambda seed, shape, strength: draw_any(seed, *shape, strength=strength),
    st.integers(0, 10**6),
    st.sampled_from([(16, 16), (20, 60), (60, 20), (24, 3, 3, 3)]),
    st.sampled_from([0.0, 0.1, 0.2, 0.5]),
)


@settings(max_examples=30)
@given(weights, st.sampled_from([1e-300, 1e-150, 1e-3, 7.0, 1e150, 1e300]))
def test_the_scale_does_not_matter(weight, scale):
    is_same(compare(weight), compare(scale * weight))


@settings(max_examples=30)
@given(weights, st.integers(0, 10**6))
def test_the_order_does_not_matter(weight, seed):
    generator = np.random.default_rng(seed)
    flat = weight.reshape(len(weight), -1)
    shuffled = flat[generator.permutation(len(flat))][:, generator.permutation(flat.shape[1])]
    is_same(compare(weight), compare(shuffled))


@settings(max_examples=30)
@given(weights, st.integers(0, 10**6))
def test_the_norms_of_filters_matter_to_one_verdict_only(weight, seed):
    norms = np.exp(
        np.random.default_rng(seed).normal(0, 3, (len(weight), *[1] * (weight.ndim - 1)))
    )
    one, other = compare(weight), compare(norms * weight)
    assert other.overlap == pytest.approx(one.overlap, rel=1e-7, abs=1e-7)
    assert other.chance == pytest.approx(one.chance, rel=1e-4, abs=1e-200)
    alike = {Verdict.RANDOM, Verdict.NORMS_ONLY}
    assert one.verdict is other.verdict or {one.verdict, other.verdict} == alike


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.5])
def test_filters_run_along_the_output_axis_of_a_transposed_convolution(strength):
    weight = torch.tensor(draw_any(0, 24, 40, 3, 3, strength=strength))
    plain, transposed = nn.Conv2d(40, 24, 3).double(), nn.ConvTranspose2d(40, 24, 3).double()
    plain.weight.data, transposed.weight.data = weight, weight.transpose(0, 1).contiguous()
    rows = [rankwise.probe(nn.Sequential(layer)).layers[0] for layer in (plain, transposed)]
    assert rows[0].verdict is rows[1].verdict
    assert rows[1].overlap == pytest.approx(rows[0].overlap)
    assert rows[1].chance == pytest.approx(rows[0].chance, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types_of_less_precision_give_nearly_the_same(dtype):
    weight = torch.tensor(draw_any(0, 48, 64, strength=0.2))
    one, other = compare(weight), compare(weight.to(dtype))
    assert other.verdict is one.verdict
    assert other.overlap == pytest.approx(one.overlap, abs=0.1)


def test_of_thousands_of_filters_some_are_enough():
    noise = draw(7, 6000, 24)
    assert compare(noise).verdict is Verdict.RANDOM
    direction = np.outer(draw(8, 6000, 1), draw(9, 1, 24))
    assert compare(noise + 0.3 * direction).verdict is Verdict.DIFFERS
