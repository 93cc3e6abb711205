"""tools/results/controls.py: the stated tests of the study of controls."""

import math

import numpy as np
import pytest
from scipy import stats
from tools.results import controls as page

import rankwise
from rankwise.lab import load_runs
from rankwise.lab.defaults import resolve
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.networks.language import build_language_network
from rankwise.study import collect_results, read_study
from tests.study.small_study import study_in, written

TASKS = ("a", "b", "c", "d", "e", "f")


def scores_of(gains, tasks=TASKS, seeds=5):
    """Every variant of both optimizers; `gains` by rule as it is, in points."""
    random = np.random.default_rng(0)
    scores = {}
    for task in tasks:
        level = random.normal(50, 10, size=seeds)
        for optimizer in page.OPTIMIZERS:
            plain = page.Variant(optimizer, "", "plain")
            scores[plain, task] = dict(enumerate(level))
            for rule in page.RULES:
                for control in ("none", "mean", "shuffled"):
                    gain = gains.get((optimizer, rule), 0.0) if control == "none" else 0.0
                    noise = random.normal(0, 0.5, size=seeds)
                    scores[page.Variant(optimizer, rule, control), task] = dict(
                        enumerate(level + noise + gain)
                    )
    return scores


def one_of(comparisons, optimizer, rule, control):
    (found,) = (
        c
        for c in comparisons
        if (c.rule.optimizer, c.rule.rule, c.control) == (optimizer, rule, control)
    )
    return found


def test_the_family_has_24_tests_and_finds_the_one_rule_that_helps():
    made = page.compare(scores_of({("adamw", "llr"): 3.0}))
    assert len(made) == 24
    for one in made:
        is_helped = (one.rule.optimizer, one.rule.rule) == ("adamw", "llr")
        assert (one.adjusted < 0.05) == (one.adjusted_here < 0.05) == is_helped
        assert one.pairs == 30
        low, high = one.interval
        assert low < one.difference < high
        assert (low > 0) or not is_helped


def test_figures_are_those_of_the_textbook():
    scores = scores_of({("sgd", "annealed"): 1.0})
    one = one_of(page.compare(scores), "sgd", "annealed", "mean")
    rule, mean = (page.Variant("sgd", "annealed", control) for control in ("none", "mean"))
    differences = np.array(
        [[scores[rule, task][s] - scores[mean, task][s] for s in range(5)] for task in TASKS]
    )
    assert one.difference == pytest.approx(differences.mean())
    test = stats.ttest_1samp(differences.mean(1), 0)
    assert one.p == pytest.approx(test.pvalue)
    assert one.interval == pytest.approx(tuple(test.confidence_interval()))
    errors = differences.var(axis=1, ddof=1) / 5
    freedom = errors.sum() ** 2 / (errors**2 / 4).sum()
    t = differences.mean(1).sum() / math.sqrt(errors.sum())
    assert one.p_here == pytest.approx(2 * stats.t.sf(abs(t), freedom))
    assert one.adjusted >= one.p


def test_an_effect_in_one_task_is_one_of_these_tasks_only():
    scores = scores_of({})
    variant = page.Variant("sgd", "llr", "none"), "a"
    scores[variant] = {seed: value + 20 for seed, value in scores[variant].items()}
    one = one_of(page.compare(scores), "sgd", "llr", "mean")
    assert one.p > 0.05
    assert one.adjusted_here < 0.05


def test_pairs_are_of_one_seed_and_one_task():
    scores = scores_of({})
    rule, mean = (page.Variant("sgd", "llr", control) for control in ("none", "mean"))
    scores = {key: value for key, value in scores.items() if key[0] in (rule, mean)}
    scores[mean, "a"] = {seed: v for seed, v in scores[mean, "a"].items() if seed != 2}
    del scores[mean, "b"]
    made = page.compare(scores)
    one = one_of(made, "sgd", "llr", "mean")
    assert (one.pairs, len(one.by_task)) == (4 + 4 * 5, 5)
    # All 24 are counted, also those that have no runs yet.
    assert one.adjusted == pytest.approx(min(1.0, 24 * one.p))
    empty = one_of(made, "adamw", "llr", "mean")
    assert (empty.difference, empty.interval, empty.adjusted) == (None, None, None)
    text = page.describe(made)
    assert "| SGD | LLR | mean |" in text
    assert "| 5, 24 |" in text


