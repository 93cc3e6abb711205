"""The section of docs/results.md and docs/results-tables.md on the step up in scale."""

from tools.results import tables as page

from rankwise.lab import load_runs
from rankwise.study import collect_results, read_study
from tests import ROOT
from tests.study.small_study import study_in, written

SCORES = {
    "SGD, step": 0.70,
    "SGD, cosine": 0.72,
    "SGD, annealed stable rank": 0.75,
    "SGD, annealed stable rank, mean": 0.75,
    "AdamW, cosine": 0.74,
}


def test_the_stated_comparisons_are_paired_by_seed(tmp_path):
    text = (ROOT / "studies/cpu/scale_up.toml").read_text(encoding="utf-8")
    study = study_in(tmp_path, text.replace("epochs = 20", "epochs = 2"))
    for point in study.points:
        score = SCORES.get(point.labels["method"])
        for config in point.trials() if score else ():
            noise = 0.002 * (config.seed % 2) * ("annealed" in point.labels["method"])
            written(config, score + 0.01 * config.seed + noise)
    section = page.scale_up(collect_results(load_runs(tmp_path / "runs"), study))
    lines = section.splitlines()
    assert any(
        line.startswith("| SGD, annealed stable rank | SGD, cosine | +3.1 [") for line in lines
    )
    assert "| RMSGD | SGD, step | – | 1 |" in section


def test_the_study_has_every_method_that_is_compared():
    methods = {p.labels["method"] for p in read_study(ROOT / "studies/cpu/scale_up.toml").points}
    assert {name for pair in page.SCALE_PAIRS for name in pair} <= methods
