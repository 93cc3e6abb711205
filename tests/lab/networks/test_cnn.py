"""The convolutional networks: published sizes, small images, gradients, probes of all weights."""

import math

import pytest
import torch
from torch import nn

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.networks import IMAGE_NETWORKS, NetworkSpec, build_network, select_variant
from rankwise.lab.networks.cnn import DenseLayer, PaddedShortcut
from rankwise.lab.networks.mobile import ShuffleUnit, StochasticDepth

PUBLISHED = {
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "resnet50": 23_520_842,
    "resnet101": 42_512_970,
    "resnext29": 9_128_778,
    "mobilenetv2": 2_296_922,
    "senet18": 11_260_354,
    "efficientnetb0": 3_599_686,
    "vgg16": 14_728_266,
    "shufflenetv2": 1_263_854,
    "shufflenetv2-1.5": 2_488_874,
    "densenet121": 6_956_298,
    "resnet18-imagenet": 11_689_512,
    "resnet34-imagenet": 21_797_672,
    "resnet50-imagenet": 25_557_032,
    "resnet101-imagenet": 44_549_160,
    "resnext50-imagenet": 25_028_904,
    "mobilenetv2-imagenet": 3_504_872,
}
# The paper's Table 6, in millions.
PUBLISHED_SMALL = {"resnet20": 0.27, "resnet32": 0.46, "resnet44": 0.66, "resnet56": 0.85}
CONVOLUTIONAL = [name for name in IMAGE_NETWORKS if name not in ("vit", "mlp")]
FAMILIES = [
    "resnet8",
    "resnet18",
    "resnet50-imagenet",
    "resnext29",
    "resnext50-imagenet",
    "mobilenetv2",
    "senet18",
    "efficientnetb0",
    "shufflenetv2",
    "vgg16",
    "densenet121",
]


def parameters_of(name, classes):
    with torch.device("meta"):
        network = build_network(name, NetworkSpec(classes=classes))
    return sum(parameter.numel() for parameter in network.parameters())


def narrow(name, size=32, channels=3):
    return build_network(name, NetworkSpec(classes=5, channels=channels, size=size, width=0.25))


def weights_of(network):
    """The names and modules of all convolutions and linear layers, in the network's order."""
    kinds = nn.Conv2d | nn.Linear
    return {name: part for name, part in network.named_modules() if isinstance(part, kinds)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_count_of_parameters_is_the_published_one(name):
    classes = 1000 if name.endswith("-imagenet") else 10
    assert parameters_of(name, classes) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED_SMALL)
def test_the_small_family_has_the_papers_sizes(name):
    assert round(parameters_of(name, 10) / 1e6, 2) == PUBLISHED_SMALL[name]


@pytest.mark.parametrize(("size", "channels"), [(8, 3), (28, 1), (32, 3)])
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_every_parameter_gets_a_gradient(name, size, channels):
    network = narrow(name, size, channels)
    outputs = network(torch.randn(4, channels, size, size))
    assert outputs.shape == (4, 5)
    nn.functional.cross_entropy(outputs, torch.arange(4)).backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    if size == 32:  # in smaller images, only the border reaches some weights
        for weight_name, part in weights_of(network).items():
            assert part.weight.grad.any(), weight_name


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_the_strides_leave_the_papers_size_before_the_mean(name):
    """Large images, of 224, come down to 7: by 32. Small ones keep their size for longer."""
    large = name.endswith("-imagenet")
    seen = []
    network = narrow(name).eval()
    network.pool.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
    with torch.no_grad():
        network(torch.randn(1, 3, 64 if large else 32, 64 if large else 32))
    small_family = name in {"resnet8", *PUBLISHED_SMALL}
    others = {"resnext29": 8, "efficientnetb0": 2, "vgg16": 1}
    assert seen == [2 if large else 8 if small_family else others.get(name, 4)]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("width", [0.05, 0.3])
def test_odd_widths_work_too(name, width):
    network = build_network(name, NetworkSpec(classes=5, width=width))
    assert network(torch.randn(2, 3, 16, 16)).shape == (2, 5)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_the_order_of_the_modules_is_the_order_of_execution(name):
    network = narrow(name).eval()
    ran = []
    for part_name, part in weights_of(network).items():
        part.register_forward_hook(lambda *_, part_name=part_name: ran.append(part_name))
    with torch.no_grad():
        network(torch.randn(1, 3, 32, 32))
    assert ran == list(weights_of(network))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_probe_shows_every_convolution_and_linear_layer(name):
    # At a quarter, SENet's first squeeze has one channel: too small to have a spectrum.
    network = build_network(name, NetworkSpec(classes=5, width=0.5 if name == "senet18" else 0.25))
    seen = {layer.name: layer.status for layer in rankwise.probe(network).layers}
    for weight_name in weights_of(network):
        assert seen[f"{weight_name}.weight"] is rankwise.Status.PROBED, weight_name


