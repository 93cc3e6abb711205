"""RelativeUpdate: one multiplier that aims at a relative size of updates."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise import ArgumentError, LayerReading, RelativeUpdate
from rankwise.optim.rules.relative_update import UpdateState

SIZES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=6)


def read(sizes, schedule=1.0):
    return [LayerReading(str(i), value=r, schedule=schedule) for i, r in enumerate(sizes)]


@given(st.lists(SIZES, min_size=1, max_size=6), st.floats(0.001, 1.0))
def test_it_is_the_formula(rounds, schedule):
    rule, state = RelativeUpdate(target=0.2), UpdateState()
    log_u, mu = None, 1.0
    for sizes in rounds:
        mean = sum(math.log(r / (mu * max(schedule, 0.02))) for r in sizes) / len(sizes)
        log_u = mean if log_u is None else 0.5 * log_u + 0.5 * mean
        mu = min(max(0.2 / math.exp(log_u), mu / 3), 3 * mu)
        state, multipliers = rule.update(state, read(sizes, schedule))
        assert state.multiplier == pytest.approx(mu, rel=1e-9)
        assert multipliers == dict.fromkeys(multipliers, state.multiplier)
        assert len(multipliers) == len(sizes)


def test_updates_in_proportion_to_the_rate_reach_the_target():
    """Where r = g·μ·c the multiplier settles at ρ/g, whatever the first rate was."""
    for size in (1e-4, 0.03, 5.0):
        rule, state = RelativeUpdate(target=0.2), UpdateState()
        for _ in range(25):
            state, _ = rule.update(state, read([size * state.multiplier]))
        assert size * state.multiplier == pytest.approx(0.2, rel=1e-3)


def test_layers_that_did_not_change_or_were_not_measured_do_not_count():
    odd = [
        LayerReading("idle", outcome="idle"),
        LayerReading("same", value=0.0),
        LayerReading("from zero", value=math.inf),
    ]
    state, multipliers = RelativeUpdate().update(UpdateState(), [*read([0.1]), *odd])
    assert state == RelativeUpdate().update(UpdateState(), read([0.1]))[0]
    assert set(multipliers) == {"0", "idle", "same", "from zero"}
    assert RelativeUpdate().update(state, odd)[0] == state


@pytest.mark.parametrize("options", [{"target": 0.0}, {"target": math.inf}, {"every": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ArgumentError, match="Expected"):
        RelativeUpdate(**options)
