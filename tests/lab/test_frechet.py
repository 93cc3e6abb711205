"""The Fréchet distance against closed forms, and the features it is taken of."""

import math
import sys
import types

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn

from rankwise.errors import ConfigError
from rankwise.lab.data.dataset import MemorySplit
from rankwise.lab.frechet import compute_distance, load_inception_features, train_features


def exactly(mean, deviations):
    """Samples whose mean and (diagonal) covariance are exactly the given ones."""
    size = len(mean)
    signs = torch.cat([torch.eye(size), -torch.eye(size)]).double()
    return mean + signs * deviations * math.sqrt((2 * size - 1) / 2)


def textbook(a, b):
    """By SciPy's matrix square root of the covariances."""
    mixed = scipy.linalg.sqrtm(np.cov(a.T) @ np.cov(b.T)).real
    spread = np.trace(np.cov(a.T) + np.cov(b.T) - 2 * mixed)
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + spread


@given(st.integers(1, 12), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_diagonal_gaussians_have_the_closed_form(size, seed):
    rng = torch.Generator().manual_seed(seed)
    m, n, s, t = (torch.rand(size, generator=rng, dtype=torch.float64) for _ in range(4))
    result = compute_distance(exactly(m, s), exactly(n, t))
    assert result == pytest.approx(((m - n) ** 2 + (s - t) ** 2).sum().item(), abs=1e-12)


def test_full_covariances_agree_with_a_matrix_square_root():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(200, 9)) @ rng.normal(size=(9, 9))
    b = rng.normal(size=(70, 9)) @ rng.normal(size=(9, 9)) + 1
    result = compute_distance(torch.from_numpy(a), torch.from_numpy(b))
    assert result == pytest.approx(textbook(a, b), rel=1e-9)


def test_equal_sets_are_at_zero_also_with_fewer_samples_than_features():
    features = torch.randn(5, 40)  # Σ has rank 4 of 40
    assert compute_distance(features, features.flip(0)) == pytest.approx(0, abs=1e-10)
    assert compute_distance(features, features + 2) == pytest.approx(4 * 40, rel=1e-6)


def test_singular_covariances_in_other_directions_add_up():
    zero = torch.zeros(3, dtype=torch.float64)
    a = exactly(zero, torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))
    b = exactly(zero, torch.tensor([0.0, 3.0, 0.0], dtype=torch.float64))
    assert compute_distance(a, b) == pytest.approx(4 + 9)
    assert compute_distance(a, torch.zeros(4, 3)) == pytest.approx(4)


def test_it_is_symmetric_and_never_negative():
    a, b = torch.randn(50, 8), torch.randn(30, 8)
    assert compute_distance(a, b) == pytest.approx(compute_distance(b, a), rel=1e-9)
    assert compute_distance(a, a) >= 0


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=["nan", "inf"])
def test_a_feature_that_is_not_finite_gives_nan(bad):
    features = torch.randn(5, 3)
    broken = features.clone()
    broken[2, 1] = bad
    assert math.isnan(compute_distance(broken, features))
    assert math.isnan(compute_distance(features, broken))


def test_one_sample_or_two_kinds_of_features_are_refused():
    with pytest.raises(ConfigError, match=r"2 samples or more.*got 1 and 5"):
        compute_distance(torch.randn(1, 3), torch.randn(5, 3))
    with pytest.raises(ConfigError, match=r"\(5, 3\) and \(5, 4\)"):
        compute_distance(torch.randn(5, 3), torch.randn(5, 4))


@pytest.fixture(scope="module")
def digits():
    images, targets = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images / 16 * 255).to(torch.uint8).view(-1, 1, 8, 8)
    return MemorySplit(inputs, torch.from_numpy(targets))


@pytest.fixture(scope="module")
def features(digits):
    half = MemorySplit(digits.inputs[::2], digits.targets[::2])
    return train_features(half, 10, data="digits", seed=0, epochs=2)


def scaled(images):
    return images.float() / 127.5 - 1