@pytest.mark.parametrize("name", FAMILIES)
def test_channels_last_gives_the_same(name):
    network = narrow(name).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = network(images)
        network.to(memory_format=torch.channels_last)
        outputs = network(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_convolutions_start_with_the_variance_of_he(name):
    network = build_network(name, NetworkSpec(classes=2, width=0.5))
    for part_name, part in weights_of(network).items():
        if isinstance(part, nn.Conv2d) and part.weight.numel() >= 1000:
            fan_out = part.out_channels * math.prod(part.kernel_size) / part.groups
            ratio = part.weight.std().item() / math.sqrt(2 / fan_out)
            assert 0.8 < ratio < 1.2, part_name


@pytest.mark.parametrize("name", FAMILIES)
def test_convolutions_before_a_norm_have_no_bias_but_for_vgg(name):
    """Squeeze and excitation has no norms."""
    for part_name, part in weights_of(narrow(name)).items():
        if isinstance(part, nn.Conv2d):
            assert (part.bias is not None) == (name == "vgg16" or ".se." in part_name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_width_scales_the_channels_inside(name):
    counts = []
    for width in (0.25, 1.0, 2.0):
        with torch.device("meta"):
            network = build_network(name, NetworkSpec(classes=7, width=width))
        assert network.classifier.out_features == 7
        counts.append(sum(parameter.numel() for parameter in network.parameters()))
    assert counts == sorted(set(counts))


def test_width_1_changes_no_number_of_channels():
    spec = NetworkSpec(classes=10)
    for channels in range(1, 300):
        assert {spec.scale(channels, multiple) for multiple in (1, 2, 8, 32)} == {channels}


def test_scaled_channels_are_the_nearest_positive_multiple():
    assert NetworkSpec(classes=1, width=0.5).scale(24) == 12
    assert NetworkSpec(classes=1, width=0.3).scale(32) == 10
    assert NetworkSpec(classes=1, width=0.3).scale(32, multiple=8) == 8
    assert NetworkSpec(classes=1, width=0.01).scale(24) == 1
    assert NetworkSpec(classes=1, width=0.01).scale(24, multiple=8) == 8
    assert NetworkSpec(classes=1, width=2).scale(24, multiple=8) == 48


def test_names_tell_where_a_weight_is():
    names = list(weights_of(build_network("resnet8", NetworkSpec(classes=10))))
    assert names == [
        "stem.conv",
        "stage1.0.conv1",
        "stage1.0.conv2",
        "stage2.0.conv1",
        "stage2.0.conv2",
        "stage3.0.conv1",
        "stage3.0.conv2",
        "classifier",
    ]


def test_the_small_familys_shortcut_skips_pixels_and_adds_zeros():
    images = torch.rand(3, 2, 7, 7)
    outputs = PaddedShortcut(2, 5, stride=2)(images)
    assert outputs.shape == (3, 5, 4, 4)
    torch.testing.assert_close(outputs[:, :2], images[:, :, ::2, ::2])
    assert not outputs[:, 2:].any()


def test_a_shuffle_interleaves_the_half_that_passed_by():
    images = torch.randn(2, 8, 4, 4)
    outputs = ShuffleUnit(8, 8, stride=1)(images)
    torch.testing.assert_close(outputs[:, 0::2], images[:, :4])


def test_a_dense_layer_keeps_what_it_was_given():
    images = torch.randn(2, 6, 4, 4)
    outputs = DenseLayer(6, growth=3)(images)
    assert outputs.shape == (2, 9, 4, 4)
    torch.testing.assert_close(outputs[:, :6], images)


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean():
    drop = StochasticDepth(0.2)
    images = torch.ones(2000, 2, 3, 3)
    outputs = drop(images)
    for image in outputs:
        assert (image == image[0, 0, 0]).all()
    assert outputs[:, 0, 0, 0].unique().tolist() == pytest.approx([0, 1.25])
    assert outputs.mean().item() == pytest.approx(1, abs=0.05)
    assert drop.eval()(images) is images


def test_efficientnet_drops_later_blocks_more_often():
    parts = narrow("efficientnetb0").modules()
    rates = [part.drop_rate for part in parts if isinstance(part, StochasticDepth)]
    assert (rates[0], rates[-1]) == (0, pytest.approx(0.2))
    assert rates == sorted(set(rates))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_network_and_building_seeds_nothing(name):
    def drawn(seed):
        torch.manual_seed(seed)
        return next(narrow(name).parameters()), torch.rand(1)

    (weights, after), (again, after_again), (others, after_others) = drawn(1), drawn(1), drawn(2)
    assert torch.equal(weights, again)
    assert torch.equal(after, after_again)
    assert not torch.equal(weights, others)
    assert not torch.equal(after, after_others)


def test_a_network_has_the_form_that_suits_the_size():
    assert select_variant("resnet18", 95) == "resnet18"
    assert select_variant("resnet18", 96) == "resnet18-imagenet"
    assert select_variant("vgg16", 224) == "vgg16"
    assert select_variant("resnet18-imagenet", 224) == "resnet18-imagenet"
    assert select_variant("timm:resnet18", 224) == "timm:resnet18"


def test_an_unknown_name_gives_those_like_it_and_how_to_list_all():
    with pytest.raises(ConfigError, match=r"no image network 'resnet180'.*resnet18.*--list"):
        build_network("resnet180", NetworkSpec(classes=10))
    with pytest.raises(ConfigError, match=r"no image network 'zzz'\. .*--list"):
        build_network("zzz", NetworkSpec(classes=10))
    with pytest.raises(ConfigError, match="no image network 'elsewhere:resnet18'"):
        build_network("elsewhere:resnet18", NetworkSpec(classes=10))


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"classes": 0}, "at least 1 class, got 0"),
        ({"channels": 0}, "at least 1 channel, got 0"),
        ({"size": 7}, "at least 8 pixels of height and width, got 7"),
        ({"width": 0.0}, "a width above 0.*got 0"),
        ({"width": -1.0}, "a width above 0.*got -1"),
        ({"width": math.inf}, "a width above 0.*got inf"),
        ({"width": math.nan}, "a width above 0.*got nan"),
    ],
    ids=["classes", "channels", "size", "no-width", "negative-width", "endless-width", "nan-width"],
)
def test_an_impossible_shape_is_refused(numbers, sentence):
    with pytest.raises(ConfigError, match=sentence):
        NetworkSpec(**{"classes": 10, **numbers})
