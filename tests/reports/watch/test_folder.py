import json
import os
import time

import msgspec
import pytest

pytest.importorskip("altair")
pytest.importorskip("filelock")

from filelock import FileLock

from rankwise.lab import Config, RunError
from rankwise.lab.records import LayerColumns, Session
from rankwise.lab.run_folder import RunFolder
from rankwise.reports.watch import folder as folder_module
from rankwise.reports.watch.folder import (
    RunsFolder,
    UnknownRunError,
    is_locked,
    list_locks,
)
from tests.lab.runs import record_of

LAYERS = LayerColumns(["fc"], *[[0.2]] * 5)


def plain(epoch, **changes):
    """A record as plain values, which may be wrong."""
    seconds = {"data": 0.1, "step": 0.8, "probe": 0.0, "eval": 0.1, "save": 0.0, "trained": epoch}
    test = {"loss": 0.5, "accuracy": 0.9}
    known = {"epoch": epoch, "train": {"loss": 1.0}, "test": test, "quality": 0.4}
    return {**known, "rates": [0.1, 0.2], "seconds": seconds, **changes}


def record(epoch, **changes):
    return record_of(**plain(epoch, **changes))


@pytest.fixture
def begun(tmp_path):
    """Begins a run as a training does, and gives its folder."""

    def begin(seed=0, epochs=0, **options):
        folder = RunFolder(Config(out=str(tmp_path), epochs=10, seed=seed, **options))
        folder.path.mkdir()
        folder.start(Session(started="2026-01-01T00:00:00+00:00"))
        for epoch in range(1, epochs + 1):
            folder.add(record(epoch), LAYERS)
        return folder

    return begin


def age(folder, seconds=7200):
    then = time.time() - seconds
    for path in folder.path.iterdir():
        os.utime(path, (then, then))


def only(runs):
    (summary,) = runs.summarize_all()
    return summary


def test_a_summary_tells_options_and_the_last_epoch(begun, tmp_path):
    folder = begun(epochs=3)
    summary = only(RunsFolder(tmp_path))
    assert summary.name == folder.config.name
    assert summary.config == folder.config
    assert (summary.epoch, summary.score) == (3, ("accuracy", 0.9))
    assert not summary.has_ended


def test_an_epoch_that_is_added_is_seen(begun, tmp_path):
    folder, runs = begun(epochs=1), RunsFolder(tmp_path)
    assert only(runs).epoch == 1
    folder.add(record(2, quality=0.5), LAYERS)
    assert (only(runs).epoch, only(runs).last.quality) == (2, 0.5)


def test_nothing_is_read_again_while_nothing_changes(begun, tmp_path, monkeypatch):
    folder, runs = begun(epochs=2), RunsFolder(tmp_path)
    before = only(runs)
    monkeypatch.setattr(RunsFolder, "_read", lambda *_: pytest.fail("read again"))
    assert only(runs) == before
    folder.add(record(3), LAYERS)
    with pytest.raises(pytest.fail.Exception, match="read again"):
        runs.summarize_all()


def test_only_the_end_of_a_long_file_is_read(begun, tmp_path):
    folder = begun()
    path = folder.path / "epochs.jsonl"
    lines = [msgspec.json.encode(record(epoch)).decode() for epoch in range(1, 1001)]
    path.write_text("\n".join(["not read: no JSON", *lines]) + "\n")
    assert path.stat().st_size > 2**16
    assert only(RunsFolder(tmp_path)).epoch == 1000


def test_a_line_that_is_being_written_does_not_count(begun, tmp_path):
    folder = begun(epochs=2)
    with (folder.path / "epochs.jsonl").open("a") as file:
        file.write(msgspec.json.encode(record(3)).decode())
    assert only(RunsFolder(tmp_path)).epoch == 2


@pytest.mark.parametrize(
    "line",
    [
        b"{broken",
        b"[1]",
        b'{"epoch": "3"}',
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"epoch": 3}',
        json.dumps(plain(3, test=None)).encode(),
        json.dumps(plain(3, quality=10**400)).encode(),
        b'{"epoch": 3, "note": "' + b"x" * 200_000 + b'"}',
    ],
    ids=range(9),
)
def test_a_broken_line_is_passed_over(begun, tmp_path, line):
    folder = begun(epochs=2)
    with (folder.path / "epochs.jsonl").open("ab") as file:
        file.write(line + b"\n")
    runs = RunsFolder(tmp_path)
    assert only(runs).epoch == 2
    with pytest.warns(UserWarning, match="broken record"):
        assert runs.load(folder.config.name).epoch == 2  # else pages would never agree


