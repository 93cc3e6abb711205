import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise._text import display_width
from rankwise.probes.text import align_layers, format_layers, format_skipped, list_notes
from rankwise.weights.tensor import Status
from tests.probes.rows import LAYERS, empty, half_rank_one, probed, rank_one, skipped

UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(LAYERS, st.integers(40, 200))
def test_table_never_exceeds_width(layers, width):
    lines = format_layers(layers, width=width).split("\n")
    assert max(map(display_width, lines)) <= width


@given(LAYERS, st.integers(40, 120))
def test_no_control_character_passes(layers, width):
    text = "\n".join(
        [
            format_layers(layers, width=width),
            format_layers(layers, width=None),
            format_skipped(layers, width=width),
            format_skipped(layers, width=None),
        ]
    )
    assert not {c for c in text if c != "\n" and unicodedata.category(c) in UNSAFE}


@given(LAYERS)
def test_skipped_counts_add_up(layers):
    text = format_skipped(layers, width=None)
    if not layers:
        assert text == ""
        return
    head, *groups = text.replace("The only", "1").split("\n")
    first = int(re.search(r"\d+", head)[0])
    counts = [int(re.match(r"  (\d+) ", group)[1]) for group in groups]
    assert first + sum(counts) == len(layers)


def test_table_has_a_row_a_probed_layer():
    table = format_layers([probed("conv1"), skipped("bias"), probed("fc")])
    head, *rows = table.splitlines()
    assert head.split() == ["layer", "shape", "rank", "s", "κ", "q", "noise"]
    assert [row.split()[0] for row in rows] == ["conv1", "fc"]
    assert rows[0].split()[:4] == ["conv1", "16×32", "4/16", "0.250"]
    assert "30%" in rows[0]
    assert "█" in rows[0]


def test_rank_is_the_mean_over_modes():
    layer, other = probed("conv"), probed("conv", rank=7.0, rows=64)
    assert "5.5/40" in format_layers([replace(layer, rank=5.5, modes=layer.modes + other.modes)])


def test_narrow_table_keeps_name_and_quality():
    table = format_layers([probed("encoder.layer.11.attention.self.query.weight")], width=40)
    head, row = table.splitlines()
    assert "q" in head.split()
    assert "0.460" in row


def test_no_bars_without_a_width():
    table = format_layers([probed("x" * 200)], width=None)
    assert "x" * 200 in table
    assert "█" not in table


def test_nothing_probed_gives_no_table():
    assert format_layers([]) == ""
    assert format_layers([skipped("bias")]) == ""


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (None, "bca"),
        ("name", "abc"),
        ("-name", "cba"),
        ("quality", "acb"),
        ("-quality", "bca"),
        ("noise", "bca"),
        ("size", "abc"),
    ],
)
def test_sort(sort, order):
    layers = [
        probed("b", q=1.0, noise=0.1, shape=(4, 5)),
        probed("c", q=0.5, noise=0.2, shape=(5, 6)),
        probed("a", q=0.2, noise=0.9, shape=(2, 3)),
    ]
    rows = format_layers(layers, sort=sort).splitlines()[1:]
    assert "".join(row[0] for row in rows) == order


@pytest.mark.parametrize("sort", ["nonsense", "-nonsense", "--quality", ""])
def test_unknown_sort_names_the_choices(sort):
    with pytest.raises(
        ValueError, match="condition, name, noise, prominence, quality, rank, size, stable_rank"
    ):
        format_layers([], sort=sort)


def test_top_says_what_it_hides():
    table = format_layers([probed("a"), probed("b"), probed("c")], top=1)
    assert table.splitlines()[-1] == "… 2 more layers"
    assert "more" not in format_layers([probed("a")], top=5)
    with pytest.raises(ValueError, match="Expected top of 1 or more"):
        format_layers([], top=0)


def test_rank_one_is_marked():
    table = format_layers([rank_one("a"), probed("b")])
    assert "1.571*" in table
    assert table.count("*") == 1
    assert format_layers([half_rank_one("a")]).count("*") == 1


def test_bars_compare_the_stable_ranks_and_nothing_else():
    table = format_layers([rank_one("a"), probed("b", s=0.02, q=0.04), probed("c", s=0.01, q=0.02)])
    assert [re.sub(r"[^█▌ ]", "", row).split() for row in table.splitlines()[1:]] == [
        ["████"],
        ["████"],
        ["██"],
    ]


