import math
import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise import Verdict
from rankwise._text import display_width
from rankwise.probes.layer_metrics import LayerMetrics, ModeMetrics
from rankwise.probes.network_figures import compute_figures
from rankwise.probes.tensor import Status
from rankwise.probes.text import format_layers, format_skipped, format_summary

UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
NAMES = st.text(st.characters(), max_size=60)


def probed(name, *, rank=4.0, s=0.25, condition=0.5, q=0.46, noise=0.3, rows=16, shape=(16, 32)):
    modes = (
        ModeMetrics(
            mode="matrix",
            rows=rows,
            columns=32,
            rank=int(rank),
            rank_fraction=rank / rows,
            stable_rank=s,
            condition=condition,
            quality=q,
            noise_fraction=noise,
            noise_variance=0.01,
            spectral_norm=2.0,
            effective_rank=9.0,
        ),
    )
    return LayerMetrics(
        name=name,
        kind="linear",
        shape=shape,
        dtype="float32",
        parameters=math.prod(shape),
        status=Status.PROBED,
        rank=rank,
        rank_fraction=rank / rows,
        stable_rank=s,
        condition=condition,
        quality=q,
        noise_fraction=noise,
        noise_variance=0.01,
        spectral_norm=2.0,
        frobenius_norm=3.0,
        effective_rank=9.0,
        modes=modes,
    )


def empty(name):
    return probed(name, rank=0.0, s=0.0, condition=1.0, q=0.0, noise=1.0)


def rank_one(name):
    return probed(name, rank=1.0, s=1 / 16, condition=0.0, q=math.pi / 2)


def zero(name):
    return replace(empty(name), frobenius_norm=0.0)


def judged(name, verdict):
    return replace(probed(name), verdict=verdict)


def half_rank_one(name):
    layer = probed(name)
    return replace(layer, rank=2.5, modes=(layer.modes[0], rank_one(name).modes[0]))


def skipped(name, status=Status.VECTOR, reason=""):
    return LayerMetrics(name, "other", (8,), "float32", 8, status, reason)


def summarize(layers, width=None):
    return format_summary(layers, compute_figures(layers), width=width)


LAYERS = st.lists(
    st.one_of(
        st.builds(
            probed,
            NAMES,
            rank=st.integers(0, 16).map(float),
            s=st.floats(0, 1),
            q=st.floats(0, 1.57),
            noise=st.floats(0, 1),
            shape=st.lists(st.integers(1, 10**6), min_size=2, max_size=5).map(tuple),
        ),
        st.builds(
            skipped, NAMES, st.sampled_from([s for s in Status if s is not Status.PROBED]), NAMES
        ),
    ),
    max_size=12,
)


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
            summarize(layers, width=width),
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
    with pytest.raises(ValueError, match="top must be 1 or more"):
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


def test_summary_in_words():
    layers = [
        probed("conv1"),
        probed("layer4.1.conv2", noise=0.94),
        rank_one("head"),
        empty("fc"),
        skipped("bias"),
    ]
    assert summarize(layers) == (
        "Directions stand out from noise in 3 of 4 layers; no direction stands out in 1: fc.\n"
        "Signal energy 36 %; stable rank by width S = 0.141; total rank 9; 2,056 parameters, "
        ">99 % of them probed.\n"
        "The paper's figures: Q = 0.850; 1 layer (*) has rank 1, where q is at its maximum by "
        "definition."
    )


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        ([], "The model holds no tensors."),
        ([skipped("bias")], "No layer was probed."),
        ([empty("a"), empty("b")], "in 0 of 2 layers; no direction stands out in 2: a, b."),
        ([probed("a")], "Directions stand out from noise in 1 of 1 layer."),
        ([zero("a")], "in 0 of 1 layer; 1 is all zero: a."),
        (
            [zero("a"), zero("b"), empty("c")],
            "in 0 of 3 layers; no direction stands out in 1: c; 2 are all zero: a, b.",
        ),
        ([half_rank_one("a")], "1 layer (*) has rank 1,"),
        ([rank_one("a"), rank_one("b")], "2 layers (*) have rank 1,"),
        ([zero("a")], "Signal energy –;"),
    ],
)
def test_summary_speaks_grammatically(layers, sentence):
    assert sentence in summarize(layers)


def test_summary_begins_with_what_differs_from_random():
    layers = [
        *(judged(f"d{i}", Verdict.DIFFERS) for i in range(3)),
        judged("v", Verdict.RANDOM),
        judged("n", Verdict.NORMS_ONLY),
        judged("o", Verdict.FLAT),
        judged("t1", Verdict.TOO_SMALL),
        judged("t2", Verdict.TOO_SMALL),
        probed("lora"),
        zero("z"),
    ]
    assert summarize(layers).splitlines()[0] == (
        "3 of 6 layers differ from random weights; 1 is flatter than random: o; 1 differs only in "
        "its filters' norms: n; no direction stands out in 1: v; 2 are too small to tell; 1 was "
        "not compared: lora; 1 is all zero: z."
    )


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([Verdict.DIFFERS], "1 of 1 layer differs from random weights."),
        ([Verdict.DIFFERS] * 2, "2 of 2 layers differ from random weights."),
        ([Verdict.RANDOM] * 2, "0 of 2 layers differ from random weights; no direction stands out"),
        ([Verdict.NORMS_ONLY] * 2, "; 2 differ only in their filters' norms: 0, 1."),
        ([Verdict.FLAT] * 2, "; 2 are flatter than random: 0, 1."),
        ([Verdict.TOO_SMALL] * 2, "Too small to compare with random weights: 2 layers."),
        ([Verdict.DIFFERS, Verdict.TOO_SMALL], "; 1 is too small to tell."),
    ],
)
def test_verdicts_are_counted_grammatically(verdicts, sentence):
    layers = [judged(str(i), verdict) for i, verdict in enumerate(verdicts)]
    assert sentence in summarize(layers)


@given(LAYERS)
def test_summary_promises_nothing(layers):
    words = summarize([replace(layer, name="x", reason="") for layer in layers]).lower()
    for promise in ("pure noise", "structure", "better", "learned", "quality"):
        assert promise not in words


def test_not_finite_layers_come_first():
    broken = [skipped(f"l{i}", Status.NOT_FINITE) for i in range(6)]
    summary = summarize([probed("a"), *broken])
    assert summary.startswith("Warning: 6 layers hold NaN or Inf: l0, l1, l2, l3 and 2 more.\n")
    assert summarize([broken[0]]).startswith("Warning: 1 layer holds NaN or Inf: l0.\n")


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
