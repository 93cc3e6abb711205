"""The names of NATS-Bench's size search space: a cell network by its five numbers of channels.

`nats:C1:C2:C3:C4:C5`, each of 8, 16, …, 64: 32,768 networks, numbered as in the benchmark.
"""

from __future__ import annotations

import random

from rankwise.errors import ConfigError

PREFIX = "nats"
CHOICES = tuple(range(8, 65, 8))
STAGES = 5
SIZE = len(CHOICES) ** STAGES


def is_in_size_space(network: str) -> bool:
    """Return whether a name claims to be one of the space.

    Example:
        >>> is_in_size_space("nats:8:16:24:32:64"), is_in_size_space("resnet8")
        (True, False)
    """
    return network.partition(":")[0] == PREFIX


def parse_channels(network: str) -> tuple[int, ...]:
    """Return the five numbers of channels of a network of the space.

    Example:
        >>> parse_channels("nats:8:16:24:32:64")
        (8, 16, 24, 32, 64)
    """
    names = network.split(":")[1:]
    allowed = {str(number): number for number in CHOICES}
    if len(names) != STAGES or not all(name in allowed for name in names):
        raise ConfigError(
            f"Expected {PREFIX}: and five numbers of channels, each one of {', '.join(allowed)}, "
            f"such as {PREFIX}:8:16:32:48:64, got {network!r}."
        )
    return tuple(allowed[name] for name in names)


def name_network(number: int) -> str:
    """Return the network of a number from 0 to 32,767; the last channels change first.

    Example:
        >>> name_network(0), name_network(284)
        ('nats:8:8:8:8:8', 'nats:8:8:40:32:40')
    """
    if not 0 <= number < SIZE:
        raise ConfigError(f"Expected the number of a network from 0 to {SIZE - 1}, got {number}.")
    channels: list[str] = []
    for _ in range(STAGES):
        number, place = divmod(number, len(CHOICES))
        channels.insert(0, str(CHOICES[place]))
    return ":".join([PREFIX, *channels])


def sample_networks(count: int, *, seed: int) -> list[str]:
    """Draw different networks of the space, each as likely as any other, in the space's order.

    Example:
        >>> sample_networks(2, seed=0)
        ['nats:56:16:24:32:64', 'nats:56:48:56:48:24']
    """
    numbers = random.Random(seed).sample(range(SIZE), count)  # noqa: S311 - no secret
    return [name_network(number) for number in sorted(numbers)]
