"""Families are ranked each by itself; choices are seen on families that had no part in them."""

import json

import pytest

from rankwise.study.stats import adjust_holm, correlate, permutation_test
from rankwise.study.zoo import ranking as module
from rankwise.study.zoo.networks import SkippedNetwork, read_table
from rankwise.study.zoo.scores import CANDIDATES, SCORES
from rankwise.study.zoo.verdict import describe_layers, describe_ranking, format_p
from tests.study.zoo.made import measured, zoo


@pytest.fixture
def ranked(monkeypatch):
    """Ranks made-up networks; `lost` are those that turn out to be unreadable."""

    def rank(members, lost=(), resamples=20, **changes):
        monkeypatch.setattr(module, "measure_networks", lambda _, progress: (members, list(lost)))
        return module.rank_networks(zoo(members, **changes), resamples=resamples)

    return rank


def family(name, sign=1.0, size=8, **changes):
    """Networks whose scores rise, or fall, with their accuracy, if for some disorder."""
    order = [0.1, 0.3, 0.2, 0.4, 0.5, 0.7, 0.6, 0.8, 0.9, 1.0][:size]
    return [
        measured(number, number / 10, sign * value, family=name, **changes)
        for number, value in enumerate(order)
    ]


def test_numbers_are_those_of_correlate_and_the_permutation_test(ranked):
    members = family("f")
    (found,) = ranked(members, resamples=30).families
    x, y = [m.scores["quality"] for m in members], [m.network.accuracy for m in members]
    groups = [m.network.group for m in members]
    quality = found.of("quality")
    assert (quality.plcc, quality.srocc, quality.krocc) == correlate(x, y, resamples=30)
    assert quality.p == permutation_test(x, y, groups=groups, permutations=299)
    assert [one.name for one in found.accuracy] == list(SCORES)


