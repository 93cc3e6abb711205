"""Controls: the same multipliers on other layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise import ArgumentError
from rankwise.optim.controls import (
    ControlState,
    check_control,
    control_multipliers,
    extend_derangement,
)

TABLES = st.dictionaries(st.text(max_size=4), st.floats(0.01, 10), min_size=2, max_size=12)
EMPTY = ControlState({}, {})


@given(TABLES)
def test_the_mean_is_that_of_the_rule(table):
    _, multipliers = control_multipliers("mean", EMPTY, table, 0)
    assert set(multipliers) == set(table)
    assert len(set(multipliers.values())) == 1
    assert next(iter(multipliers.values())) == pytest.approx(sum(table.values()) / len(table))


@given(TABLES, st.integers(0, 5))
def test_shuffled_gives_each_layer_another_one_s_multiplier(table, seed):
    state, multipliers = control_multipliers("shuffled", EMPTY, table, seed)
    assert sorted(multipliers.values()) == sorted(table.values())
    assert all(name != source for name, source in state.sources.items())
    assert all(multipliers[name] == table[state.sources[name]] for name in table)


@given(st.lists(st.text(max_size=3), unique=True, min_size=2, max_size=12), st.integers(0, 3))
def test_layers_that_come_later_are_put_into_the_same_permutation(names, seed):
    whole = extend_derangement({}, names, seed)
    assert extend_derangement(whole, names, seed) == whole
    part = extend_derangement({}, names[:-1], seed)
    assert extend_derangement(part, names, seed) == whole
    assert sum(whole[name] != part.get(name) for name in names) <= 2


def test_seeds_give_different_permutations_and_the_same_seed_the_same():
    names = [str(i) for i in range(12)]
    drawn = [tuple(extend_derangement({}, names, seed).items()) for seed in (*range(20), 0)]
    assert len(set(drawn)) == 20


def test_the_permutation_stays_while_multipliers_change():
    state, _ = control_multipliers("shuffled", EMPTY, {"a": 1.0, "b": 2.0, "c": 3.0}, 1)
    later, multipliers = control_multipliers("shuffled", state, {"a": 9.0}, 1)
    assert later.sources == state.sources
    assert sorted(multipliers.values()) == [2.0, 3.0, 9.0]


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ("median", "'mean', 'shuffled' or a table"),
        ({"conv1": 0.5, "conv3": 2.0}, r"got 'conv3'. Did you mean conv"),
        ({"conv1": -0.5}, "multiplier ≥ 0 for conv1, got -0.5"),
        ({"conv1": float("nan")}, "multiplier ≥ 0"),
    ],
)
def test_other_controls_are_refused(control, message):
    with pytest.raises(ArgumentError, match=message):
        check_control(control, ["conv1", "conv2"])


def test_one_layer_can_not_be_shuffled():
    with pytest.raises(ArgumentError, match="two layers or more"):
        check_control("shuffled", ["fc"])
