"""studies/migrate_records.py brings records of version 1 up to date."""

import dataclasses
import json
import runpy

import pytest

from rankwise.lab import RunError, load_run, load_runs
from rankwise.lab.records import SCHEMA
from rankwise.study.archive import pack, unpack
from tests import ROOT
from tests.lab.runs import epoch, written

SCRIPT = runpy.run_path(str(ROOT / "studies" / "migrate_records.py"))
GONE = {"gain": "absolute", "strategy": "auto"}


def test_a_folder_of_version_1_is_renamed_and_can_be_read(tmp_path):
    old = {}
    for name, options in {
        "kept": {"optimizer": "sgd"},
        "relative": {"gain": "relative"},
        "released": {"rule": "released"},
    }.items():
        asked = {k: v for k, v in options.items() if k not in ("gain", "rule")}
        folder = written(tmp_path, [epoch(1)], seed=len(old), **asked)
        stored = dataclasses.asdict(folder.config) | GONE | options
        (folder.path / "config.json").write_text(json.dumps(stored))
        old[name] = folder.path.rename(tmp_path / name)
    with pytest.raises(RunError, match="migrate_records"):
        load_run(old["kept"])
    assert "1 runs renamed, 2 left" in SCRIPT["migrate_folder"](tmp_path)
    (run,) = (load_run(path) for path in tmp_path.iterdir() if path.name not in old)
    assert run.folder.name == run.config.name
    assert len(run.epochs) == 1
    assert old["relative"].exists()
    assert "0 runs renamed" in SCRIPT["migrate_folder"](tmp_path)


def test_a_file_of_version_1_is_migrated_without_what_is_gone(tmp_path):
    for seed in range(3):
        written(tmp_path / "runs", [epoch(1)], seed=seed)
    path = tmp_path / "records.jsonl"
    packed = pack(load_runs(tmp_path / "runs"))
    lines = [json.loads(line) for line in packed.splitlines()]
    for line, change in zip(lines, ({}, {"gain": "relative"}, {"rule": "released"}), strict=True):
        del line["schema"]
        line["name"] = "resnet20-digits-rmsgd-00000000-seed0"
        line["config"] |= {"gain": "absolute"} | change
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RunError, match=r"line 1.*migrate_records"):
        unpack(path, tmp_path / "before")
    assert "1 runs, 2 dropped" in SCRIPT["migrate_file"](path)
    assert path.read_text() == packed.splitlines(keepends=True)[0]
    assert json.loads(path.read_text())["schema"] == SCHEMA
    assert len(unpack(path, tmp_path / "after")) == 1


@pytest.mark.parametrize(
    "path", sorted((ROOT / "studies" / "records").glob("*.jsonl")), ids=lambda p: p.stem
)
def test_the_committed_records_are_of_this_version(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        assert line.startswith(f'{{"schema":{SCHEMA},')
