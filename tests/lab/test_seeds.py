"""Every random choice follows from a place in a run."""

import itertools

import torch

from rankwise.lab.seeds import generator_for, seed_for


def test_seeds_stay_what_they_are():
    # A run that goes on with a newer version must draw what the older one would have drawn.
    assert seed_for(0, "order", 0) == 2537739582326302707
    assert seed_for(7, "weights") == 7205537796144526558


def test_a_seed_has_63_bits():
    seeds = [seed_for(number) for number in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_different_places_have_different_seeds():
    places = [
        *itertools.product(range(4), ["order", "step"], range(12), range(12)),
        *((seed, "weights") for seed in range(20)),
        (1, 23),
        (12, 3),
        ("1", "23", ""),
        ("1", "", "23"),
    ]
    assert len({seed_for(*place) for place in places}) == len(places)


def test_a_generator_draws_the_same_for_the_same_place_whatever_was_drawn_before():
    first = torch.rand(8, generator=generator_for(0, "crop", 3))
    torch.rand(100)
    assert torch.equal(first, torch.rand(8, generator=generator_for(0, "crop", 3)))
    assert not torch.equal(first, torch.rand(8, generator=generator_for(0, "crop", 4)))
