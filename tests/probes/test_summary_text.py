import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise import Verdict
from rankwise._text import display_width
from rankwise.probes.network_figures import compute_figures
from rankwise.probes.summary_text import format_summary
from rankwise.weights.tensor import Status
from tests.probes.rows import (
    LAYERS,
    empty,
    half_rank_one,
    judged,
    probed,
    rank_one,
    skipped,
    zero,
)

UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def summarize(layers, width=None):
    return format_summary(layers, compute_figures(layers), width=width)


@given(LAYERS, st.integers(40, 120))
def test_no_control_character_passes_and_lines_fit(layers, width):
    text = summarize(layers, width=width)
    assert not {c for c in text if c != "\n" and unicodedata.category(c) in UNSAFE}
    assert max(map(display_width, text.split("\n"))) <= width


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


def test_layers_that_became_unreadable_are_counted():
    lost = [skipped(name, Status.UNREADABLE, "truncated") for name in "ab"]
    assert summarize([probed("x"), *lost]).startswith(
        "Warning: 2 layers could not be read: a, b.\n"
    )
    assert summarize(lost[:1]) == "Warning: 1 layer could not be read: a.\nNo layer was probed."


def test_quantised_weights_without_metrics_are_counted():
    packed = [skipped(f"q{i}", Status.QUANTISED, "GGUF Q4_K") for i in range(3)]
    assert "Warning: 3 quantised weights were not measured: q0, q1, q2.\n" in summarize(
        [probed("embed"), *packed]
    )
    assert "Warning: 1 quantised weight was not measured: q0.\n" in summarize(packed[:1])


def test_what_was_not_measured_counts_in_the_coverage():
    big = [
        replace(skipped(f"w{i}", status), parameters=10**6)
        for i, status in enumerate((Status.QUANTISED, Status.UNREADABLE))
    ]
    assert "2,000,512 parameters, <1 % of them probed" in summarize([probed("embed"), *big])


def test_experts_unlike_their_siblings_are_named():
    layers = [probed(f"experts.{i}.w1.weight", rank=4.0) for i in range(16)]
    assert "unlike" not in summarize(layers)
    layers[3] = probed("experts.3.w1.weight", rank=12.0)
    assert "\nUnlike their siblings: experts.3.w1.weight (rank 12, median 4).\n" in summarize(
        layers
    )


def test_only_a_few_outliers_are_named():
    layers = [
        probed(f"layers.{b}.experts.{i}.w1.weight", rank=12.0 if i == 3 else 4.0)
        for b in range(100)
        for i in range(16)
    ]
    (line,) = [line for line in summarize(layers).splitlines() if "Unlike" in line]
    assert line.endswith(" and 95 more.")
    assert len(line) < 400
