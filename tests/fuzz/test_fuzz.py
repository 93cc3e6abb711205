"""2,000 mutated inputs over all formats; `python -m tests.fuzz` runs more of them."""

import pytest

from tests.fuzz.corpus import FORMATS, make_case
from tests.fuzz.oracle import Outcome, judge_seed

INPUTS = 2000
CHUNKS = 2
SIZE = -(-INPUTS // (len(FORMATS) * CHUNKS))


def _judge(name, seed, watch):
    command = f"python -m tests.fuzz --replay {name} {seed}"
    print(command)  # the last is what a hang hangs at
    verdict = judge_seed(name, seed, watch)
    assert verdict.problems == [], command
    return verdict.outcome


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", FORMATS)
def test_mutated_inputs_are_read_or_refused(name, chunk, watch):
    seeds = range(chunk * SIZE, (chunk + 1) * SIZE)
    outcomes = [_judge(name, seed, watch) for seed in seeds]
    refused = outcomes.count(Outcome.REFUSED)
    assert SIZE // 5 < refused < SIZE - SIZE // 5, "mutations are too harsh or too mild"


# The HDF5 library writes the time into some files: they are the same within one second.
_TRIES = {"hdf5": 5, "keras": 5}


@pytest.mark.parametrize("name", FORMATS)
def test_a_seed_always_makes_the_same_input(name):
    def make():
        return [make_case(name, seed) for seed in range(20)]

    assert any(make() == make() for _ in range(_TRIES.get(name, 1)))
    assert len({str(case) for case in make()}) > 15


def test_every_input_is_run():
    assert SIZE * CHUNKS * len(FORMATS) >= INPUTS
