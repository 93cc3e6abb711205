import json
import math
import sys
from dataclasses import replace

import pytest

from rankwise._text import display_width
from rankwise.errors import MissingExtraError, ProbeMismatchError
from rankwise.probes.diff import LayerChange, align_names, compare_layers
from rankwise.probes.diff_text import align_changes
from rankwise.probes.layer_metrics import LayerMetrics, ModeMetrics
from rankwise.weights.tensor import Status


def probed(name, *, rank=4, s=0.25, condition=0.5, q=0.46, shape=(8, 9)):
    figures = {"rank_fraction": rank / 8, "stable_rank": s, "condition": condition, "quality": q}
    figures |= {"noise_fraction": 0.3, "noise_variance": 0.1}
    figures |= {"spectral_norm": 2.0, "effective_rank": 3.0}
    mode = ModeMetrics(mode="matrix", rows=8, columns=9, rank=rank, **figures)
    return LayerMetrics(
        name,
        "linear",
        shape,
        "float32",
        math.prod(shape),
        Status.PROBED,
        rank=rank,
        modes=(mode,),
        **figures,
    )


def skipped(name, status=Status.VECTOR, reason=""):
    return LayerMetrics(name, "other", (8,), "float32", 8, status, reason)


BEFORE = [probed("a"), probed("b"), skipped("a.bias"), probed("old")]
AFTER = [
    probed("a", rank=6, s=0.5, condition=0.4, q=0.9),
    probed("b"),
    skipped("a.bias"),
    probed("new"),
]


def test_change_is_after_minus_before():
    change = LayerChange("a", BEFORE[0], AFTER[0])
    assert change.rank == 2
    assert change.stable_rank == 0.25
    assert change.condition == pytest.approx(-0.1)
    assert change.quality == pytest.approx(0.44)


def test_change_is_none_without_figures():
    change = LayerChange("a", probed("a"), skipped("a"))
    assert (change.rank, change.stable_rank, change.condition, change.quality) == (None,) * 4


def test_nothing_vanishes():
    diff = compare_layers(BEFORE, AFTER)
    assert [change.name for change in diff.changes] == ["a", "b", "a.bias"]
    assert [layer.name for layer in diff.added] == ["new"]
    assert [layer.name for layer in diff.removed] == ["old"]
    assert diff.renamed_prefix == ""


def test_table_shows_what_changed_and_says_the_rest():
    table = compare_layers(BEFORE, AFTER).table()
    head, row, *words = table.splitlines()
    assert head.split() == ["layer", "rank", "s", "Δs", "Δκ", "Δq"]
    assert row.split() == ["a", "4", "→", "6", "0.500", "+0.2500", "-0.1000", "+0.4400"]
    assert "Stable rank s: up in 1 layer, down in 0, the same in 1." in words
    assert "1 tensor only in the second: new." in words
    assert "1 tensor only in the first: old." in words


def test_same_probe_twice():
    diff = compare_layers(BEFORE, BEFORE)
    assert str(diff) == "No layer changed: the 3 that both have are the same."


def test_prefix_is_seen_through_and_said():
    diff = compare_layers(BEFORE, [replace(layer, name="net." + layer.name) for layer in BEFORE])
    assert diff.renamed_prefix == "+net."
    assert not diff.added
    assert not diff.removed
    assert "Names were matched across a prefix: the second's gained 'net.'." in str(diff)


def test_no_layer_in_common():
    with pytest.raises(ProbeMismatchError, match="no layer in common"):
        compare_layers([probed("a")], [probed("b")])
    with pytest.raises(ProbeMismatchError, match=r"prefixes 'x\.', 'y\.'"):
        compare_layers([probed("a")], [probed("x.a"), probed("y.a")])


def test_shape_change_is_shown():
    diff = compare_layers([probed("fc", shape=(8, 9))], [probed("fc", shape=(100, 9))])
    assert diff.changes[0].is_reshaped
    assert "fc: 8×9 → 100×9 (another shape)." in str(diff)


def test_layer_that_broke_is_first_and_in_the_table():
    after = [AFTER[0], skipped("b", Status.NOT_FINITE, "3 of 72 values are NaN")]
    diff = compare_layers(BEFORE[:2], after)
    table, _, words = diff.table(width=200).partition("\n\n")
    assert words.splitlines()[0] == (
        "Warning: b was probed and is not finite (3 of 72 values are NaN)."
    )
    assert "4 → –" in table
    assert compare_layers(after, BEFORE[:2]).table().count("b was not finite and is probed.") == 1


def test_broken_layers_come_before_other_changes_of_status():
    before = [probed("a"), probed("b"), probed("c")]
    after = [skipped("a", Status.FILTERED), skipped("b", Status.NOT_FINITE), probed("c")]
    words = str(compare_layers(before, after)).partition("\n\n")[2].splitlines()
    assert words[:2] == [
        "Warning: b was probed and is not finite.",
        "a was probed and is filtered.",
    ]


def test_changes_are_up_or_down_and_neither_is_better():
    diff = compare_layers([probed("a")], [probed("a", condition=0.4, s=0.5, q=0.1)])
    styles = {cell.text: cell.style for cell in align_changes(diff)[1]}
    assert styles["-0.1000"] == "down"
    assert styles["+0.2500"] == "up"
    assert styles["-0.3600"] == "down"


