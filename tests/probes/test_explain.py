from dataclasses import fields

import pytest

from rankwise._text import display_width
from rankwise.probes.explain import EXPLANATIONS, explain
from rankwise.probes.layer_metrics import LayerMetrics
from rankwise.probes.tensor import Status

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
    "coverage",
    "status",
]


def test_every_metric_is_explained():
    assert sorted(EXPLANATIONS) == sorted(METRICS)
    figures = {field.name for field in fields(LayerMetrics) if "float" in str(field.type)}
    assert figures <= set(EXPLANATIONS)


@pytest.mark.parametrize("metric", METRICS)
def test_says_formula_meaning_range_and_what_is_good(metric):
    text = explain(metric)
    assert text.startswith(metric)
    for part in ("Formula:", "Meaning:", "Range:", "Better:"):
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
        ("stable-rank", "stable_rank"),
        ("Stable Rank", "stable_rank"),
        (" rank ", "rank"),
    ],
)
def test_symbols_and_spellings(symbol, metric):
    assert explain(symbol) == explain(metric)


def test_unknown_metric_lists_choices_and_suggests():
    with pytest.raises(ValueError, match=r"Did you mean stable_rank\?.*Choose one of: .*coverage"):
        explain("stablerank")
    with pytest.raises(ValueError, match=r"no metric 'zzz'\. Choose one of"):
        explain("zzz")


def test_overview_names_all():
    overview = explain()
    assert [name for name in METRICS if f"{name} " not in overview] == []


def test_rank_one_caveat_is_told():
    for metric in ("condition", "quality", "network_quality"):
        assert any("rank-1" in caveat for caveat in EXPLANATIONS[metric].caveats)


def test_every_status_is_explained():
    entry = EXPLANATIONS["status"]
    assert [s.value for s in Status if s.value not in entry.meaning + entry.range] == []


def test_explanations_cannot_be_changed():
    with pytest.raises(TypeError):
        EXPLANATIONS["rank"] = None
