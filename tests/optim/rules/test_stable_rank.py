"""The paper's rule and its annealed variant, as pure functions."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rankwise
from rankwise import AnnealedStableRank, LayerReading, StableRank
from rankwise.optim import rmsgd
from rankwise.optim.group_state import State
from rankwise.optim.readings import Reading, WeightReading

# With a reference of 1 the rules set rates instead of multipliers, as RMSGD has them do.
PAPER = StableRank(beta=0.98, zeta=1.0, floor=1e-4, reference=1.0)
IDLE, FAILED, NO_WEIGHT = "idle", "failed", "no weight"


def row(status, stable_rank=None):
    metrics = rankwise.LayerMetrics(
        "w", "linear", (4, 4), "float32", 16, rankwise.Status(status), stable_rank=stable_rank
    )
    return WeightReading(metrics, stable_rank, metrics.is_probed)


def read(index, state, given):
    """A layer of one group whose stable rank, or what is special about it, is given."""
    kinds = {IDLE: row("filtered"), FAILED: row("not finite"), NO_WEIGHT: row("too small")}
    weights = (kinds.get(given) or row("probed", given),)
    return Reading(str(index), (index,), given != IDLE, state.stable_rank, weights)


def next_states(states, given, rules):
    readings = [read(i, *pair) for i, pair in enumerate(zip(states, given, strict=True))]
    return rmsgd.next_states(states, readings, rules)


def after(state, given, rule=PAPER):
    return next_states([state], [given], [rule])[0]


def test_the_paper_s_rule():
    state = after(State(0.03, 0.03, stable_rank=0.1), 0.15)
    assert state == State(0.03, 0.98 * 0.03 + 1.0 * (0.15 - 0.1), 0.15, epoch=1)


def test_a_loss_of_stable_rank_lowers_the_rate_to_the_floor_at_most():
    assert after(State(0.03, 0.03, stable_rank=0.5), 0.4).rate == PAPER.floor


def test_a_layer_at_the_floor_rises_again():
    low = State(0.03, PAPER.floor, stable_rank=0.4)
    assert after(low, 0.45).rate == pytest.approx(0.05, abs=1e-3)


def test_zeta_weighs_the_gain():
    doubled = replace(PAPER, zeta=2.0)
    assert after(State(1.0, 0.0, 0.1), 0.2, doubled).rate == pytest.approx(0.2)


def test_an_unknown_start_is_no_gain():
    state = after(State(0.03, 0.03, stable_rank=None), 0.7)
    assert (state.rate, state.stable_rank) == (0.98 * 0.03, 0.7)


def test_a_layer_that_took_no_step_stays_as_it_is():
    state = State(0.03, 0.02, 0.3, epoch=4)
    assert after(state, IDLE) == state


def test_a_layer_that_could_not_be_measured_stays_as_it_is():
    state = State(0.03, 0.02, 0.3, epoch=4)
    assert after(state, FAILED) == state


def test_a_layer_with_rate_zero_stays_frozen():
    assert after(State(0.0, 0.0, 0.1), 0.9).rate == 0.0


def test_a_layer_without_weight_moves_at_the_mean_of_the_others():
    states = [State(0.1, 0.1, 0.0), State(0.2, 0.2, 0.0), State(0.5, 0.5)]
    new = next_states(states, [0.1, 0.0, NO_WEIGHT], [PAPER] * 3)
    mean = ((0.098 + 0.1) / 0.1 + 0.98) / 2
    assert new[2].rate == pytest.approx(0.5 * mean)


def test_a_layer_without_weight_keeps_its_rate_where_nothing_is_probed():
    states = [State(0.1, 0.07), State(0.1, 0.07)]
    assert next_states(states, [NO_WEIGHT, FAILED], [PAPER] * 2) == states


def test_the_groups_of_a_layer_share_its_rank_and_have_rates_in_proportion():
    states = [State(0.3, 0.3), State(0.1, 0.1, stable_rank=0.1, epoch=3, stepped=True)]
    reading = Reading("both", (1, 0), previous=0.1, weights=(row("probed", 0.2),))
    bias, weight = rmsgd.next_states(states, [reading], [PAPER] * 2)
    assert weight == State(0.1, 0.98 * 0.1 + (0.2 - 0.1), 0.2, epoch=4)
    assert bias == State(0.3, pytest.approx(3 * weight.rate), 0.2, epoch=4)


def test_a_layer_with_several_weights_has_their_mean_stable_rank():
    weights = (row("probed", 0.2), row("too small"), row("probed", 0.5))
    assert Reading("two", (0,), weights=weights).value == pytest.approx(0.35)


def test_states_are_not_changed():
    states = [State(0.1, 0.1, 0.0)]
    next_states(states, [0.5], [PAPER])
    assert states == [State(0.1, 0.1, 0.0)]


@given(
    beta=st.floats(0, 1),
    zeta=st.floats(0, 10),
    floor=st.floats(1e-8, 1e-2),
    ranks=st.lists(st.floats(0, 1), min_size=1, max_size=30),
)
def test_rates_stay_above_the_floor_and_sum_up_the_gains(beta, zeta, floor, ranks):
    rule = StableRank(beta, zeta, floor, reference=1.0)
    state = State(0.03, 0.03, 0.0)
    expected, before = 0.03, 0.0
    for s in ranks:
        state = after(state, s, rule)
        expected, before = max(beta * expected + zeta * (s - before), floor), s
        assert state.rate == expected >= floor
    assert state.epoch == len(ranks)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.randoms())
def test_the_order_of_layers_does_not_matter(ranks, random):
    states = [State(0.03, 0.03, 0.0)] * len(ranks)
    rules = [PAPER] * len(ranks)
    order = random.sample(range(len(ranks)), len(ranks))
    plain = next_states(states, ranks, rules)
    assert next_states(states, [ranks[i] for i in order], rules) == [plain[i] for i in order]


def test_with_scaled_zeta_and_floor_the_rule_scales():
    """The relative rule of METHOD §4: a first rate c times as large gives c times the rates."""
    scale = 0.001 / 0.03
    relative = StableRank(0.98, 1.0 * scale, 1e-4 * scale, reference=1.0)
    small, large = State(0.001, 0.001, 0.1), State(0.03, 0.03, 0.1)
    for s in (0.2, 0.25, 0.1, 0.1):
        small, large = after(small, s, relative), after(large, s)
        assert small.rate == pytest.approx(large.rate * scale, rel=1e-12)


class TestAnnealed:
    RULE = AnnealedStableRank(epochs=20, beta=0.8, zeta=1.0, floor=1e-3, reference=1.0)

    @given(
        beta=st.floats(0, 1),
        zeta=st.floats(0, 10),
        ranks=st.lists(st.floats(0, 1), min_size=1, max_size=40),
    )
    def test_gains_fade_on_top_of_the_first_rate_under_a_cosine(self, beta, zeta, ranks):
        """η(t) = a(t)·max(η(0) + m(t), floor); what the floor adds to m stays in it."""
        rule = replace(self.RULE, beta=beta, zeta=zeta)
        state, extra, before = State(0.1, 0.1, 0.0), 0.0, 0.0
        for epoch, s in enumerate(ranks, start=1):
            state = after(state, s, rule)
            extra = max(beta * extra + zeta * (s - before), rule.floor - 0.1)
            before = s
            cosine = (1 + math.cos(math.pi * min(epoch, 19) / 20)) / 2
            assert state.rate == pytest.approx(cosine * (0.1 + extra), rel=1e-6, abs=1e-9)
            assert state.rate > 0

    def test_without_gain_it_is_a_cosine_from_the_first_rate(self):
        state = State(0.1, 0.1, 0.3)
        for _ in range(10):
            state = after(state, 0.3, self.RULE)
        assert state.rate == pytest.approx(0.05)

    def test_a_layer_that_waits_anneals_with_the_others(self):
        moving, idle = State(0.1, 0.1, 0.3), State(0.1, 0.1, 0.3)
        for _ in range(5):
            moving, idle = next_states([moving, idle], [0.3, IDLE], [self.RULE] * 2)
        assert idle.rate == pytest.approx(moving.rate)
        assert idle.stable_rank == 0.3

    def test_rates_stay_above_zero_beyond_the_last_epoch(self):
        state = State(0.1, 0.1, 0.0)
        for _ in range(50):
            state = after(state, 0.0, self.RULE)
        assert state.rate == pytest.approx(0.1 * (1 + math.cos(math.pi * 19 / 20)) / 2)

    def test_a_layer_without_weight_moves_at_the_mean_of_the_others(self):
        states = [State(0.1, 0.1, 0.0), State(0.5, 0.5)]
        new = next_states(states, [0.1, NO_WEIGHT], [self.RULE] * 2)
        assert new[1].rate == pytest.approx(5 * new[0].rate)


class TestBetaFor:
    def test_it_gives_the_paper_s_values_for_its_budgets(self):
        assert rankwise.beta_for(250) == pytest.approx(0.98)
        assert rankwise.beta_for(100) == pytest.approx(0.95, abs=1e-3)

    @pytest.mark.parametrize("epochs", [1, 15, 250, 1000])
    def test_every_budget_leaves_as_much_of_the_first_rate(self, epochs):
        assert rankwise.beta_for(epochs) ** epochs == pytest.approx(0.98**250)

    @pytest.mark.parametrize(("epochs", "left"), [(1, 0.05), (20, 0.05), (250, 0.98**250), (3, 1)])
    def test_as_much_is_left_as_was_asked_for(self, epochs, left):
        assert rankwise.beta_for(epochs, left=left) ** epochs == pytest.approx(left)

    @pytest.mark.parametrize("left", [0, -0.1, 1.5, float("nan"), True, "0.05"])
    def test_no_share_is_refused(self, left):
        with pytest.raises(rankwise.ArgumentError, match="left above 0"):
            rankwise.beta_for(20, left=left)

    @pytest.mark.parametrize("epochs", [0, -1, 2.5, True, "10", None])
    def test_no_epochs_are_refused(self, epochs):
        with pytest.raises(rankwise.ArgumentError, match="epochs"):
            rankwise.beta_for(epochs)


def readings(values, previous):
    pairs = zip(values, previous, strict=True)
    return [LayerReading(str(i), value=s, previous=before) for i, (s, before) in enumerate(pairs)]


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=8),
    st.floats(0.001, 1.0),
)
def test_multipliers_are_the_paper_s_rates_over_the_reference(ranks, reference):
    """m = η/η(0) where η(0) = η_ref, for both variants; layer by layer, whatever their order."""
    rules = (
        (StableRank(0.9, 2.0, 0.05, reference), StableRank(0.9, 2.0, 0.05 * reference, 1.0)),
        (
            AnnealedStableRank(6, 0.9, 2.0, 0.05, reference),
            AnnealedStableRank(6, 0.9, 2.0, 0.05 * reference, 1.0),
        ),
    )
    for relative, absolute in rules:
        state, multipliers = relative.start(), {}
        states = [State(reference, reference, s) for s in ranks[0]]
        for before, after in itertools.pairwise(ranks):
            state, multipliers = relative.update(state, readings(after, before)[::-1])
            states = next_states(states, after, [absolute] * 3)
        for index, expected in enumerate(states):
            assert multipliers.get(str(index), 1.0) * reference == pytest.approx(
                expected.rate, rel=1e-6, abs=1e-9 * reference
            )


def test_a_layer_that_waits_keeps_its_multiplier_or_anneals_with_the_others():
    waiting = LayerReading("fc", "linear", (4, 4), "idle")
    assert StableRank(0.5).update(StableRank().start(), [waiting])[1] == {"fc": 1.0}
    annealed = AnnealedStableRank(2)
    assert annealed.update(annealed.start(), [waiting])[1] == {"fc": pytest.approx(0.5)}


@pytest.mark.parametrize("outcome", ["skipped", "idle"])
def test_a_layer_without_a_weight_is_not_set(outcome):
    reading = LayerReading("norm", "", (), outcome)
    assert StableRank().update(StableRank().start(), [reading])[1] == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StableRank(beta=1.5), "beta between 0 and 1"),
        (lambda: StableRank(reference=0.0), "reference > 0"),
        (lambda: AnnealedStableRank(0), "epochs of 1 or more"),
        (lambda: AnnealedStableRank(5, floor=-1.0), "floor ≥ 0"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(rankwise.ArgumentError, match=message):
        make()
