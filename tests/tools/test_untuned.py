"""tools/results/untuned.py: how far untuned methods are from the best tuned one of a task."""

import math

import pytest
from tools.results import untuned as page

from rankwise.lab import load_runs
from rankwise.study import collect_results
from tests.study.small_study import study_in, written

TASKS = """
[options]
epochs = 2
[[task]]
label = "images"
network = "resnet8"
[[task]]
label = "text"
network = "gpt"
data = "ptb"
"""
CONTROLS = f"""
title = "Controls"
trials = 3
{TASKS}
[[method]]
label = "SGD"
optimizer = "sgd"
schedule = "cosine"
lr = 0.03
[[method]]
label = "LLR"
optimizer = "sgd"
rule = "llr"
control = ["none", "mean"]
lr = 0.03
"""
UNTUNED = f"""
title = "Untuned"
trials = 2
{TASKS}
[[method]]
label = "Muon"
optimizer = "muon"
[[method]]
label = "Adam"
optimizer = "adam"
"""


def found_in(folder, text, value):
    folder.mkdir()
    study = study_in(folder, text)
    for point in study.points:
        for config in point.trials():
            score = "perplexity" if config.network == "gpt" else "accuracy"
            result = value(config)
            status = "diverged" if result is None else "finished"
            written(config, result or 0.0, score=score, status=status)
    return collect_results(load_runs(folder / "runs"), study)


def tuned(config):
    """The mean control is the best on images, but no method; LLR is the best on both otherwise."""
    if config.network == "gpt":
        return 100.0 if config.control == "none" else 200.0
    return {None: 0.50, "none": 0.60, "mean": 0.70}[config.control] + 0.01 * config.seed


def test_regret_is_the_distance_from_the_best_tuned_method_seed_by_seed(tmp_path):
    def untuned(config):
        if config.network == "gpt":
            return 110.0
        return (0.58 if config.optimizer == "muon" else 0.40) + 0.01 * config.seed

    controls = found_in(tmp_path / "controls", CONTROLS, tuned)
    defaults = found_in(tmp_path / "untuned", UNTUNED, untuned)
    best = page.find_best(controls)
    assert {task: variant.label for task, (variant, _) in best.items()} == {
        "images": "SGD, LLR",
        "text": "SGD, LLR",
    }
    muon, adam = page.measure_regrets(best, defaults)
    assert (muon.method, adam.method) == ("Muon", "Adam")
    assert muon.by_task["images"] == pytest.approx((2.0, 2.0))
    assert adam.means["images"] == pytest.approx(20.0)
    assert muon.means["text"] == pytest.approx(100 * math.log(1.1))
    assert muon.mean == pytest.approx((2.0 + 100 * math.log(1.1)) / 2)
    text = page.regrets([controls, defaults])
    assert text.index("| Muon |") < text.index("| Adam |")
    assert "images: SGD, LLR; text: SGD, LLR" in text


def test_runs_that_diverged_are_counted_and_in_no_mean(tmp_path):
    def untuned(config):
        if config.network == "gpt":
            return 110.0
        return None if config.optimizer == "muon" and config.seed == 0 else 0.4

    controls = found_in(tmp_path / "controls", CONTROLS, tuned)
    defaults = found_in(tmp_path / "untuned", UNTUNED, untuned)
    by_method = {r.method: r for r in page.measure_regrets(page.find_best(controls), defaults)}
    assert (by_method["Muon"].diverged, by_method["Adam"].diverged) == (1, 0)
    assert by_method["Muon"].by_task["images"] == pytest.approx((21.0,))
    assert by_method["Adam"].by_task["images"] == pytest.approx((20.0, 21.0))


def test_both_studies_have_the_same_tasks():
    from rankwise.study import read_study

    controls, untuned = (read_study(page.STUDIES / f"{name}.toml") for name in page.NAMES)
    tasks = [{point.labels["task"] for point in study.points} for study in (controls, untuned)]
    assert tasks[0] == tasks[1]
