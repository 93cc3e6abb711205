"""Folders of adapters are written whole or not at all."""

import json
import sys

import pytest
import torch

from rankwise.adapters.stored.peft_folder import write_peft_folder
from rankwise.errors import ArgumentError, MissingExtraError

safetensors = pytest.importorskip("safetensors.torch")

FACTORS = {"base_model.model.fc.lora_A.weight": torch.randn(6, 2).T}


def list_names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read_again(tmp_path):
    (tmp_path / "adapter").mkdir()  # an empty folder may be there
    write_peft_folder(tmp_path / "adapter", {"r": 2, "peft_type": "LORA"}, FACTORS, "# α\n")
    assert list_names(tmp_path) == ["adapter"]
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config == {"r": 2, "peft_type": "LORA"}
    stored = safetensors.load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(stored[name], tensor) for name, tensor in FACTORS.items())
    assert (tmp_path / "adapter" / "README.md").read_bytes() == "# α\n".encode()


def test_all_files_may_be_read_by_whom_others_may(tmp_path):
    (tmp_path / "other").touch()
    write_peft_folder(tmp_path / "adapter", {}, FACTORS, "")
    modes = {path.stat().st_mode for path in (tmp_path / "adapter").iterdir()}
    assert modes == {(tmp_path / "other").stat().st_mode}


def test_a_folder_with_files_and_a_file_are_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name, message in (("full", "holds files"), ("file", "got a file"), ("link", "a link")):
        with pytest.raises(ArgumentError, match=message):
            write_peft_folder(tmp_path / name, {}, FACTORS, "")
    with pytest.raises(ArgumentError, match="create it first"):
        write_peft_folder(tmp_path / "a" / "b", {}, FACTORS, "")
    assert list_names(tmp_path) == ["file", "full", "link"]
    assert list_names(tmp_path / "full") == ["notes.txt"]


def test_an_input_is_never_overwritten(tmp_path):
    (tmp_path / "base").mkdir()
    with pytest.raises(ArgumentError, match="is an input"):
        write_peft_folder(tmp_path / "base", {}, FACTORS, "", inputs=[str(tmp_path / "base"), {}])


def test_nothing_is_left_of_a_folder_that_could_not_be_filled(tmp_path):
    with pytest.raises(TypeError):
        write_peft_folder(tmp_path / "adapter", {"r": object()}, FACTORS, "")
    with pytest.raises(UnicodeEncodeError):
        write_peft_folder(tmp_path / "adapter", {}, FACTORS, "\ud800")
    assert list_names(tmp_path) == []


def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingExtraError, match="pip install safetensors"):
        write_peft_folder(tmp_path / "adapter", {}, FACTORS, "")