def test_a_very_long_line_is_a_record_as_well(begun, tmp_path):
    folder = begun(epochs=1)
    with (folder.path / "epochs.jsonl").open("a") as file:
        file.write(json.dumps(plain(2, note="x" * 200_000)) + "\n")
    assert only(RunsFolder(tmp_path)).epoch == 2


def test_the_end_of_a_line_is_not_taken_for_a_record(begun, tmp_path):
    folder = begun(epochs=1)
    tail = msgspec.json.encode(record(7))
    padding = b" " * (2**16 - len(tail) - 1)
    with (folder.path / "epochs.jsonl").open("ab") as file:
        file.write(b"broken" * 100 + tail + padding + b"\n")
    assert only(RunsFolder(tmp_path)).epoch == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(begun, tmp_path):
    folder, other = begun(), begun(seed=1)
    os.mkfifo(folder.path / "epochs.jsonl")
    (other.path / "config.json").unlink()
    os.mkfifo(other.path / "config.json")
    runs = RunsFolder(tmp_path)
    assert only(runs).epoch == 0
    assert runs.load(folder.config.name).last is None


def test_runs_that_changed_last_come_first(begun, tmp_path):
    old, new = begun(seed=0), begun(seed=1)
    age(old)
    names = [summary.name for summary in RunsFolder(tmp_path).summarize_all()]
    assert names == [new.config.name, old.config.name]


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_a_run_that_ended_says_how(begun, tmp_path, status):
    folder = begun(epochs=1)
    folder.end(status)
    assert only(RunsFolder(tmp_path)).state == status
    assert only(RunsFolder(tmp_path)).has_ended


def test_a_run_is_running_while_records_come_and_stopped_when_they_cease(begun, tmp_path):
    folder = begun(epochs=1)
    assert only(RunsFolder(tmp_path)).state == "running"
    age(folder)
    assert only(RunsFolder(tmp_path)).state == "stopped"


def test_a_run_with_long_epochs_is_given_time(begun, tmp_path):
    folder = begun()
    hours = {"data": 0, "step": 3600.0, "probe": 0, "eval": 0, "save": 0, "trained": 3600.0}
    folder.add(record(1, seconds=hours), LAYERS)
    age(folder, 7200)
    assert only(RunsFolder(tmp_path)).state == "running"
    age(folder, 12000)
    assert only(RunsFolder(tmp_path)).state == "stopped"


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="this system lists no locks")  # noqa: PTH110
def test_a_quiet_run_whose_lock_is_held_is_running(begun, tmp_path):
    folder = begun(epochs=1)
    lock = FileLock(folder.path / ".lock")
    with lock:
        age(folder)
        if not is_locked(folder.path / ".lock", list_locks()):
            pytest.skip("this system does not list the locks of this file system")
        assert only(RunsFolder(tmp_path)).state == "running"
    assert only(RunsFolder(tmp_path)).state == "stopped"


def test_looking_at_a_run_never_takes_its_lock(begun, tmp_path, monkeypatch):
    folder = begun(epochs=1)
    (folder.path / ".lock").touch()
    fcntl = pytest.importorskip("fcntl")
    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(fcntl, name, lambda *_: pytest.fail("a lock was tried"))
    only(RunsFolder(tmp_path))
    RunsFolder(tmp_path).load(folder.config.name)