@pytest.mark.parametrize("tasks", [(), ("a",), ("a", "b")])
def test_few_tasks_are_a_table_without_what_they_can_not_tell(tasks):
    made = page.compare(scores_of({}, tasks=tasks))
    assert all((one.adjusted is None) == (len(tasks) < 2) for one in made)
    assert page.describe(made).count("\n| SGD |") == 24


TOML = """
title = "Controls"
trials = 2
[options]
epochs = 2
[[task]]
label = "images"
network = "resnet8"
[[task]]
label = "text"
network = "gpt"
data = "ptb"
[[method]]
label = "SGD"
optimizer = "sgd"
schedule = "cosine"
[[method]]
label = "LLR"
optimizer = "sgd"
rule = "llr"
control = ["none", "mean"]
"""


def test_scores_of_runs_are_in_points_and_percent(tmp_path):

    study = study_in(tmp_path, TOML)
    for point in study.points:
        for config in point.trials():
            ruled, is_text = config.control == "none", config.network == "gpt"
            if is_text:
                written(config, 90.0 if ruled else 100.0, score="perplexity")
            else:
                written(config, 0.52 if ruled else 0.5)
    found = collect_results(load_runs(tmp_path / "runs"), study)
    made = page.compare(page.read_scores(found))
    for control in ("plain", "mean"):
        one = one_of(made, "sgd", "llr", control)
        assert one.by_task["images"] == pytest.approx((2.0, 2.0))
        assert one.by_task["text"] == pytest.approx([100 * math.log(100 / 90)] * 2)
    assert one_of(made, "sgd", "llr", "shuffled").by_task == {}
    text = page.controls(found)
    assert text.startswith("## Controls")
    assert "12 runs after tuning, 0 diverged; 0 of the study missing." in text


def test_the_study_has_the_rows_that_are_compared():

    points = read_study(page.STUDY).points
    for optimizer in page.OPTIMIZERS:
        own = [point.config for point in points if point.config.optimizer == optimizer]
        rows = {(config.rule, config.control) for config in own}
        controls = ("none", "mean", "shuffled")
        assert rows == {(None, None), *((r, c) for r in page.RULES for c in controls)}
    tasks = {point.labels["task"] for point in points}
    assert len(tasks) == 6


def test_the_variants_of_a_rule_share_their_tuning_in_the_study_itself():

    candidates, trials = {}, set()
    for point in read_study(page.STUDY).points:
        key = point.labels["task"], point.config.optimizer, point.config.rule
        names = [resolve(config).name for config in point.candidates]
        assert candidates.setdefault(key, names) == names
        trials |= {resolve(config).name for config in point.trials(point.candidates[0])}
    assert len(candidates) == 60
    assert len(trials) == 780


def test_every_rule_sets_half_of_the_layers_of_every_task_or_more():
    """LLR leaves weights with fewer than 50 eigenvalues alone: narrow networks have none others."""
    tasks = {p.labels["task"]: p.config for p in read_study(page.STUDY).points}
    for config in tasks.values():
        if config.network == "gpt":
            net = build_language_network("gpt", 6000, width=config.width, tied=True)
        else:
            spec = NetworkSpec(10, size=config.image_size, width=config.width)
            net = build_network(config.network, spec)
        groups = rankwise.layer_groups(net)
        layers = [
            rankwise.LayerReading(g["name"], g["kind"], tuple(w.shape))
            for g in groups
            for w in g["params"]
            if w.ndim > 1
        ]
        for rule in (rankwise.TempBalance(), rankwise.LLR(100)):
            assert len(rule.select(layers)) >= len(layers) / 2, (config.network, rule)