def test_shape_goes_where_that_keeps_names_apart():
    names = [f"{'p' * 10}{i}{'x' * 20}{o}{'y' * 15}" for i in "01" for o in "kv"]
    head, *rows = format_layers([probed(name) for name in names], width=64).splitlines()
    assert "shape" not in head
    assert len({row.split()[0] for row in rows}) == 4
    assert "shape" in format_layers([probed(names[0])], width=64)


def test_noise_is_not_rounded_to_all_or_nothing():
    table = format_layers([probed("a", noise=0.9999), probed("b", noise=1e-4), empty("c")])
    noise = [line.split()[-1] for line in table.splitlines()[1:]]
    assert noise == [">99%", "<1%", "100%"]


def test_skipped_groups_with_reasons():
    layers = [
        probed("a"),
        skipped("a.bias"),
        skipped("b.bias"),
        skipped("lm_head", Status.TIED, "tied to embed"),
        skipped("x", Status.TOO_SMALL, "1 by 1"),
        skipped("y", Status.TOO_SMALL, "1 by 1"),
    ]
    assert format_skipped(layers).splitlines() == [
        "1 of 6 tensors probed; not probed:",
        "  2 vectors (biases, norm scales): a.bias, b.bias",
        "  1 tied: lm_head (tied to embed)",
        "  2 too small: x, y (1 by 1)",
    ]


def test_skipped_lists_a_few_names_only():
    text = format_skipped([skipped(f"b{i}") for i in range(50)])
    assert "50 vectors (biases, norm scales): b0, b1, b2, b3 and 46 more" in text


def test_nothing_skipped_is_said():
    assert format_skipped([probed("a"), probed("b")]) == "All 2 tensors were probed."
    assert format_skipped([probed("a")]) == "The only tensor was probed."


def experts(count, block=0, **metrics):
    name = "layers.{}.experts.{}.w1.weight"
    return [probed(name.format(block, i), rank=float(i), **metrics) for i in range(count)]


def test_experts_are_one_row_with_their_minima_and_maxima():
    table = format_layers([probed("a"), *experts(9), probed("b")], width=100)
    rows = table.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [
        "a",
        "layers.0.experts.*.w1.weight",
        "min",
        "max",
        "b",
    ]
    assert rows[1].split()[1:4] == ["×9", "16×32", "4/16"]
    assert (rows[2].split()[1], rows[3].split()[1]) == ("0/16", "8/16")
    assert len({row.index("/") for row in rows[1:4]}) == 1


def test_experts_that_are_all_the_same_are_one_line():
    layers = [replace(probed(f"experts.{i}.w1.weight"), frobenius_norm=5.0 + i) for i in range(5)]
    assert len(format_layers(layers).splitlines()) == 2


def test_every_expert_can_be_listed():
    lines = align_layers(experts(9), every=True)
    assert len(lines) == 10


def test_groups_are_sorted_by_their_medians():
    layers = [*experts(9, 0, s=0.3), *experts(9, 1, s=0.1), probed("a", s=0.2)]
    rows = format_layers(layers, sort="stable_rank", width=None).splitlines()[1:]
    assert [row.split()[0] for row in rows if row[0] != " "] == [
        "layers.1.experts.*.w1.weight",
        "a",
        "layers.0.experts.*.w1.weight",
    ]
    top = format_layers(layers, sort="stable_rank", top=1).splitlines()
    assert (len(top), top[-1]) == (5, "… 2 more layers")


def test_a_terminal_gets_a_thousand_rows_and_a_pipe_all():
    layers = [probed(f"layer{i}") for i in range(1500)]
    lines = format_layers(layers).splitlines()
    assert len(lines) == 1002
    assert lines[-1] == "… 500 more layers (--all or top shows more)"
    assert len(format_layers(layers, top=1200).splitlines()) == 1202
    assert len(format_layers(layers, width=None).splitlines()) == 1501
    assert len(align_layers(layers, every=True)) == 1501


def test_absurd_names_and_reasons_stay_short_in_lists():
    name, reason = "n" * 100_000, "r" * 100_000
    text = format_skipped([skipped(name, Status.UNREADABLE, reason) for _ in range(9)], width=None)
    assert len(text) < 3000
    assert "and 5 more" in text
    wrapped = format_skipped([skipped(name, Status.UNREADABLE, reason)], width=80)
    assert max(map(len, wrapped.splitlines())) <= 80
    assert len("".join(list_notes([reason], "network"))) < 1100


def test_what_is_no_weight_is_said():
    tables = [skipped(f"t{i}", Status.NOT_A_WEIGHT, "a position bias") for i in range(2)]
    assert "  2 not weights: t0, t1 (a position bias)" in format_skipped(tables)
    assert "  1 not a weight: t0 (a position bias)" in format_skipped(tables[:1])