@pytest.mark.parametrize(
    ("sort", "order"), [(None, "xyz"), ("quality", "yzx"), ("-quality", "xzy"), ("-name", "zyx")]
)
def test_sort_by_change(sort, order):
    before = [probed(name, q=0.5) for name in "xyz"]
    after = [probed("x", q=0.9), probed("y", q=0.1), probed("z", q=0.6)]
    rows = compare_layers(before, after).table(sort=sort).splitlines()[1:4]
    assert "".join(row[0] for row in rows) == order


def test_top_and_unknown_sort():
    diff = compare_layers([probed("x"), probed("y")], [probed("x", q=1.0), probed("y", q=1.0)])
    assert "… 1 more layer" in diff.table(top=1).splitlines()
    with pytest.raises(ValueError, match="condition, name, quality, rank, stable_rank"):
        diff.table(sort="noise")
    with pytest.raises(ValueError, match="top"):
        compare_layers(BEFORE, BEFORE).table(top=0)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_table_fits(width):
    name = "encoder.層." * 20
    diff = compare_layers(
        [probed(name), skipped("\x1b[31m")], [probed(name, q=1.0), probed("\x1b[31m")]
    )
    assert max(map(display_width, diff.table(width=width).splitlines())) <= width
    assert "\x1b" not in diff.table(width=width)


def test_json_holds_changes_and_both_sides():
    document = json.loads(compare_layers(BEFORE, AFTER).to_json())
    first = document["changes"][0]
    assert (first["quality"], first["quality_before"], first["quality_after"]) == (
        pytest.approx(0.44),
        0.46,
        0.9,
    )
    assert len(document["changes"]) == 3
    assert [row["name"] for row in document["added"]] == ["new"]
    assert [row["name"] for row in document["removed"]] == ["old"]


def test_frame():
    pytest.importorskip("pandas")
    frame = compare_layers(BEFORE, AFTER).to_frame()
    assert list(frame["name"]) == ["a", "b", "a.bias"]
    assert frame["rank"][0] == 2


def test_frame_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        compare_layers(BEFORE, AFTER).to_frame()


def test_html_is_escaped():
    name = "<script>x"
    document = compare_layers([probed(name)], [probed(name, s=1.0)])._repr_html_()
    assert "<script" not in document
    assert "&lt;script&gt;x" in document
    assert "<th>Δq</th>" in document
    assert "Stable rank s: up in 1 layer" in document
    assert "<table" not in compare_layers(BEFORE, BEFORE)._repr_html_()


NET = ["conv1.weight", "layer1.0.conv.weight", "layer1.1.conv.weight", "fc.weight"]


def prefixed(prefix, names=NET):
    return [prefix + name for name in names]


def paired(before, after):
    alignment = align_names(before, after)
    return alignment.prefix, [(before[i], after[j]) for i, j in alignment.pairs]


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
    alignment = align_names(NET, [*prefixed("student."), *prefixed("teacher.")])
    assert alignment.pairs == ()
    assert alignment.candidates == ("+student.", "+teacher.")


def test_a_near_tie_is_not_guessed_either():
    alignment = align_names(NET, [*prefixed("encoder."), *prefixed("decoder.", NET[1:])])
    assert alignment.pairs == ()
    assert alignment.candidates == ("+decoder.", "+encoder.")


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
    alignment = align_names(["w", "w"], ["w", "w", "w"])
    left, right = zip(*alignment.pairs, strict=True)
    assert len(set(left)) == len(left)
    assert len(set(right)) == len(right)


def test_nothing_with_nothing():
    assert align_names([], []).pairs == ()
    assert align_names([], NET).pairs == ()


def test_experts_that_changed_are_one_row():
    names = [f"layers.0.experts.{i}.w1.weight" for i in range(8)]
    before = [probed("a"), *(probed(name, s=0.1) for name in names)]
    after = [probed("a", s=0.3), *(probed(name, s=0.1 + i / 100) for i, name in enumerate(names))]
    rows = compare_layers(before, after).table(width=None).partition("\n\n")[0].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["a", "layers.0.experts.*.w1.weight"]
    assert rows[1].split()[1] == "×7"  # the first is the same
    assert "+0.0400" in rows[1]


def test_a_single_expert_that_changed_keeps_its_name():
    names = [f"layers.0.experts.{i}.w1.weight" for i in range(8)]
    before = [probed(name) for name in names]
    after = [*before[:3], probed(names[3], s=0.3), *before[4:]]
    assert names[3] in compare_layers(before, after).table(width=None).splitlines()[1]


def test_a_diff_of_very_many_layers_is_cut_in_a_terminal_only():
    before = [probed(f"w{i}") for i in range(1500)]
    diff = compare_layers(before, [replace(layer, stable_rank=0.5) for layer in before])
    assert "… 500 more layers (top shows more)" in diff.table()
    assert len(align_changes(diff, width=None)) == 1501
    assert diff._repr_html_().count("<tr") < 1100
