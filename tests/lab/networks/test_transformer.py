"""The Vision Transformer."""

import pytest
import torch

import rankwise
from rankwise.lab.networks import NetworkSpec
from rankwise.lab.networks.transformer import build_vit


def small(size=8, channels=1, **options):
    return build_vit(NetworkSpec(10, channels=channels, size=size, **{"width": 0.125, **options}))


@pytest.mark.parametrize(
    ("size", "patch"),
    [(8, 2), (28, 4), (32, 4), (64, 8), (224, 28), (9, 3), (11, 11)],
    ids=str,
)
def test_images_are_cut_into_about_eight_by_eight_patches(size, patch):
    network = small(size)
    assert network.patches.kernel_size == network.patches.stride == (patch, patch)
    assert network.positions.shape[1] == (size // patch) ** 2


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 28, 32])
def test_every_image_gets_logits(size, channels):
    images = torch.randn(2, channels, size, size)
    assert small(size, channels)(images).shape == (2, 10)


def test_it_has_the_parameters_of_its_formula():
    w, patches, patch = 192, 64, 4
    block = 2 * 2 * w + (3 * w * w + 3 * w) + (w * w + w) + (4 * w * w + 4 * w) + (4 * w * w + w)
    stem = 3 * patch * patch * w + w + patches * w
    network = build_vit(NetworkSpec(10))
    assert sum(p.numel() for p in network.parameters()) == stem + 6 * block + 2 * w + 10 * w + 10


@pytest.mark.parametrize(("width", "size"), [(0.01, 24), (0.5, 96), (0.7, 144), (2, 384)])
def test_width_scales_to_heads_of_a_multiple_of_eight(width, size):
    network = small(width=width)
    assert network.classifier.in_features == size
    assert network.blocks[0].attention.heads == 3


def test_every_parameter_gets_a_gradient():
    network = small()
    torch.nn.functional.cross_entropy(network(torch.randn(4, 1, 8, 8)), torch.arange(4)).backward()
    for name, weight in network.named_parameters():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


def test_every_patch_attends_to_every_other():
    network = small().eval()
    tokens = torch.randn(1, 16, 24, requires_grad=True)
    network.blocks[0](tokens)[0, 0].sum().backward()
    assert (tokens.grad[0].abs().sum(dim=1) > 0).all()


def test_it_tells_where_a_patch_stands():
    network = small().eval()
    image = torch.randn(1, 1, 8, 8)
    # Whole patches change places; without positions the mean over patches would not notice.
    assert not torch.allclose(network(image), network(image.roll(2, dims=2)), atol=1e-6)


def test_memory_laid_out_with_channels_last_gives_the_same():
    network, images = small(channels=3).eval(), torch.randn(2, 3, 8, 8)
    expected = network(images)
    network.to(memory_format=torch.channels_last)
    result = network(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(result, expected)


def test_a_probe_sees_every_matrix():
    network = small()
    probed = {layer.name for layer in rankwise.probe(network).probed}
    matrices = {name for name, weight in network.named_parameters() if weight.ndim == 2}
    assert matrices | {"patches.weight"} <= probed
    split = {layer.name for layer in rankwise.probe(network, split=True).probed}
    assert {f"blocks.5.attention.qkv.weight[{letter}]" for letter in "qkv"} <= split
