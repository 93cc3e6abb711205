from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rankwise.checkpoints import open_weights
from rankwise.checkpoints.safety import safe_join
from rankwise.errors import CheckpointError, UnsafeFileError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../w",
        "a/../../w",
        "/etc/passwd",
        "C:w",
        "C:\\w",
        "\\\\host\\w",
        "a\\..\\w",
        "w\0",
    ],
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeFileError, match="nothing was read"):
        safe_join(tmp_path, name)


def test_names_inside_are_found(tmp_path: Path) -> None:
    assert safe_join(tmp_path, "sub/w.bin") == tmp_path / "sub" / "w.bin"


def test_links_inside_are_followed_and_links_outside_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "real").touch()
    (tmp_path / "secret").touch()
    (folder / "inner").symlink_to("real")
    (folder / "outer").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    assert safe_join(folder, "inner")
    for name in ("outer", "up/secret"):
        with pytest.raises(UnsafeFileError, match="leads out of its folder"):
            safe_join(folder, name)


def test_the_cache_of_hugging_face_may_link_to_its_blobs(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    (snapshot / "unet").mkdir(parents=True)
    blobs = tmp_path / "models--x" / "blobs"
    blobs.mkdir()
    (blobs / "1234").touch()
    (tmp_path / "secret").touch()
    (snapshot / "w").symlink_to("../../blobs/1234")
    (snapshot / "unet" / "w").symlink_to("../../../blobs/1234")
    (snapshot / "trap").symlink_to("../../../secret")
    (blobs / "trap").symlink_to("../../secret")
    (snapshot / "trap2").symlink_to("../../blobs/trap")
    assert safe_join(snapshot, "w")
    assert safe_join(snapshot / "unet", "w")
    for name in ("trap", "trap2"):
        with pytest.raises(UnsafeFileError):
            safe_join(snapshot, name)


def test_a_link_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError):
        open_weights(tmp_path / "loop")


@pytest.mark.parametrize("name", ["no-such-file.pt", "no\0file", "x" * 5000])
def test_a_missing_file_is_said_to_be_missing(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"no such file|can't be reached"):
        open_weights(name)


def test_the_documented_sentence() -> None:
    with pytest.raises(CheckpointError) as caught:
        open_weights("no-such-file.pt")
    assert str(caught.value) == "no-such-file.pt: no such file or folder."


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_weights(tmp_path / "pipe.pt")


def test_a_device_is_refused() -> None:
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_weights("/dev/zero")


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write, tensors) -> None:
    write(tmp_path / "w", tensors)
    # The superuser may read everything, so the system's answer is given here.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CheckpointError, match="permission denied"):
        open_weights(tmp_path / "w")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_permission_really_denied(tmp_path: Path, write, tensors) -> None:
    write(tmp_path / "w", tensors)
    (tmp_path / "w").chmod(0)
    with pytest.raises(CheckpointError, match="permission denied"):
        open_weights(tmp_path / "w")
