"""How far a study is follows from its folders, and how long it will take from finished runs."""

import pytest
from msgspec.structs import replace

from rankwise.lab import Config
from rankwise.lab.defaults import resolve
from rankwise.lab.records import EpochSeconds, Session
from rankwise.lab.run_folder import RunFolder
from rankwise.study.grid import read_study
from rankwise.study.progress import StudyState, read_point_progress, read_progress
from tests.lab.runs import LAYERS, epoch
from tests.study.small_study import filled, marked, study_in

OPTIONS = {"network": "resnet8", "epochs": 2}
PLAIN = """
trials = 2
[options]
network = "resnet8"
epochs = 2
[[method]]
optimizer = "sgd"
[[method]]
optimizer = "adam"
"""
TUNED = """
trials = 2
[options]
network = "resnet8"
epochs = 2
train_size = 500
[[method]]
optimizer = "sgd"
tune = { lr = [0.3, 0.1, 0.2] }
"""


@pytest.fixture
def study(tmp_path):
    def read(text):
        path = tmp_path / "grid.toml"
        path.write_text(text, encoding="utf-8")
        return read_study(path).with_folders(out=str(tmp_path / "runs"))

    return read


def over(tmp_path, *, seconds=10.0, value=0.5, count=2, status="finished", **options):
    """A run that is over, each epoch of it as long as said."""
    records = [epoch(number, value=value) for number in range(1, count + 1)]
    spent = EpochSeconds(step=seconds - 1, eval=1.0, trained=99.0)
    records = [replace(record, seconds=spent) for record in records]
    config = Config(out=str(tmp_path / "runs"), **{**OPTIONS, **options})
    folder = RunFolder(resolve(config))
    folder.path.mkdir(parents=True)
    folder.start(Session(started="now"))
    for record in records:
        folder.add(record, LAYERS)
    if status:
        folder.end(status)
        (folder.path / "weights.safetensors").touch()
    return folder


def test_before_anything_is_run_all_is_left_and_the_time_unknown(study, tmp_path):
    found = read_progress(study(PLAIN))
    assert (found.done, found.left, found.total) == (0, 4, 4)
    assert found.seconds_left is None
    assert not (tmp_path / "runs").exists()


def test_runs_are_done_that_have_an_outcome_and_weights(study, tmp_path):
    over(tmp_path, optimizer="sgd")
    over(tmp_path, optimizer="sgd", seed=1, status="diverged", count=1)
    (over(tmp_path, optimizer="adam").path / "weights.safetensors").unlink()
    found = read_progress(study(PLAIN))
    assert (found.done, found.left, found.diverged, found.started) == (2, 2, 1, 1)


def test_runs_of_others_are_not_counted(study, tmp_path):
    over(tmp_path, optimizer="sgd", seed=7)
    assert read_progress(study(PLAIN)).done == 0


def test_the_trials_of_a_point_that_is_not_tuned_yet_count_as_left(study, tmp_path):
    found = study(TUNED)
    assert read_progress(found).left == 5
    tuning = {"optimizer": "sgd", "train_size": 500, "validate": True}
    for lr in (0.1, 0.2):
        over(tmp_path, **tuning, lr=lr)
    state = StudyState(found)
    assert (state.progress().done, state.progress().left) == (2, 3)
    assert state.waiting == list(found.points)
    assert [config.lr for config in state.left.values()] == [0.3]
    assert read_point_progress(found.points[0]).chosen == {}
    over(tmp_path, **tuning, lr=0.3)
    state = StudyState(found)
    assert state.waiting == []
    assert [(c.lr, c.seed, c.validate) for c in state.left.values()] == [
        (0.1, 0, False),
        (0.1, 1, False),
    ]


@pytest.mark.parametrize(
    ("values", "best"),
    [((0.5, 0.6, 0.7), 0.2), ((0.5, 0.9, 0.7), 0.1), ((0.5, 0.5, 0.5), 0.1)],
    ids=["last", "middle", "equal"],
)
def test_the_best_by_validation_is_chosen(study, tmp_path, values, best):
    tuning = {"optimizer": "sgd", "train_size": 500, "validate": True}
    for lr, value in zip((0.3, 0.1, 0.2), values, strict=True):
        over(tmp_path, **tuning, lr=lr, value=value)
    found = read_point_progress(study(TUNED).points[0])
    assert (found.tried, found.chosen, found.done) == (3, {"lr": best}, 0)