def test_real_images_are_near_each_other_and_far_from_noise(digits, features):
    real = scaled(digits.inputs)
    noise = torch.rand(len(real), 1, 8, 8) * 2 - 1
    halves = compute_distance(features.extract(real[::2]), features.extract(real[1::2]))
    assert halves < 0.05 * compute_distance(features.extract(real), features.extract(noise))


def test_a_missing_digit_is_seen(digits, features):
    """A generator that never makes some digit is what the distance is there to tell."""
    real = scaled(digits.inputs)
    halves = compute_distance(features.extract(real[::2]), features.extract(real[1::2]))
    without = features.extract(real[digits.targets != 3])
    assert compute_distance(features.extract(real), without) > halves


def test_features_are_named_and_of_any_batch(digits, features):
    assert features.name == "resnet8 trained on digits"
    images = scaled(digits.inputs[:601])
    whole = features.extract(images)
    assert whole.shape == (601, 64)  # what enters the classifier, not its ten logits
    assert not whole.requires_grad
    torch.testing.assert_close(whole[600:], features.extract(images[600:]), rtol=1e-4, atol=1e-5)


def test_features_follow_from_the_seed_alone(digits):
    few = MemorySplit(digits.inputs[:200], digits.targets[:200])
    images = scaled(few.inputs[:3])

    def take(seed):
        torch.rand(seed + 3)  # the caller's own random state must not matter
        return train_features(few, 10, data="digits", seed=seed, epochs=1).extract(images)

    first, other = take(0), take(1)
    state = torch.get_rng_state()
    torch.manual_seed(99)
    assert torch.equal(first, take(0))
    assert not torch.equal(first, other)
    torch.set_rng_state(state)
    train_features(few, 10, data="digits", seed=0, epochs=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_features_are_trained_also_where_gradients_are_off(digits):
    few = MemorySplit(digits.inputs[:200], digits.targets[:200])
    images = scaled(few.inputs[:3])
    expected = train_features(few, 10, seed=0, epochs=1)
    assert expected.name == "resnet8 trained on the same data"
    with torch.no_grad():
        found = train_features(few, 10, seed=0, epochs=1)
    assert torch.equal(found.extract(images), expected.extract(images))


def test_several_labels_are_learned_each_by_itself(digits):
    inputs, classes = digits.inputs[:100], digits.targets[:100]
    labels = nn.functional.one_hot(classes, 10).float()
    one, several = (
        train_features(MemorySplit(inputs, targets), 10, seed=0, epochs=1).extract(scaled(inputs))
        for targets in (classes, labels)
    )
    assert several.isfinite().all()
    # Taken for the shares of one class, they would be learned just as the classes are.
    assert not torch.allclose(one, several, rtol=1e-3)


class FakeInception(nn.Module):
    """Stands for torchvision's network: gives back what it was fed, through `fc`."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * 299 * 299, 1, bias=False)

    def forward(self, images):
        assert not self.training
        return self.fc(images.flatten(1))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints" / "inception_v3_google-0cc3c7bd.pth"


def pretend(monkeypatch, **names):
    models = types.ModuleType("torchvision.models")
    vars(models).update(names)
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


def test_there_is_no_inception_without_torchvision_or_its_weights(monkeypatch, cache):
    pretend(monkeypatch, inception_v3=lambda **options: FakeInception())
    assert load_inception_features() is None
    torch.save(FakeInception().state_dict(), cache)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)  # as if not installed
    assert load_inception_features() is None


def test_inception_is_fed_colour_images_of_its_size_between_minus_one_and_one(monkeypatch, cache):
    asked = {}
    pretend(monkeypatch, inception_v3=lambda **options: asked.update(options) or FakeInception())
    torch.save(FakeInception().state_dict(), cache)
    found = load_inception_features()
    assert found.name == "inception-v3"
    # It would otherwise rescale images that it takes for normalised ones.
    assert asked == {"weights": None, "init_weights": False, "transform_input": False}
    fed = found.extract(torch.full((2, 1, 8, 8), -0.5)).view(2, 3, 299, 299)
    torch.testing.assert_close(fed, torch.full_like(fed, -0.5))
