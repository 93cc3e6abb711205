"""Runs as one file, and back."""

import errno
import json
import shutil

import pytest

from rankwise.lab import RunError, load_run, run_folder
from rankwise.study import archive
from rankwise.study.archive import pack, unpack
from rankwise.study.export import to_markdown
from rankwise.study.progress import read_progress
from rankwise.study.results import collect_results
from tests.study.small_study import filled, marked, study_in, written


def packed(tmp_path, *, layers=False):
    path = tmp_path / "records.jsonl"
    path.write_text(pack(filled(study_in(tmp_path), marked), layers=layers))
    return path


def test_tables_made_from_records_are_the_same(tmp_path):
    study = study_in(tmp_path)
    runs = filled(study, marked)
    path = tmp_path / "records.jsonl"
    path.write_text(pack(runs))
    again = unpack(path, tmp_path / "again")
    assert to_markdown(collect_results(again, study)) == to_markdown(collect_results(runs, study))
    assert pack(again) == path.read_text()


def test_status_budget_and_layers_come_back(tmp_path):
    point = study_in(tmp_path).points[-1]
    runs = [
        written(point.config.with_(seed=n), 0.5, status=s) for n, s in enumerate(("diverged", None))
    ]
    (runs[0].folder / "budget.json").write_text('{"seconds": 12.5}')
    path = tmp_path / "records.jsonl"
    path.write_text(pack([load_run(run.folder) for run in runs]))
    first, second = unpack(path, tmp_path / "again")
    assert (first.status, second.status, first.budget) == ("diverged", "unfinished", 12.5)
    assert [row.epoch for row in first.layers()] == [2, 2]
    assert first.layers()[0].stable_rank == 0.25
    assert first.sessions()[0].hardware.threads == 2


def test_a_run_that_lost_its_last_record_does_not_come_back_as_finished(tmp_path):
    run = written(study_in(tmp_path).points[-1].config, 0.5)
    lines = (run.folder / "epochs.jsonl").read_bytes().splitlines(keepends=True)
    (run.folder / "epochs.jsonl").write_bytes(b"".join(lines[:-1]))
    path = tmp_path / "records.jsonl"
    path.write_text(pack([load_run(run.folder)]))
    (again,) = unpack(path, tmp_path / "again")
    assert (again.status, again.scores) == ("unfinished", {})


def test_every_epochs_layers_are_kept_where_asked(tmp_path):
    runs = unpack(packed(tmp_path, layers=True), tmp_path / "again")
    assert {row.epoch for row in runs[0].layers()} == {1, 2}


def test_places_of_the_machine_are_left_out_and_figures_short(tmp_path):
    text = packed(tmp_path).read_text()
    assert str(tmp_path) not in text
    assert "data_root" not in text
    assert all(len(line) < 2000 for line in text.splitlines())
    assert '"accuracy":0.31,' in text or '"accuracy":0.31}' in text


def test_a_run_that_was_started_often_on_one_machine_keeps_one_start(tmp_path):
    run = written(study_in(tmp_path).points[-1].config, 0.5)
    line = (run.folder / "sessions.jsonl").read_text()
    (run.folder / "sessions.jsonl").write_text(line * 3)
    assert len(json.loads(pack([run]))["sessions"]) == 1


def changed(path, **changes):
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), **changes})
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "splendid"}, "status"),
        ({"epochs": [{"epoch": 1, "test": None}]}, "epochs"),
        ({"epochs": {"1": 2}}, "epochs"),
        ({"sessions": [{"started": 3}]}, "sessions"),
        ({"layers": [{"epoch": 1, "layers": {"name": "x"}}]}, "layers"),
        ({"budget": "long"}, "budget"),
        ({"config": ["network"]}, "config"),
        ({"more": 1}, "more"),
        ({"config": {"colour": "red"}}, "no option 'colour'"),
        ({"config": {"epochs": "ten"}}, "should be int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_a_broken_line_is_refused_by_its_number_and_nothing_is_written(tmp_path, changes, words):
    path = packed(tmp_path)
    changed(path, **changes)
    with pytest.raises(RunError, match=rf"line 3.*{words}"):
        unpack(path, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("line", ["{", "[]", "", "[" * 100_000, '"\\ud800"'])
def test_a_line_that_is_no_record_is_refused(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RunError, match="line 1"):
        unpack(path, tmp_path / "again")


def test_no_name_leads_out_of_the_folder(tmp_path):
    path = packed(tmp_path)
    config = json.loads(path.read_text().splitlines()[2])["config"]
    changed(path, name="../../evil", config={**config, "network": "../../evil", "out": "/evil"})
    runs = unpack(path, tmp_path / "again")
    assert all(run.folder.parent == tmp_path / "again" for run in runs)
    assert not list(tmp_path.parent.glob("**/evil"))


def test_a_run_is_neither_written_twice_nor_over_another(tmp_path):
    path = packed(tmp_path)
    unpack(path, tmp_path / "again")
    with pytest.raises(RunError, match="there already"):
        unpack(path, tmp_path / "again")
    path.write_text(path.read_text().splitlines()[0].join(["", "\n"]) * 2)
    with pytest.raises(RunError, match="line 2 is the same run as line 1"):
        unpack(path, tmp_path / "other")


def test_a_study_counts_runs_from_records_as_done(tmp_path):
    study = study_in(tmp_path)
    path = tmp_path / "records.jsonl"
    path.write_text(pack(filled(study, marked)))
    elsewhere = study.with_folders(out=str(tmp_path / "again"))
    unpack(path, tmp_path / "again")
    progress = read_progress(elsewhere)
    assert (progress.left, progress.done) == (0, len(path.read_text().splitlines()))


def test_a_run_that_lost_its_weights_is_not_done(tmp_path):
    study = study_in(tmp_path)
    filled(study, marked)
    assert read_progress(study).done == 0  # they were written without any


def test_runs_that_are_there_can_be_passed_over(tmp_path):
    path = packed(tmp_path)
    again = tmp_path / "again"
    names = [run.folder.name for run in unpack(path, again)]
    shutil.rmtree(again / names[0])
    (again / names[1] / "own.txt").touch()
    assert [run.folder.name for run in unpack(path, again, only_new=True)] == names[:1]
    assert (again / names[1] / "own.txt").exists()


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(RunError, match="no such file"):
        unpack(tmp_path / "none.jsonl", tmp_path / "again")


def test_an_import_that_failed_half_way_leaves_no_half_of_a_run(tmp_path, monkeypatch):
    path = packed(tmp_path)
    again = tmp_path / "again"
    real, written = run_folder.write_atomically, []

    def full(file, content):
        written.append(file)
        if len(written) > 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_atomically", full)
        patch.setattr(archive, "write_atomically", full)
        with pytest.raises(RunError, match="The disk is full"):
            unpack(path, again)
    assert len(list(again.iterdir())) == 1
    assert len(unpack(path, again, only_new=True)) == len(path.read_text().splitlines()) - 1
