"""Files that are cut short, rewritten or replaced while they are read."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.checkpoints.source import open_source, take_range
from rankwise.errors import CheckpointError

FORMATS = ["torch", "legacy", "safetensors", "npz", "npz-compressed"]
STREAMED = [kind for kind in FORMATS if kind != "legacy"]  # that is read whole when it is opened


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _overwrite(path: Path) -> None:
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content[::-1])
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # a later moment, however fast this is


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def _remove(path: Path) -> None:
    path.unlink()


def _block(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_truncate, "changed while it was being read; try again once it is complete"),
        (_overwrite, "changed while it was being read"),
        (_replace, "changed while it was being read"),
        (_block, "changed while it was being read"),
        (_remove, "can't be read: No such file"),
    ],
)
def test_a_file_that_changes_is_noticed(tmp_path: Path, writers, kind: str, change, said) -> None:
    writers[kind](tmp_path / "w", {"a": torch.ones(99, 9), "b": torch.ones(99, 9)})
    first, second = open_weights(tmp_path / "w").tensors
    assert first.load().sum() == 891
    change(tmp_path / "w")
    with pytest.raises(CheckpointError, match=said):
        second.load()
    if second.load_rows is not None:
        with pytest.raises(CheckpointError, match=said):
            second.load_rows(3, 2)


def _read_while(change, path: Path, start: int, count: int) -> None:
    with open_source(path).open() as file:
        file.read(0, 100)
        change(path)
        file.read(start, count)


def test_a_change_in_the_middle_of_a_read_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(1000))
    with pytest.raises(CheckpointError, match="changed while"):
        _read_while(_overwrite, tmp_path / "w", 100, 100)  # every byte is there
    with pytest.raises(CheckpointError, match="changed while"):
        _read_while(_truncate, tmp_path / "w", 400, 600)


def test_a_file_that_is_being_written_is_refused(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "w"
    path.write_bytes(bytes(1000))
    monkeypatch.setattr("time.sleep", lambda _: path.write_bytes(path.read_bytes() + b"."))
    with pytest.raises(CheckpointError, match="try again once it is complete"):
        open_source(path)


def test_a_file_of_a_later_time_is_read(tmp_path: Path) -> None:
    """The clock of a file server may be ahead of ours."""
    (tmp_path / "w").write_bytes(bytes(1000))
    os.utime(tmp_path / "w", (2**32, 2**32))
    assert open_source(tmp_path / "w").read(0, 9) == bytes(9)


@pytest.mark.parametrize(("start", "count"), [(0, 1001), (1001, 0), (-1, 5), (999, 2), (0, 2**62)])
def test_ranges_outside_the_file_take_no_memory(tmp_path: Path, start: int, count: int) -> None:
    (tmp_path / "w").write_bytes(bytes(1000))
    with pytest.raises(CheckpointError, match="beyond the end of the file"):
        open_source(tmp_path / "w").read_tensor(start, count)


CHANGING = """
    import os, random, sys, time
    change, spare, *paths = sys.argv[1:]
    contents = [[open(path + end, "rb").read() for end in ("", ".2")] for path in paths]
    random.seed(0)
    print("ready", flush=True)
    while True:
        for path, versions in zip(paths, contents):
            content = random.choice(versions)
            if change == "truncate":
                os.truncate(path, random.randrange(len(content)))
                time.sleep(random.random() * 0.01)
            if change == "replace":
                open(spare, "wb").write(content)
                os.replace(spare, path)
            else:  # in place, as torch.save does to last.ckpt
                with open(path, "r+b" if change == "rewrite" else "wb") as file:
                    for start in range(0, len(content), 2**16):
                        file.write(content[start : start + 2**16])
            time.sleep(random.random() * 0.05)
"""
PROBING = """
    import collections, sys, rankwise
    seen = collections.Counter()
    for path in sys.argv[1:] * 6:
        try:
            layers = rankwise.probe(path).layers
        except rankwise.CheckpointError as error:
            assert str(error).isprintable(), error
            seen["refused"] += 1
            continue
        for layer in layers:
            seen[layer.status.value] += 1
            if layer.is_probed:
                assert min(abs(layer.frobenius_norm - norm) for norm in (64, 128)) < 1e-3, layer
    print(dict(seen))
    assert set(seen) <= {"refused", "unreadable", "probed"}
"""


@pytest.mark.parametrize("change", ["truncate", "overwrite", "rewrite", "replace"])
def test_another_process_changes_files_while_they_are_probed(
    tmp_path: Path, writers, change: str
) -> None:
    """Every outcome is a sentence or the right numbers, never a signal or other numbers."""
    paths = [tmp_path / kind for kind in FORMATS]
    for kind, path in zip(FORMATS, paths, strict=True):
        for number, file in ((1, path), (2, path.with_name(f"{kind}.2"))):
            writers[kind](file, {f"w{i}": torch.full((64, 64), float(number)) for i in range(40)})
    command = [sys.executable, "-c"]
    changing = subprocess.Popen(
        [*command, textwrap.dedent(CHANGING), change, tmp_path / "spare", *paths],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert changing.stdout is not None
        assert changing.stdout.readline() == "ready\n"
        probing = subprocess.run(
            [*command, textwrap.dedent(PROBING), *paths],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        changing.kill()
        changing.communicate()
    assert probing.returncode == 0, probing.stderr
    assert "refused" in probing.stdout or "unreadable" in probing.stdout


def test_a_part_of_a_file_is_read_like_a_file(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"before" + bytes(range(20)) + b"after")
    part = take_range(open_source(path), 6, 20)

    assert part.read(0, 20) == bytes(range(20))
    assert part.read_tensor(3, 2).tolist() == [3, 4]
    with part.open() as opened:
        file = opened.as_file()
        assert (file.seek(-2, 2), file.read()) == (18, bytes([18, 19]))
        assert file.read() == b""
    with pytest.raises(CheckpointError, match="beyond the end"):
        part.read(19, 2)
    with pytest.raises(CheckpointError, match="beyond the end"):
        take_range(open_source(path), 6, 26)


def test_a_part_of_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(bytes(30))
    part = take_range(open_source(path), 6, 20)
    _overwrite(path)
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        part.read(0, 20)
