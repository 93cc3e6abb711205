import os
from pathlib import Path

import pytest

from rankwise._io import explain_missing, refuse_overwrite, write_atomically
from rankwise.errors import ArgumentError


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "probe.json"
    write_atomically(path, b"old")

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"new")
    assert caught.value.filename == str(path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [
        ("probe.json", b"old")
    ]


def test_a_link_keeps_pointing_to_the_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_an_input_is_not_overwritten(tmp_path):
    source, other = tmp_path / "in.pt", tmp_path / "out.html"
    source.touch()
    (tmp_path / "link").symlink_to(source)
    refuse_overwrite(other, [source])
    with pytest.raises(ArgumentError, match="link is an input"):
        refuse_overwrite(tmp_path / "link", [source])


def test_a_missing_path_gets_the_names_next_to_it(tmp_path):
    (tmp_path / "model.safetensors").touch()
    text = explain_missing(tmp_path / "model.safetensor")
    assert text.endswith("no such file or folder. Did you mean model.safetensors?")
    assert explain_missing(tmp_path / "x" / "y").endswith("no such file or folder.")
    assert explain_missing(Path("a\0b")).endswith("no such file or folder.")


def test_an_address_given_as_a_path_is_named_whole():
    text = explain_missing(Path("https://host/study.toml"))
    assert (
        text == "https://host/study.toml: a web address can't be opened; download the file first."
    )