def test_networks_of_a_group_are_kept_together(ranked):
    members = [
        measured(number, number / 10, float(number), group=str(number // 2)) for number in range(12)
    ]
    (found,) = ranked(members).families
    assert (found.of("quality").srocc.n, found.of("quality").srocc.groups) == (12, 6)


def test_families_come_by_name_and_are_not_mixed(ranked):
    found = ranked([*family("b", -1.0), *family("a")])
    assert [one.name for one in found.families] == ["a", "b"]
    assert found.families[0].of("quality").srocc.value > 0.8
    assert found.families[1].of("quality").srocc.value < -0.8


def test_p_is_adjusted_over_all_scores_families_and_targets(ranked):
    members = [*family("a", train=0.9), *family("b")]
    found = ranked(members, resamples=200)
    every = [one for f in found.families for one in (*f.accuracy, *f.gap)]
    assert found.tests == len(every) == 3 * len(SCORES)
    assert [one.adjusted for one in every] == adjust_holm([one.p for one in every])
    layers = found.families[0].layers
    assert [one.adjusted for one in layers] == adjust_holm([one.p for one in layers])


def test_the_gap_is_ranked_where_it_is_known(ranked):
    (found,) = ranked(family("f", train=0.9)).families
    # All were trained to the same accuracy: where the test's is higher, the gap is smaller.
    assert found.gap[0].srocc.value == pytest.approx(-found.accuracy[0].srocc.value)
    (unknown,) = ranked(family("f")).families
    assert unknown.gap == ()


def test_layers_are_those_of_the_commonest_architecture(ranked):
    others = [
        measured(n, n / 10, 0.5, shapes=(("x", (2, 2)),), qualities={"x": 1.0}) for n in (8, 9)
    ]
    (found,) = ranked([*family("f"), *others]).families
    assert (found.alike, found.architectures) == (8, 2)
    assert {one.name: one.srocc.value for one in found.layers} == pytest.approx(
        {"conv": 1, "fc": -1}
    )
    assert found.alike_quality.srocc.n == 8


def test_a_choice_is_made_on_every_other_family_and_seen_on_the_rest(ranked):
    good, bad = CANDIDATES[2].name, CANDIDATES[5].name

    def members(name, best):
        return [
            measured(
                n,
                n / 10,
                {good: float(n if best == good else -n), bad: float(n if best == bad else -n)},
                family=name,
            )
            for n in range(6)
        ]

    found = ranked([*members("a", good), *members("b", bad), *members("c", good)])
    first, second = found.choices
    assert (first.score, first.chosen_on) == (good, pytest.approx({"a": 1.0, "c": 1.0}))
    assert first.reported_on == pytest.approx({"b": -1.0})
    assert (second.score, second.reported_on) == (bad, pytest.approx({"a": -1.0, "c": -1.0}))
    assert "does not hold on" in describe_ranking(found)[-1]


def test_a_choice_that_holds_is_said_to(ranked):
    found = ranked([*family("a"), *family("b")])
    assert "choose the same score" in describe_ranking(found)[-1]


def test_a_single_family_leaves_nothing_to_choose(ranked):
    assert ranked(family("f")).choices == ()


def test_all_that_is_left_out_is_told_once(ranked):
    before, after = SkippedNetwork("a.pt", "has no accuracy"), SkippedNetwork("b.pt", "is broken")
    found = ranked(family("f"), [after], skipped=(before,))
    assert found.skipped == (before, after)


def test_everything_is_plain_json_and_the_same_for_the_same_seed(ranked):
    members = [*family("a", train=0.9), *family("b")]
    text = json.dumps(ranked(members).to_dict(), allow_nan=False)
    assert text == json.dumps(ranked(members).to_dict(), allow_nan=False)
    read = json.loads(text)
    assert read["families"][0]["accuracy"][0]["name"] == "quality"
    assert read["permutations"] == 199
    assert read["families"][0]["rank_one_widths"] == {"8": 12}


@pytest.mark.parametrize(
    ("sign", "said"),
    [
        (1.0, "Q ranks these networks (SROCC 0.95"),
        (-1.0, "Q ranks these networks backwards (SROCC -0.95"),
        (0.0, "no correlation of Q and accuracy, since all values of the first are the same"),
    ],
    ids=["ranks", "backwards", "constant"],
)
def test_the_verdict_says_whether_q_ranks(ranked, sign, said):
    assert said in describe_ranking(ranked(family("f", sign), resamples=200))[1]


def test_the_verdict_names_size_and_norm_beside_q(ranked):
    members = [
        measured(n, n / 10, {"quality": float(n), "log_parameters": -float(n)}) for n in range(8)
    ]
    said = describe_ranking(ranked(members))[1]
    assert "For comparison: log parameters, SROCC -1.00" in said
    assert "; mean log ‖W‖F, " in said


def test_the_verdict_does_not_call_chance_a_ranking(ranked):
    order = [5, 1, 7, 3, 2, 8, 4, 6]
    members = [measured(n, n / 10, float(order[n])) for n in range(8)]
    overall, of_family = describe_ranking(ranked(members, resamples=200))
    assert "Q does not rank these networks" in of_family
    assert overall.startswith(
        "Q ranks the networks by accuracy in 0 of 1 family, and backwards in 0"
    )


def test_the_verdict_is_careful_with_few_groups(ranked):
    members = [measured(n, n / 10, float(n), group=str(n % 2)) for n in range(8)]
    assert "can't be judged with so few" in describe_ranking(ranked(members))[1]


def test_nothing_measured_is_said():
    found = module.rank_networks(zoo([]), resamples=1)
    assert describe_ranking(found) == (
        "No network could be measured, so there is nothing to rank.",
    )


def test_it_is_told_where_q_follows_rank_one(ranked):
    members = [
        measured(n, n / 10, float(n % 4), rank_one_widths=(8,) * (n % 4), modes=4) for n in range(8)
    ]
    (found,) = ranked(members).families
    said = describe_layers(found)
    assert "38 % of unfoldings have rank 1, with a median smaller side of 8" in said
    assert "All have one architecture." in said
    assert "Q follows the share of rank-1 unfoldings (SROCC 1.00" in said


def test_p_is_written_as_people_do():
    assert [format_p(p) for p in (None, 0.0004, 0.05, 1.0)] == ["–", "<.001", ".050", "1.000"]


def test_on_the_real_zoo_q_does_not_rank_and_follows_rank_one(request):
    """What the documentation says of these families; the ResNets are even ranked backwards."""
    index = request.getfixturevalue("zoo") / "index.csv"  # here `zoo` is a function
    found = module.rank_networks(read_table(index), resamples=200)
    by_name = {family.name: family for family in found.families}
    assert found.skipped == ()
    for family_ in found.families:
        assert family_.rank_one_quality.srocc.value > 0.8
    assert by_name["cifar_resnet"].of("quality").srocc.high < 0
    for name in ("arm_ml_kws", "cifar_basecnn_optim", "cifar_lenet"):
        quality = by_name[name].of("quality").srocc
        assert quality.low < 0 < quality.high
    assert [choice.score for choice in found.choices] == ["prominence", "quality_by_width"]
    assert "does not hold on" in describe_ranking(found)[-1]
