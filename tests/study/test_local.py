"""A runner of processes trains all runs, and the loss of a process changes no bit of them."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import closing

import pytest

pytest.importorskip("lightning_fabric")
pytest.importorskip("sklearn")

from rankwise.lab import Config, ConfigError, StoppedError, load_run, load_runs
from rankwise.lab.defaults import resolve
from rankwise.lab.run_folder import RunFolder, load_state
from rankwise.study import local
from rankwise.study.grid import read_study
from rankwise.study.local import LocalRunner
from rankwise.study.runner import RunEnded, RunFailed, RunStarted, run_study
from tests.lab.processes import wait_for
from tests.lab.small import TINY, bits, trained

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX signals")

LONG = {"optimizer": "sgd", "epochs": 400, "batch_size": 16}


def tiny(out, **options):
    return resolve(Config(**{**TINY, "epochs": 1, "optimizer": "sgd", "out": str(out), **options}))


def folder(config):
    return RunFolder(config).path


def child():
    """The one process that this one has started, and not a helper of multiprocessing's."""
    (found,) = multiprocessing.active_children()
    return found


def test_all_runs_are_trained_and_each_is_told_of(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("rankwise.study.local.count_cores", lambda: 2)
    runs = [tiny(tmp_path, seed=seed) for seed in range(4)]
    events, workers = [], set()
    for event in LocalRunner(jobs=2).train(runs):
        events.append(event)
        workers.update(multiprocessing.active_children())
    names = {config.name for config in runs}
    for kind in (RunStarted, RunEnded):
        assert {event.name for event in events if isinstance(event, kind)} == names
    assert len(events) == 8
    assert {event.worker for event in events if isinstance(event, RunStarted)} == {
        "process 1",
        "process 2",
    }
    ends = [event for event in events if isinstance(event, RunEnded)]
    assert all(event.status == "finished" and event.seconds > 0 for event in ends)
    assert {run.config.name for run in load_runs(tmp_path)} == names
    assert {run.sessions()[0].hardware.threads for run in load_runs(tmp_path)} == {1}
    assert "OMP_NUM_THREADS" not in os.environ
    assert multiprocessing.active_children() == []
    # They end by themselves: by a signal it would be -15, and their libraries would leak.
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_killed_worker_is_replaced_and_its_run_ends_with_the_same_bits(tmp_path):
    killed, whole = (tiny(tmp_path / out, epochs=12) for out in ("killed", "whole"))
    with closing(LocalRunner(jobs=1).train([killed, whole])) as runner:
        assert next(runner) == RunStarted(killed.name, "process 1", 1)
        wait_for(lambda: any(folder(killed).glob("state-*.json")))
        os.kill(child().pid, signal.SIGKILL)
        events = list(runner)
    assert events[0] == RunStarted(killed.name, "process 1", 2)
    assert [event.status for event in events if isinstance(event, RunEnded)] == ["finished"] * 2
    first, second = load_run(folder(killed)).sessions()
    assert (first.epoch, second.epoch > 0) == (0, True)
    assert bits(load_run(folder(killed))) == bits(load_run(folder(whole)))


def test_a_run_whose_workers_are_always_lost_is_given_up_and_the_others_go_on(tmp_path):
    doomed, other = tiny(tmp_path, **LONG), tiny(tmp_path, seed=1)
    found = []
    with closing(LocalRunner(jobs=1, retries=1).train([doomed, other])) as runner:
        for event in runner:
            found.append(event)
            if isinstance(event, RunStarted) and event.name == doomed.name:
                os.kill(child().pid, signal.SIGKILL)
    assert [type(event) for event in found] == [
        RunStarted,
        RunStarted,
        RunFailed,
        RunStarted,
        RunEnded,
    ]
    assert found[1].attempt == found[2].attempts == 2
    assert found[2].name == doomed.name
    assert "2 times, the last time by a signal (Killed)" in found[2].error
    assert found[4].name == other.name


def test_runs_that_raise_fail_at_once_and_warnings_are_repeated(tmp_path):
    lost = tiny(tmp_path, data="cifar10", data_root=str(tmp_path / "none"))
    wrong = Config(**{**TINY, "optimizer": "sgd", "lr": -1.0, "out": str(tmp_path)})
    good = tiny(tmp_path, seed=1, lr=1e20)
    damaged = trained(tmp_path, optimizer="sgd", epochs=2)
    (damaged.folder / "outcome.json").unlink()
    max(damaged.folder.glob("state-*.pt")).write_bytes(b"nothing")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        events = list(LocalRunner(jobs=1).train([lost, wrong, good, damaged.config]))
    ends = [event for event in events if not isinstance(event, RunStarted)]
    assert [(event.name, type(event)) for event in ends] == [
        (lost.name, RunFailed),
        (wrong.name, RunFailed),
        (good.name, RunEnded),
        (damaged.config.name, RunEnded),
    ]
    assert "cifar10" in ends[0].error
    assert "Expected lr to be above 0" in ends[1].error
    assert [event.attempts for event in ends[:2]] == [1, 1]
    assert [event.status for event in ends[2:]] == ["diverged", "finished"]
    texts = [str(warning.message) for warning in caught]
    name = damaged.config.name
    assert any(text.startswith(f"{name}: ") and "is broken" in text for text in texts)


def test_a_bug_in_a_run_fails_it_and_says_where(monkeypatch, tmp_path):
    def broken(config):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(local, "train", broken)
    answer = local._train_run(tiny(tmp_path), None)
    assert answer.error.startswith("ZeroDivisionError: by nothing (test_local.py, line ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_study_that_is_stopped_saves_its_runs_and_goes_on(tmp_path, number):
    path = tmp_path / "grid.toml"
    options = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {**TINY, **LONG}.items())
    path.write_text(f"[options]\n{options}", encoding="utf-8")
    study = read_study(path).with_folders(out=str(tmp_path / "runs"))
    run = folder(resolve(study.points[0].config))

    def stop():
        wait_for((run / "sessions.jsonl").exists)
        signal.pthread_kill(threading.main_thread().ident, number)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(StoppedError) as caught:
        run_study(study, LocalRunner(jobs=1))
    thread.join()
    assert caught.value.signal == number
    assert multiprocessing.active_children() == []
    state = load_state(run)
    assert state["epoch"] < 400
    assert (state["epoch"], state["batch"]) > (0, 0)
    if number == signal.SIGINT:
        return  # what follows does not depend on the signal
    # It continues where it was stopped.
    with closing(LocalRunner(jobs=1).train([resolve(study.points[0].config)])) as runner:
        next(runner)
        wait_for(lambda: len(load_run(run).sessions()) == 2)
    assert load_run(run).sessions()[1].epoch == state["epoch"]
    assert multiprocessing.active_children() == []


def test_a_supervisor_that_is_killed_leaves_no_worker_behind(tmp_path):
    config = tiny(tmp_path, **LONG)
    code = (
        "import multiprocessing, sys\n"
        "from rankwise.lab import Config\n"
        "from rankwise.study.local import LocalRunner\n"
        "for event in LocalRunner(jobs=1).train([Config(**eval(sys.argv[1]))]):\n"
        "    print(multiprocessing.active_children()[0].pid, flush=True)\n"
    )
    options = {**TINY, **LONG, "out": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, repr(options)], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        worker = int(supervisor.stdout.readline())
        wait_for((folder(config) / "sessions.jsonl").exists)
        supervisor.kill()
    wait_for(lambda: not _is_alive(worker))
    state = load_state(folder(config))
    assert (state["epoch"], state["batch"]) > (0, 0)


def _is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("options", [{"jobs": 0}, {"jobs": -1}, {"retries": -1}], ids=str)
def test_a_runner_of_nobody_is_refused(options):
    with pytest.raises(ConfigError, match="or more, got"):
        LocalRunner(**options)


def test_by_default_there_is_a_job_for_each_core(monkeypatch):
    monkeypatch.setattr("rankwise.study.local.count_cores", lambda: 5)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert LocalRunner().jobs == 5


def test_with_cuda_there_is_a_job_for_each_device_which_sees_no_other(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    runner = LocalRunner()
    assert runner.jobs == 2
    seen = [runner._environment(number)["CUDA_VISIBLE_DEVICES"] for number in range(3)]
    assert seen == ["3", "5", "3"]
