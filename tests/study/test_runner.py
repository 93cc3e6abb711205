"""A study is run to its end once, tuning first; whatever becomes of a run, the others go on."""

import os
import signal
import threading

import pytest
from msgspec.structs import replace

from tests.lab.runs import LAYERS, epoch

pytest.importorskip("lightning_fabric")

from filelock import FileLock

from rankwise.lab import StoppedError, load_runs, train
from rankwise.lab.defaults import resolve
from rankwise.lab.records import Session
from rankwise.lab.run_folder import RunFolder, RunLockedError
from rankwise.study.grid import read_study
from rankwise.study.runner import RunEnded, RunFailed, RunStarted, run_study

TUNED = """
trials = 2
[options]
network = "resnet8"
width = 0.25
epochs = 1
train_size = 300
accelerator = "cpu"
[[method]]
optimizer = "adam"
[[method]]
optimizer = "sgd"
tune = { lr = [0.3, 0.0001] }
"""


def write(config):
    """A run that is over, the better the larger its rate, and as if it had taken a while."""
    folder = RunFolder(config)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.start(Session(started="now"))
    record = epoch(1, value=config.lr)
    step = 9.0 if config.optimizer == "adam" else 1.0
    folder.add(replace(record, seconds=replace(record.seconds, step=step)), LAYERS)
    folder.end("finished")
    (folder.path / "weights.safetensors").touch()


class FakeRunner:
    """A runner in this process that only writes what training would."""

    def __init__(self, failing=lambda config: ""):
        self.rounds, self.failing, self.closed = [], failing, 0

    def train(self, configs):
        configs = list(configs)
        self.rounds.append(configs)
        try:
            for config in configs:
                yield RunStarted(config.name, "here")
                error = self.failing(config)
                if error:
                    locked = isinstance(error, RunLockedError)
                    yield RunFailed(config.name, str(error), 1, locked)
                else:
                    write(config)
                    yield RunEnded(config.name, "finished", 1.0)
        finally:
            self.closed += 1


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(TUNED, encoding="utf-8")
    return read_study(path).with_folders(out=str(tmp_path / "runs"))


def test_tuning_comes_first_and_trials_follow_from_it(study, tmp_path):
    runner, seen = FakeRunner(), []
    outcome = run_study(study, runner, on_event=lambda *news: seen.append(news))
    assert (outcome.progress.done, outcome.progress.left) == (6, 0)
    assert (outcome.failed, outcome.locked) == ((), ())
    first, second = runner.rounds
    assert [(c.optimizer, c.validate) for c in first] == [("sgd", True)] * 2 + [("adam", False)] * 2
    assert [(c.optimizer, c.lr, c.validate, c.seed) for c in second] == [
        ("sgd", 0.3, False, 0),
        ("sgd", 0.3, False, 1),
    ]
    assert [type(event) for event, _, _ in seen] == [RunStarted, RunEnded] * 6
    assert [progress.done for _, progress, _ in seen] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert all((run is None) == isinstance(event, RunStarted) for event, _, run in seen)

    again = FakeRunner()
    assert run_study(study, again).progress.done == 6
    assert again.rounds == []
    assert len(load_runs(tmp_path / "runs")) == 6


def test_a_run_that_fails_keeps_only_those_waiting_that_need_it(study):
    runner = FakeRunner(lambda config: "It is too hot." if config.lr == 0.3 else "")
    outcome = run_study(study, runner)
    assert (outcome.progress.done, outcome.progress.left) == (3, 3)
    assert [event.error for event in outcome.failed] == ["It is too hot."]
    assert len(runner.rounds) == 1


def test_a_run_that_another_process_is_at_is_no_failure(study, tmp_path):
    def failing(config):
        try:
            train(config)
        except RunLockedError as error:
            return error
        return ""

    held = resolve(study.points[0].config)
    folder = RunFolder(held).path
    folder.mkdir(parents=True)
    with FileLock(folder / ".lock"):
        outcome = run_study(
            study, FakeRunner(lambda config: failing(config) if config == held else "")
        )
    assert outcome.failed == ()
    assert outcome.locked == (held.name,)
    assert outcome.progress.left == 1
    assert run_study(study, FakeRunner()).progress.left == 0


def test_long_runs_are_first_once_it_is_known_which(study, tmp_path):
    run_study(study, FakeRunner())
    grown = study.path.with_name("more.toml")
    grown.write_text(TUNED.replace("trials = 2", "trials = 3"), encoding="utf-8")
    runner = FakeRunner()
    run_study(read_study(grown).with_folders(out=str(tmp_path / "runs")), runner)
    assert [config.optimizer for config in runner.rounds[0]] == ["adam", "sgd"]


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_closes_the_runners_work_and_is_told(study, number):
    runner = FakeRunner()
    before = signal.getsignal(number)
    with pytest.raises(StoppedError, match="Repeat the command to continue") as caught:
        run_study(study, runner, on_event=lambda *_: os.kill(os.getpid(), number))
    assert caught.value.signal == number
    assert runner.closed == 1
    assert signal.getsignal(number) is before


def test_a_study_can_be_run_from_another_thread(study):
    found = []
    thread = threading.Thread(target=lambda: found.append(run_study(study, FakeRunner())))
    thread.start()
    thread.join()
    assert found[0].progress.left == 0
