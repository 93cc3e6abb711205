from dataclasses import fields

import pytest

from rankwise import Verdict
from rankwise._text import display_width
from rankwise.probes.explain import EXPLANATIONS, explain
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.network_figures import NetworkFigures
from rankwise.weights.tensor import Status

METRICS = [
    "stable_rank",
    "condition",
    "quality",
    "network_quality",
    "rank",
    "rank_fraction",
    "noise_fraction",
    "noise_variance",
    "spectral_norm",
    "frobenius_norm",
    "effective_rank",
    "prominence",
    "verdict",
    "chance",
    "overlap",
    "differing",
    "signal_energy",
    "stable_rank_by_width",
    "total_rank",
    "coverage",
    "status",
]


def test_every_metric_is_explained():
    assert sorted(EXPLANATIONS) == sorted(METRICS)
    metrics = {field.name for field in fields(LayerMetrics) if "float" in str(field.type)}
    assert metrics <= set(EXPLANATIONS)
    figures = {field.name for field in fields(NetworkFigures) if "float" in str(field.type)}
    assert figures <= set(EXPLANATIONS)


@pytest.mark.parametrize("metric", METRICS)
def test_says_formula_meaning_range_and_how_to_read_it(metric):
    text = explain(metric)
    assert text.startswith(metric)
    for part in ("Formula:", "Meaning:", "Range:", "Reading:"):
        assert part in text
    assert all(display_width(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(
    ("symbol", "metric"),
    [
        ("s", "stable_rank"),
        ("κ", "condition"),
        ("kappa", "condition"),
        ("Kappa", "condition"),
        ("q", "quality"),
        ("Q", "network_quality"),
        ("S", "stable_rank_by_width"),
        ("differs from random", "verdict"),
        ("stable-rank", "stable_rank"),
        ("Stable Rank", "stable_rank"),
        (" rank ", "rank"),
    ],
)
def test_symbols_and_spellings(symbol, metric):
    assert explain(symbol) == explain(metric)


def test_unknown_metric_lists_choices_and_suggests():
    with pytest.raises(ValueError, match=r"Did you mean stable_rank or .*\? Choose .*coverage"):
        explain("stablerank")
    with pytest.raises(ValueError, match=r"no metric 'zzz'\. Choose one of"):
        explain("zzz")


def test_overview_names_all():
    overview = explain()
    assert [name for name in METRICS if f"{name} " not in overview] == []


def test_rank_one_caveat_is_told():
    for metric in ("condition", "quality", "network_quality"):
        assert any("rank-1" in caveat for caveat in EXPLANATIONS[metric].caveats)


def test_every_verdict_is_explained():
    assert [v.value for v in Verdict if v.value not in EXPLANATIONS["verdict"].range] == []


@pytest.mark.parametrize("symbol", ["S", "Q"])
def test_no_figure_of_a_network_promises_to_choose_a_model(symbol):
    text = " ".join(explain(symbol).split())
    assert "choose a model by" in text
    assert "Higher" not in text


def test_every_status_is_explained():
    entry = EXPLANATIONS["status"]
    assert [s.value for s in Status if s.value not in entry.meaning + entry.range] == []


def test_explanations_cannot_be_changed():
    with pytest.raises(TypeError):
        EXPLANATIONS["rank"] = None
