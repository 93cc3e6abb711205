"""Names and numbers of NATS-Bench's size search space."""

import itertools

import pytest

from rankwise.errors import ConfigError
from rankwise.lab.defaults import check_network, kind_of
from rankwise.lab.size_space import CHOICES, SIZE, name_network, parse_channels, sample_networks


def test_networks_are_numbered_as_in_the_benchmark():
    """Which lists all products of the choices; its API's tests have numbers 0, 11 and 284."""
    listed = itertools.product(CHOICES, repeat=5)
    for number, channels in enumerate(itertools.islice(listed, 600)):
        assert parse_channels(name_network(number)) == channels
    assert name_network(SIZE - 1) == "nats:64:64:64:64:64"
    assert SIZE == 32_768


@pytest.mark.parametrize("number", [-1, SIZE])
def test_other_numbers_are_refused(number):
    with pytest.raises(ConfigError, match="from 0 to 32767"):
        name_network(number)


def test_a_sample_has_no_network_twice_and_follows_its_seed():
    first = sample_networks(500, seed=1)
    assert len(set(first)) == 500
    assert sample_networks(500, seed=1) == first != sample_networks(500, seed=2)
    stages = zip(*map(parse_channels, first), strict=True)
    assert all(set(stage) == set(CHOICES) for stage in stages)


def test_a_name_of_the_space_is_an_image_network_and_a_wrong_one_is_none():
    check_network("nats:8:16:32:48:64")
    assert kind_of("nats:8:16:32:48:64") == "image"
    with pytest.raises(ConfigError, match="five numbers of channels"):
        check_network("nats:8:16:32:48")