def test_one_that_diverged_is_not_chosen(study, tmp_path):
    tuning = {"optimizer": "sgd", "train_size": 500, "validate": True}
    over(tmp_path, **tuning, lr=0.1, value=0.9, status="diverged")
    for lr, value in ((0.3, 0.2), (0.2, 0.1)):
        over(tmp_path, **tuning, lr=lr, value=value)
    assert read_point_progress(study(TUNED).points[0]).chosen == {"lr": 0.3}


def test_time_left_is_that_of_trials_of_the_same_setting(study, tmp_path):
    over(tmp_path, optimizer="sgd", seconds=10)
    over(tmp_path, optimizer="adam", seconds=40)
    assert read_progress(study(PLAIN)).seconds_left == pytest.approx(20 + 80)


def test_time_left_is_shared_by_the_jobs_but_no_run_is(study, tmp_path):
    over(tmp_path, optimizer="sgd", seconds=10)
    found = study(PLAIN)
    assert read_progress(found, jobs=2).seconds_left == pytest.approx(60 / 2)
    assert read_progress(found, jobs=100).seconds_left == pytest.approx(20)


def test_without_trials_of_the_same_setting_the_nearest_kin_tells(study, tmp_path):
    text = PLAIN.replace("epochs = 2", "epochs = 6").replace("trials = 2", "trials = 1")
    found = study(text)
    config = next(iter(StudyState(found).left.values()))
    state = StudyState(found)
    over(tmp_path, optimizer="sgd", epochs=6, network="vgg16", seed=3, seconds=1000)
    for run, expected in (
        (over(tmp_path, optimizer="adam", epochs=3, seconds=50, count=3), 300),
        (over(tmp_path, optimizer="sgd", lr=0.7, seconds=20), 120),
        (over(tmp_path, optimizer="sgd", epochs=6, seed=8, seconds=30, count=6), 180),
    ):
        state.left[run.config.name] = run.config
        state.end(run.config.name, "finished")
        assert state.estimate(config) == pytest.approx(expected)


def test_epochs_that_a_run_has_behind_it_are_not_left(study, tmp_path):
    over(tmp_path, optimizer="sgd", seconds=10)
    over(tmp_path, optimizer="sgd", seed=1, seconds=10, status=None, count=1)
    found = read_progress(study(PLAIN.partition('[[method]]\noptimizer = "adam"')[0]))
    assert (found.left, found.started) == (1, 1)
    assert found.seconds_left == pytest.approx(10)


def test_a_run_whose_records_are_broken_is_left_to_be_mended(study, tmp_path):
    folder = over(tmp_path, optimizer="sgd", status=None)
    (folder.path / "config.json").write_text("{", encoding="utf-8")
    found = read_progress(study(PLAIN))
    assert (found.done, found.left) == (0, 4)


def test_a_study_that_is_done_takes_no_time(study, tmp_path):
    for optimizer in ("sgd", "adam"):
        for seed in (0, 1):
            over(tmp_path, optimizer=optimizer, seed=seed)
    found = read_progress(study(PLAIN))
    assert (found.done, found.left, found.seconds_left) == (4, 0, 0.0)


def test_a_damaged_run_is_left_and_stops_nothing(tmp_path):
    """Neither a trial nor what a rate is chosen by."""
    study = study_in(tmp_path)
    runs = filled(study, marked)
    for run in runs:
        (run.folder / "weights.safetensors").touch()
    candidate = next(run for run in runs if run.config.validate)
    trial = next(run for run in runs if not run.config.validate and run.config.optimizer == "sgd")
    for run in (candidate, trial):
        (run.folder / "config.json").write_text("{")
    found = StudyState(study)
    assert {candidate.config.name, trial.config.name} <= set(found.left)
    assert len(found.waiting) == 1
    assert sum(read_point_progress(point).done for point in study.points) == 3 + 3 + 2
