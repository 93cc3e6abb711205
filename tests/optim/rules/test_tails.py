"""TempBalance and LLR: the map from Hill exponents to multipliers, and which layers it is for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise import LLR, ArgumentError, LayerReading, TempBalance
from rankwise.optim.rules.tails import find_head
from tests.reference.layerwise_reference import interpolate

ALPHAS = st.lists(st.one_of(st.none(), st.floats(1.01, 20)), min_size=1, max_size=12)


def read(alphas, shape=(64, 64)):
    return [
        LayerReading(f"layer{i}", "linear", shape, "undefined" if a is None else "measured", a)
        for i, a in enumerate(alphas)
    ]


def llr(**options):
    return LLR(1000, heads=(), **options)


@given(ALPHAS, st.randoms())
def test_they_are_the_formula_in_any_order(alphas, random):
    for rule, low, high in ((TempBalance(), 0.5, 1.5), (llr(), 1.0, 3.0), (llr(highest=5), 1, 5)):
        readings = read(alphas)
        expected = dict(
            zip([r.name for r in readings], interpolate(alphas, low, high), strict=True)
        )
        random.shuffle(readings)
        state, multipliers = rule.update(rule.start(), readings)
        assert state == rule.start()
        assert multipliers == pytest.approx(expected, rel=1e-9)
        assert all(low - 1e-12 <= m <= high + 1e-12 for m in multipliers.values())


@pytest.mark.parametrize("rule", [TempBalance(), llr()], ids=["TempBalance", "LLR"])
def test_equal_exponents_leave_the_global_rate(rule):
    readings = read([3.0, 3.0, 3.0])
    assert set(rule.update(rule.start(), readings)[1].values()) == {1.0}
    assert rule.update(rule.start(), read([2.5]))[1] == {"layer0": 1.0}


@pytest.mark.parametrize("outcome", ["idle", "failed", "skipped"])
@pytest.mark.parametrize("rule", [TempBalance(), llr()], ids=["TempBalance", "LLR"])
def test_layers_that_were_not_measured_keep_what_they_have(rule, outcome):
    other = LayerReading("other", "linear", (64, 64), outcome)
    assert set(rule.update(rule.start(), [*read([2.0, 3.0]), other])[1]) == {"layer0", "layer1"}


NETWORK = [
    LayerReading("embed", "embedding", (900, 64)),
    LayerReading("stem", "conv2d", (64, 3, 7, 7)),
    LayerReading("mixer", "depthwise2d", (64, 1, 7, 7)),
    LayerReading("up", "conv_transpose2d", (64, 64, 2, 2)),
    LayerReading("audio", "conv1d", (64, 64, 3)),
    LayerReading("attention", "attention", (192, 64)),
    LayerReading("hidden", "linear", (64, 64)),
    LayerReading("small", "linear", (49, 64)),
    LayerReading("head", "linear", (900, 64)),
]


def test_temp_balance_sets_linear_and_conv2d_but_the_first_and_the_last():
    assert list(TempBalance().select(NETWORK)) == ["mixer", "hidden", "small"]
    assert list(TempBalance(dropped=()).select(NETWORK)) == [
        *("stem", "mixer", "hidden", "small", "head"),
    ]
    chosen = TempBalance(dropped=("h*", "depthwise2d")).select(NETWORK)
    assert list(chosen) == ["stem", "small"]


def test_llr_measures_all_with_enough_eigenvalues_but_embeddings_and_the_head():
    large = ["stem", "up", "audio", "attention", "hidden"]
    assert list(LLR(10).select(NETWORK)) == large
    assert set(LLR(10, fewest=49).select(NETWORK)) == {*large, "mixer", "small"}
    given = LLR(10, embeddings=("embed", "attention"), heads="hid*").select(NETWORK)
    assert list(given) == ["stem", "up", "audio", "head"]


def test_llr_gives_embeddings_and_the_head_the_maximum():
    readings = [NETWORK[0]._replace(outcome="skipped"), *read([2.0, 4.0, 3.0]), NETWORK[-1]]
    multipliers = LLR(10).update(LLR(10).start(), readings)[1]
    assert multipliers["embed"] == multipliers["head"] == multipliers["layer1"] == 3.0
    equal = [NETWORK[0]._replace(outcome="skipped"), *read([2.0, 2.0]), NETWORK[-1]]
    assert set(LLR(10).update(LLR(10).start(), equal)[1].values()) == {1.0}


def test_the_head_is_the_last_layer_unless_it_is_one_of_a_block():
    blocks = [LayerReading(f"h.{i}.mlp", "linear", (64, 64)) for i in range(3)]
    assert find_head(blocks) is None
    assert find_head([*blocks, NETWORK[-1]]) == "head"
    assert find_head([LayerReading("0", shape=(8, 4)), LayerReading("2", shape=(3, 8))]) == "2"
    assert find_head([LayerReading("norm", "", ())]) is None


@pytest.mark.parametrize("steps", [1, 4, 100, 1000])
def test_llr_ends_after_a_fifth_of_the_training(steps):
    assert LLR(steps).last_step == max(1, steps // 5)
    assert LLR(steps, share=0.5).last_step == max(1, steps // 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TempBalance(0.0), "0 < lowest ≤ highest"),
        (lambda: TempBalance(1.5, 0.5), "lowest ≤ highest multiplier, got 1.5 and 0.5"),
        (lambda: LLR(100, highest=0.5), "lowest ≤ highest"),
        (lambda: LLR(0), "steps of 1 or more, got 0"),
        (lambda: LLR(100, every=0), "every of 1 or more"),
        (lambda: LLR(100, share=0.0), "share above 0"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
