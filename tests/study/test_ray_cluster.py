"""Runs on a real Ray cluster: the same results as in this process, also if a worker is killed."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from rankwise import MissingExtraError
from rankwise.lab import Config, ConfigError, RunError, load_run, train
from rankwise.lab.defaults import resolve
from rankwise.lab.records import is_run
from rankwise.lab.run_folder import load_state
from rankwise.study import ray_cluster
from rankwise.study.ray_cluster import RayRunner
from rankwise.study.runner import RunEnded, RunFailed, RunStarted
from tests.lab.processes import SMALL, contents, wait_for

NEEDS_RAY = "needs Ray: pip install ray"
EPOCHS = 3

# Right where a worker is killed after an epoch's record was written and before its state was.
pytestmark = pytest.mark.filterwarnings("ignore:.*recorded but not saved, and is run again")


def config_for(out, **options):
    asked = {"optimizer": "sgd", "epochs": EPOCHS, "batch_size": 16, "accelerator": "cpu"}
    return Config(**{**SMALL, **asked, "out": str(out), **options})


def folder_of(config):
    return Path(config.out) / resolve(config).name


def process_of(began):
    return int(began.worker.split()[-1])


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    """As many as Ray gives to a task of one core."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


NODE = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster():
    """A cluster of one node on this machine; started once, since it takes seconds."""
    pytest.importorskip("ray", reason=NEEDS_RAY)
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)  # Ray sets it for tasks
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(initialize_head=True, head_node_args=NODE)
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="module")
def ray(cluster):
    """Ray, connected to the cluster."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    with ray_cluster._connect(cluster.address):
        assert ray.cluster_resources()["CPU"] == 2
        assert signal.getsignal(signal.SIGTERM) == before
        yield ray
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What is in the folder of a run that this process has trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        return contents(train(config_for(tmp_path_factory.mktemp("whole"))).folder)


def test_tasks_train_what_this_process_does(ray, undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = [config_for("runs", seed=seed) for seed in (0, 1)]
    events = list(RayRunner("auto").train(both))
    names = [folder_of(config).name for config in both]
    assert sorted(event.name for event in events if isinstance(event, RunStarted)) == sorted(names)
    ended = {event.name: event for event in events if isinstance(event, RunEnded)}
    assert [ended[name].status for name in names] == ["finished", "finished"]
    assert all(event.seconds > 0 for event in ended.values())
    assert contents(tmp_path / "runs" / names[0]) == undisturbed
    here = train(both[1].with_(out="here"))
    assert contents(tmp_path / "runs" / names[1]) == contents(here.folder)
    (session,) = load_run(tmp_path / "runs" / names[1]).sessions()
    assert session.hardware.threads == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_run_whose_worker_is_lost_goes_on_elsewhere(ray, undisturbed, tmp_path, number):
    config = config_for(tmp_path)
    folder, attempts, end = folder_of(config), [], None
    for event in RayRunner("auto").train([config]):
        if not isinstance(event, RunStarted):
            end = event
            continue
        attempts.append(event.attempt)
        if event.attempt == 1:
            wait_for(lambda: is_run(folder) and load_run(folder).epochs)
            os.kill(process_of(event), number)
    assert attempts == [1, 2]
    assert isinstance(end, RunEnded)
    assert contents(folder) == undisturbed
    assert len(load_run(folder).sessions()) == 2


def test_a_study_ends_with_every_run_once_though_a_node_is_killed(
    cluster, ray, undisturbed, tmp_path
):
    node = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    runs = [config_for(tmp_path, seed=seed) for seed in range(4)]
    begun, events, killed = set(), [], False
    for event in RayRunner("auto").train(runs):
        events.append(event)
        if isinstance(event, RunStarted):
            begun.add(event.name)
        if len(begun) == 4 and not killed:  # two of them on each node
            wait_for(lambda: len(list(tmp_path.glob("*/epochs.jsonl"))) == 4)
            cluster.remove_node(node, allow_graceful=False)
            killed = True
    ended = sorted(event.name for event in events if isinstance(event, RunEnded))
    assert ended == sorted(folder_of(config).name for config in runs)
    assert any(event.attempt == 2 for event in events if isinstance(event, RunStarted))
    assert not any(isinstance(event, RunFailed) for event in events)
    for config in runs:
        run = load_run(folder_of(config))
        assert [record.epoch for record in run.epochs] == list(range(1, EPOCHS + 1))
    assert contents(folder_of(runs[0])) == undisturbed
    wait_for(lambda: ray.cluster_resources()["CPU"] == NODE["num_cpus"])  # for the tests after it


def test_broken_runs_fail_at_once_and_the_others_go_on(ray, tmp_path):
    unknown = config_for(tmp_path, optimizer="nothing")
    missing = config_for(tmp_path, data="folder:nowhere")
    several = config_for(tmp_path, devices=2)
    right = config_for(tmp_path, epochs=1)
    events = list(RayRunner("auto").train([unknown, missing, several, right]))
    failed = {event.name: event for event in events if isinstance(event, RunFailed)}
    assert "There is no optimizer 'nothing'" in failed[unknown.name].error
    assert "there is no folder nowhere" in failed[folder_of(missing).name].error
    assert "Expected devices to be 1" in failed[folder_of(several).name].error
    assert {event.attempts for event in failed.values()} == {1}
    assert [event.name for event in events if isinstance(event, RunEnded)] == [
        folder_of(right).name
    ]


def test_a_runner_that_is_stopped_saves_its_runs(ray, undisturbed, tmp_path):
    config = config_for(tmp_path)
    later = config_for(tmp_path, seed=1), config_for(tmp_path, seed=2), config_for(tmp_path, seed=3)
    events = RayRunner("auto").train([config, *later])
    assert isinstance(next(events), RunStarted)
    wait_for(lambda: any(tmp_path.glob("*/sessions.jsonl")))
    events.close()
    assert not list(tmp_path.glob("*/outcome.json"))
    begun = [path.parent for path in tmp_path.glob("*/sessions.jsonl")]
    assert any(load_state(folder)["batch"] % 90 for folder in begun)  # in the middle of an epoch
    assert contents(train(config).folder) == undisturbed


def test_runs_are_asked_for_only_as_there_is_room(ray, tmp_path):
    asked = []

    def many():
        for seed in range(100):
            asked.append(seed)
            yield config_for(tmp_path, seed=seed)

    events = RayRunner("auto").train(many())
    assert isinstance(next(events), RunStarted)
    events.close()
    assert len(asked) == 2 + ray_cluster._SPARE_TASKS


def test_what_a_run_warns_of_is_said_here(ray, tmp_path):
    config = config_for(tmp_path, epochs=1)
    folder = train(config).folder
    (folder / "outcome.json").unlink()
    (newest,) = folder.glob("state-*.pt")
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=f"{folder.name}: .* is broken"):
        events = list(RayRunner("auto").train([config]))
    assert isinstance(events[-1], RunEnded)


def test_a_run_that_loses_every_worker_is_given_up(ray, tmp_path, capsys):
    events = []
    for event in RayRunner("auto", retries=1).train([config_for(tmp_path)]):
        events.append(event)
        if isinstance(event, RunStarted):
            os.kill(process_of(event), signal.SIGKILL)
    *begun, failed = events
    assert [event.attempt for event in begun] == [1, 2]
    assert isinstance(failed, RunFailed)
    assert failed.attempts == 2
    assert failed.error.startswith("Its worker was lost 2 times: WorkerCrashedError")


def test_a_retry_waits_for_what_still_holds_the_run(tmp_path):
    config = config_for(tmp_path, epochs=1)
    folder = folder_of(config)
    folder.mkdir()
    lock = FileLock(folder / ".lock", thread_local=False)
    lock.acquire()
    threading.Timer(0.5, lock.release).start()
    again = ray_cluster._Attempt(config, folder.name, number=2)
    assert isinstance(ray_cluster._train_run(again, str(tmp_path)), RunEnded)


def test_a_node_without_the_folder_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # which is left as it is
    run = ray_cluster._Attempt(config_for("runs"), "a-run")
    for folder in (tmp_path, tmp_path / "not here"):
        failed = ray_cluster._train_run(run, str(folder))
        assert isinstance(failed, RunFailed)
        assert f"does not see the folder {folder / 'runs'}" in failed.error


def test_a_cluster_that_does_not_answer_is_a_sentence(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray", reason=NEEDS_RAY)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        runner = RayRunner(f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(RunError, match=r"can't be used: .*refused\. Start the study on"):
            next(runner.train([config_for(tmp_path)]))


def test_a_ray_that_does_not_start_is_a_sentence(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray", reason=NEEDS_RAY)

    def init(address, **options):
        assert (address, options["num_cpus"] > 0) == ("local", True)
        raise Exception("It timed out.\nMore of it.")  # noqa: TRY002 - as Ray does

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RunError, match=r"can't be used: It timed out\. Start the study on"):
        next(RayRunner("local").train([config_for(tmp_path)]))


@pytest.mark.parametrize("address", ["", "head", "head:", ":6379", "head:port", "head:70000"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match="Expected the address auto, local or HOST:PORT"):
        ray_cluster._check_address(address)


@pytest.mark.parametrize("address", ["auto", "local", "head:6379", "[::1]:6379"])
def test_what_is_an_address_is_taken(address):
    ray_cluster._check_address(address)


def test_rays_client_is_refused_with_what_to_do_instead():
    with pytest.raises(ConfigError, match="Start the study on one of the cluster's nodes"):
        ray_cluster._check_address("ray://head:10001")


def test_fewer_retries_than_none_are_refused():
    pytest.importorskip("ray", reason=NEEDS_RAY)
    with pytest.raises(ConfigError, match="Expected retries of 0 or more, got -1"):
        RayRunner("local", retries=-1)


def test_without_ray_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="pip install ray"):
        RayRunner("auto")
