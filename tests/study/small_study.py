"""A small study and its runs for tests, written without training."""

from rankwise.lab.defaults import resolve
from rankwise.lab.records import Hardware, Session, load_run, load_runs
from rankwise.lab.run_folder import RunFolder
from rankwise.study.grid import read_study
from tests.lab.runs import LAYERS, epoch

TOML = """
title = "Two methods"
about = "On two tasks."
trials = 3
[options]
epochs = 2
train_size = 100
data = ["cifar10", "cifar100"]
[[task]]
network = "resnet8"
[[method]]
label = "RMSGD"
optimizer = "rmsgd"
tune = { lr = [0.01, 0.03] }
[[method]]
label = "SGD, cosine"
optimizer = "sgd"
schedule = "cosine"
"""
SESSION = Session(
    started="2026-01-01T00:00:00+00:00",
    commit="0123abcd",
    versions={"torch": "2.13.0", "python": "3.11.7"},
    hardware=Hardware(cpu="A CPU", cores=2, threads=2),
)


def study_in(folder, text=TOML):
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return read_study(path).with_folders(out=str(folder / "runs"))


def written(config, value, *, status="finished", score="accuracy", session=SESSION):
    """A run's folder, with this score after its last epoch."""
    folder = RunFolder(resolve(config))
    folder.path.mkdir(parents=True)
    folder.start(session)
    for number, lag in ((1, 0.1), (2, 0.0)):
        folder.add(epoch(number, score=score, value=value - lag), LAYERS)
    if status:
        folder.end(status)
    return load_run(folder.path)


def filled(study, value=lambda labels, seed: 0.6 + 0.01 * seed, *, best=0.03):
    """All runs of a study; the candidate with the `best` rate wins."""
    for point in study.points:
        for config in point.candidates:
            if not RunFolder(resolve(config)).path.exists():  # grid points may share them
                written(config, 0.7 if config.lr == best else 0.5)
        chosen = next((c for c in point.candidates if c.lr == best), None)
        for config in point.trials(chosen):
            written(config, value(point.labels, config.seed))
    return load_runs(study.points[0].config.out)


def marked(labels, seed):
    """Scores with a clear best and a close second on CIFAR-10, and no clear best on CIFAR-100."""
    if labels["data"] == "cifar10":
        return (0.70 if labels["method"] == "RMSGD" else 0.60) + (0.010, 0.012, 0.015)[seed]
    gain = (0.002, -0.001, 0.001)[seed] if labels["method"] == "RMSGD" else 0.0
    return 0.30 + (0.01, 0.02, 0.03)[seed] + gain
