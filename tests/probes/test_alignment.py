import pytest

from rankwise.probes.alignment import align_names

NET = ["conv1.weight", "layer1.0.conv.weight", "layer1.1.conv.weight", "fc.weight"]


def prefixed(prefix, names=NET):
    return [prefix + name for name in names]


def paired(before, after):
    found = align_names(before, after)
    return found.prefix, [(before[i], after[j]) for i, j in found.pairs]


def test_equal_names_need_no_prefix():
    assert paired(NET, NET[::-1]) == ("", [(name, name) for name in NET[::-1]])


@pytest.mark.parametrize("prefix", ["model.", "module.", "model.backbone.", "a.b.c.d."])
def test_prefix_on_either_side(prefix):
    assert paired(NET, prefixed(prefix)) == ("+" + prefix, [(n, prefix + n) for n in NET])
    assert paired(prefixed(prefix), NET) == ("-" + prefix, [(prefix + n, n) for n in NET])


def test_prefix_with_new_head_and_without_old():
    after = [*prefixed("backbone.", NET[:3]), "head.weight"]
    prefix, pairs = paired(NET, after)
    assert prefix == "+backbone."
    assert [b for b, _ in pairs] == NET[:3]


def test_exact_names_win_where_most_match():
    after = [*NET, "model.conv1.weight"]
    assert paired(NET, after) == ("", [(name, name) for name in NET])


def test_two_models_of_one_build_are_not_guessed_between():
    found = align_names(NET, [*prefixed("student."), *prefixed("teacher.")])
    assert found.pairs == ()
    assert found.candidates == ("+student.", "+teacher.")


def test_a_near_tie_is_not_guessed_either():
    found = align_names(NET, [*prefixed("encoder."), *prefixed("decoder.", NET[1:])])
    assert found.pairs == ()
    assert found.candidates == ("+decoder.", "+encoder.")


def test_a_chance_match_does_not_hide_a_clear_prefix():
    assert align_names(NET, [*prefixed("encoder."), "decoder.fc.weight"]).prefix == "+encoder."


def test_ambiguity_keeps_the_exact_pairs():
    after = ["fc.weight", *prefixed("a.", NET[:3]), *prefixed("b.", NET[:3])]
    assert paired(NET, after) == ("", [("fc.weight", "fc.weight")])


def test_few_chance_matches_are_no_prefix():
    before = [f"blocks.{i}.weight" for i in range(10)] + ["proj"]
    assert align_names(before, ["head.proj", "x", "y", "z"]).prefix == ""


def test_prefix_is_cut_at_a_dot_only():
    assert align_names(["conv.weight"], ["myconv.weight"]).pairs == ()


def test_no_index_is_used_twice():
    found = align_names(["w", "w"], ["w", "w", "w"])
    left, right = zip(*found.pairs, strict=True)
    assert len(set(left)) == len(left)
    assert len(set(right)) == len(right)


def test_nothing_with_nothing():
    assert align_names([], []).pairs == ()
    assert align_names([], NET).pairs == ()
