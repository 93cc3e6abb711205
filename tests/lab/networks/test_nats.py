"""The networks of NATS-Bench's size search space."""

import pytest
import torch
from torch import nn

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.networks.nats import Cell

# As the benchmark stores them, in millions: 0.011714, 0.107826, 0.713674.
PUBLISHED = {"8:8:8:8:8": 11_714, "8:8:16:40:40": 107_826, "64:64:64:64:64": 713_674}


def built(numbers, size=32, **options):
    return build_network(f"nats:{numbers}", NetworkSpec(classes=10, size=size, **options))


@pytest.mark.parametrize("channels", PUBLISHED)
def test_the_count_of_parameters_is_the_benchmarks(channels):
    assert sum(p.numel() for p in built(channels).parameters()) == PUBLISHED[channels]


def test_the_count_follows_from_the_five_numbers():
    c1, c2, c3, c4, c5 = channels = (16, 8, 64, 24, 40)

    def unit(inputs, outputs):
        return 9 * inputs * outputs + 2 * outputs

    def cell(inputs, outputs):
        skip = 0 if inputs == outputs else inputs * outputs + 2 * outputs
        return 2 * unit(inputs, outputs) + 3 * unit(outputs, outputs) + skip

    def block(inputs, outputs):
        return unit(inputs, outputs) + unit(outputs, outputs) + inputs * outputs

    expected = 27 * c1 + 2 * c1 + cell(c1, c1) + block(c1, c2) + cell(c2, c3) + block(c3, c4)
    expected += cell(c4, c5) + 2 * c5 + 10 * c5 + 10
    network = built(":".join(map(str, channels)))
    assert sum(p.numel() for p in network.parameters()) == expected


def test_a_cell_is_the_sum_of_its_edges():
    """|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip~0|nor_conv_3x3~1|nor_conv_3x3~2|."""
    torch.manual_seed(0)
    images = torch.randn(2, 8, 6, 6)
    for outputs in (8, 16):
        cell = Cell(8, outputs).eval()
        for module in cell.modules():  # so that norms matter
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 2)

        def edge(unit, node):
            return unit.norm(nn.functional.conv2d(node.relu(), unit.conv.weight, padding=1))

        first = edge(cell.unit01, images)
        second = edge(cell.unit02, images) + edge(cell.unit12, first)
        skipped = images if outputs == 8 else cell.skip03.norm(cell.skip03.conv(images))
        expected = skipped + edge(cell.unit13, first) + edge(cell.unit23, second)
        torch.testing.assert_close(cell(images), expected)


@pytest.mark.parametrize("size", [8, 9, 28, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_gets_logits_after_two_halvings(size, channels):
    network = built("8:16:24:16:8", size, channels=channels)
    seen = []
    network.cell3.register_forward_hook(lambda *given: seen.append(given[2].shape))
    assert network(torch.randn(2, channels, size, size)).shape == (2, 10)
    side = -(-size // 4)
    assert seen == [(2, 8, side, side)]


def test_every_parameter_gets_a_gradient_and_every_weight_is_probed():
    network = built("8:16:24:16:8", 8)
    logits = network(torch.randn(4, 3, 8, 8))
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()
    assert all(p.grad.abs().sum() > 0 for p in network.parameters())
    weights = {name for name, p in network.named_parameters() if p.ndim > 1}
    assert {layer.name for layer in rankwise.probe(network).probed} == weights


def test_weights_start_as_pytorch_draws_them():
    torch.manual_seed(1)
    network = built("64:8:8:8:8")
    weight = network.cell1.unit01.conv.weight
    assert weight.abs().max().item() == pytest.approx(1 / (64 * 9) ** 0.5, rel=1e-3)


@pytest.mark.parametrize(
    "name",
    ["nats:", "nats:8:8:8:8", "nats:8:8:8:8:8:8", "nats:8:8:8:8:12", "nats:8:8:8:8:72", "nats:a",
     "nats:08:8:8:8:8", "nats"],
)  # fmt: skip
def test_other_names_are_refused_in_a_sentence(name):
    with pytest.raises(ConfigError, match="five numbers of channels, each one of 8, 16"):
        build_network(name, NetworkSpec(10))


def test_a_width_beside_the_channels_is_refused():
    with pytest.raises(ConfigError, match=r"names its channels, got a width of 0\.5"):
        built("8:8:8:8:8", width=0.5)