def test_locks_that_are_waited_for_are_not_held(monkeypatch, tmp_path):
    listed = tmp_path / "locks"
    listed.write_text(
        "1: FLOCK  ADVISORY  WRITE 6284 fe:0a:2295426 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 6285 fe:0a:7 0 EOF\n"
        "2: LEASE  ACTIVE    READ  1 <none> 0 EOF\n"
    )
    monkeypatch.setattr(folder_module, "_LOCKS", listed)
    assert list_locks() == {(0xFE, 0x0A, 2295426)}
    monkeypatch.setattr(folder_module, "_LOCKS", tmp_path / "none")
    assert list_locks() == frozenset()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "can't be read"),
        ("[]", "can't be read"),
        ('{"schema": 2, "options": {"netwrok": "resnet8"}}', "no option 'netwrok'"),
        ('{"schema": 2, "options": {"epochs": "ten"}}', "should be int"),
        (" " * 2**20 + "{}", "more than"),
    ],
    ids=["no JSON", "a list", "an unknown option", "a wrong type", "too large"],
)
def test_a_run_that_cannot_be_read_is_listed_with_the_reason(begun, tmp_path, text, reason):
    good, bad = begun(seed=0), begun(seed=1)
    (bad.path / "config.json").write_text(text)
    found = {summary.name: summary for summary in RunsFolder(tmp_path).summarize_all()}
    assert found[good.config.name].state == "running"
    assert found[bad.config.name].state == "unreadable"
    assert reason in found[bad.config.name].problem


def test_what_is_no_run_is_not_listed(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "config.json").write_text("{}")
    assert RunsFolder(tmp_path).summarize_all() == []
    assert RunsFolder(tmp_path / "gone").summarize_all() == []


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../secret", "/etc", "no such run"])
def test_only_names_found_in_the_folder_count(begun, tmp_path, name):
    begun()
    inner = RunsFolder(tmp_path / "inner")
    with pytest.raises(UnknownRunError, match="no such run"):
        inner.load(name)
    with pytest.raises(UnknownRunError):
        RunsFolder(tmp_path).summarize(name)


def test_a_link_out_of_the_folder_is_listed_and_not_followed(begun, tmp_path):
    folder = begun(epochs=1)
    inner = tmp_path / "inner"
    inner.mkdir()
    try:
        (inner / "link").symlink_to(folder.path, target_is_directory=True)
    except OSError:
        pytest.skip("no links here")
    summary = only(RunsFolder(inner))
    assert (summary.name, summary.state, summary.config) == ("link", "unreadable", None)
    with pytest.raises(RunError, match="outside"):
        RunsFolder(inner).load("link")


def test_a_whole_run_is_read_anew_each_time(begun, tmp_path):
    folder, runs = begun(epochs=1), RunsFolder(tmp_path)
    assert runs.load(folder.config.name).epoch == 1
    folder.add(record(2), LAYERS)
    assert runs.load(folder.config.name).epoch == 2


def test_names_that_are_no_text_are_escaped_and_found(begun, tmp_path):
    folder = begun(epochs=1)
    try:
        os.rename(folder.path, os.fsencode(tmp_path) + b"/caf\xe9")  # noqa: PTH104
    except OSError:
        pytest.skip("this file system has no such names")
    runs = RunsFolder(tmp_path)
    assert only(runs).name == "caf\\xe9"
    assert runs.load("caf\\xe9").epoch == 1


def test_what_is_gone_is_forgotten(begun, tmp_path):
    runs = RunsFolder(tmp_path)
    folders = [begun(seed=seed) for seed in range(3)]
    assert len(runs.summarize_all()) == 3
    (folders[0].path / "config.json").unlink()
    assert len(runs.summarize_all()) == 2
    assert len(runs._cache) == 2


def test_nothing_is_written(begun, tmp_path):
    folder = begun(epochs=2)
    before = {path: path.stat() for path in folder.path.iterdir()}
    RunsFolder(tmp_path).summarize_all()
    RunsFolder(tmp_path).load(folder.config.name).layers()
    after = {path: path.stat() for path in folder.path.iterdir()}
    assert [(p, s.st_mtime_ns, s.st_size) for p, s in before.items()] == [
        (p, s.st_mtime_ns, s.st_size) for p, s in after.items()
    ]


def test_starts_tell_a_run_that_went_on(begun, tmp_path):
    folder, runs = begun(epochs=1), RunsFolder(tmp_path)
    before = only(runs).starts
    folder.add(record(2), LAYERS)
    assert only(runs).starts == before
    folder.start(Session(started="2026-01-02T00:00:00+00:00"))
    assert only(runs).starts > before
