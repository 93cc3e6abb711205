"""The Wasserstein GAN's two networks, and what keeps its critic Lipschitz."""

import pytest
import torch
from torch import nn

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.networks.wgan import Critic, Generator, clip_weights, gradient_penalty

SIZES = pytest.mark.parametrize("size", [8, 32, 64])
NORM = pytest.mark.parametrize("norm", [True, False], ids=["norm", "no-norm"])


def count(network):
    return sum(weight.numel() for weight in network.parameters())


@SIZES
@pytest.mark.parametrize("channels", [1, 3])
def test_a_generator_makes_images_between_minus_one_and_one(size, channels):
    generator = Generator(size=size, channels=channels, latent=10, width=4)
    images = generator(torch.randn(5, 10))
    assert images.shape == (5, channels, size, size)
    assert images.var(dim=0).min() > 0  # other noise, other images
    with torch.no_grad():
        for weight in generator.parameters():
            weight.mul_(100)
    assert 0.9 < generator(torch.randn(5, 10)).abs().max() <= 1


@SIZES
@NORM
def test_a_critic_gives_every_image_a_score(size, norm):
    assert Critic(size=size, width=4, norm=norm)(torch.randn(5, 3, size, size)).shape == (5,)


def test_a_critics_score_of_one_image_is_still_a_list():
    assert Critic(size=8, width=4, norm=False)(torch.randn(1, 3, 8, 8)).shape == (1,)


def test_networks_of_64_have_the_parameters_of_dcgan():
    w = 64
    inner = 16 * (8 * 4 + 4 * 2 + 2 * 1) * w * w
    norms = 2 * (8 + 4 + 2) * w
    generator = 16 * 100 * 8 * w + inner + norms + 2 * w + 16 * w * 3 + 3
    assert count(Generator(size=64)) == generator
    first, last = 16 * 3 * w + w, 16 * 8 * w + 1
    assert count(Critic(size=64, norm=True)) == first + inner + norms + last
    assert count(Critic(size=64, norm=False)) == first + inner + norms // 2 + last


@SIZES
@NORM
def test_every_parameter_of_both_gets_a_gradient(size, norm):
    generator, critic = Generator(size=size, width=4), Critic(size=size, width=4, norm=norm)
    critic(generator(torch.randn(6, 100))).square().sum().backward()
    for network in (generator, critic):
        for name, weight in network.named_parameters():
            assert weight.grad.isfinite().all(), name
            assert weight.grad.abs().sum() > 0, name


def test_without_norm_an_images_score_does_not_depend_on_the_others():
    critic, images = Critic(size=8, width=4, norm=False), torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(critic(images)[:1], critic(images[:1]))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in critic.modules())


def test_weights_start_as_dcgans():
    critic = Critic(size=32, norm=True)
    convolution, norm = critic.layers[2], critic.layers[3]
    assert convolution.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert norm.weight.mean().item() == pytest.approx(1, abs=0.01)
    assert norm.weight.std().item() == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("size", [0, 4, 28, 33])
def test_a_size_that_is_no_power_of_two_is_refused(size):
    for build in (lambda: Generator(size=size), lambda: Critic(size=size, norm=True)):
        with pytest.raises(ConfigError, match=f"power of two.*got {size};"):
            build()


def test_clipping_bounds_every_weight_in_place_and_keeps_the_small_ones():
    critic = Critic(size=8, width=4, norm=True)
    before = [weight.detach().clone() for weight in critic.parameters()]
    same = list(critic.parameters())
    clip_weights(critic, bound=0.02)
    for weight, now, old in zip(same, critic.parameters(), before, strict=True):
        assert now is weight
        assert now.requires_grad
        assert torch.equal(now, old.clamp(-0.02, 0.02))
    assert max(weight.abs().max().item() for weight in same) == pytest.approx(0.02)


class Linear(nn.Module):
    """f(x) = ⟨w, x⟩, whose slope is w everywhere."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, images):
        return (images * self.weight).sum(dim=(1, 2, 3))


def test_the_penalty_of_a_linear_critic_is_that_of_its_weights_norm():
    critic = Linear(torch.randn(3, 4, 4))
    penalty = gradient_penalty(critic, *torch.randn(2, 5, 3, 4, 4), torch.rand(5))
    norm = critic.weight.detach().norm()
    torch.testing.assert_close(penalty.detach(), (norm - 1) ** 2)
    penalty.backward()
    torch.testing.assert_close(critic.weight.grad, 2 * (norm - 1) * critic.weight.detach() / norm)


class Halved(nn.Module):
    """f(x) = ‖x‖²/2, whose slope is x itself: it shows where the penalty looks."""

    def forward(self, images):
        return images.square().sum(dim=(1, 2, 3)) / 2


def test_the_penalty_looks_between_real_and_fake_at_one_epsilon_a_pair():
    real, fake = torch.randn(6, 3, 4, 4), torch.randn(6, 3, 4, 4)
    epsilon = torch.rand(6)
    penalty = gradient_penalty(Halved(), real, fake, epsilon)
    between = torch.stack(
        [e * r + (1 - e) * f for e, r, f in zip(epsilon, real, fake, strict=True)]
    )
    torch.testing.assert_close(penalty, ((between.flatten(1).norm(dim=1) - 1) ** 2).mean())


def test_the_penalty_reaches_the_critic_and_not_what_made_the_images():
    critic = Critic(size=8, width=4, norm=False)
    fake = torch.randn(6, 3, 8, 8, requires_grad=True)
    gradient_penalty(critic, torch.randn(6, 3, 8, 8), fake, torch.rand(6)).backward()
    assert fake.grad is None
    for name, weight in critic.named_parameters():
        if name.endswith("weight"):
            assert weight.grad.isfinite().all(), name
            assert weight.grad.abs().sum() > 0, name


def test_a_flat_critic_has_penalty_one_and_a_finite_gradient():
    critic = Linear(torch.zeros(3, 4, 4))
    penalty = gradient_penalty(critic, *torch.randn(2, 2, 3, 4, 4), torch.rand(2))
    penalty.backward()
    assert penalty.item() == 1
    assert critic.weight.grad.isfinite().all()


def test_a_probe_sees_every_matrix():
    for network in (Generator(size=32, width=8), Critic(size=32, width=8, norm=True)):
        probed = {layer.name for layer in rankwise.probe(network).probed}
        assert {name for name, weight in network.named_parameters() if weight.ndim > 1} == probed
