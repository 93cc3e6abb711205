import os
import stat
from pathlib import Path

import pytest

from rankwise.cli.output import check_outputs, write_output


def test_writes_and_replaces(tmp_path):
    target = tmp_path / "out.json"
    write_output(str(target), b"one")
    write_output(str(target), b"two")
    assert target.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [target]


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    target = tmp_path / "out.json"
    target.write_bytes(b"old")

    def full(self, other):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space") as failure:
        write_output(str(target), b"new")
    assert failure.value.filename == str(target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_file_has_the_mode_other_files_get(tmp_path):
    write_output(str(tmp_path / "out"), b"")
    (tmp_path / "plain").write_bytes(b"")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("out", "plain")}
    assert len(modes) == 1


def test_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_output(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_written_to_not_replaced(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(str(fifo), b"through")
        assert os.read(reader, 100) == b"through"
        assert fifo.is_fifo()
    finally:
        os.close(reader)


def test_folder_is_an_error(tmp_path):
    with pytest.raises(OSError, match=r"directory|denied"):
        write_output(str(tmp_path), b"x")


def test_targets_that_would_destroy_an_input(tmp_path):
    source = tmp_path / "model.pt"
    source.write_bytes(b"weights")
    with pytest.raises(ValueError, match="would be overwritten"):
        check_outputs([str(source)], [source])
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(ValueError, match="would be overwritten"):
        check_outputs([str(tmp_path / "link")], [source])


def test_unwritable_target_is_one_line(run, checkpoint, tmp_path):
    result = run("probe", checkpoint, "--json", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"rankwise: {tmp_path}: ")
    assert result.stderr.count("\n") == 1
    before = checkpoint.read_bytes()
    assert run("probe", checkpoint, "--csv", checkpoint).exit_code == 1
    assert checkpoint.read_bytes() == before


def test_a_folder_that_can_not_be_written_to_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / "old.json").write_bytes(b"")
    for name in ("new.json", "old.json"):
        with pytest.raises(ValueError, match="can't be written to; choose another one"):
            check_outputs([str(tmp_path / name)], [])
    check_outputs([os.devnull], [])
