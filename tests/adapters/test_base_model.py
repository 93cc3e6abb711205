"""What an adapter says of its base: name, hashes, licence; nothing in a file acts on the README."""

import hashlib
import json

import pytest
import torch
from torch import nn

from rankwise.adapters import extract_adapter
from rankwise.adapters.extraction.base_model import describe_base
from rankwise.api import open_target

safetensors = pytest.importorskip("safetensors.torch")

WEIGHTS = {"a.fc.weight": torch.eye(8), "b.fc.weight": torch.eye(8)}


def describe(target):
    return describe_base(target, open_target(target))


def hash_bytes(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_named_by_its_path_and_hashed(tmp_path):
    path = tmp_path / "base.safetensors"
    safetensors.save_file(WEIGHTS, path)
    base = describe(path)
    assert (base.name, base.licence) == (str(path), None)
    assert base.hashes == (("base.safetensors", hash_bytes(path)),)


def test_all_shards_of_a_folder_are_hashed(tmp_path):
    files = {}
    for number, (name, tensor) in enumerate(WEIGHTS.items(), 1):
        files[name] = f"model-{number:05d}-of-00002.safetensors"
        safetensors.save_file({name: tensor}, tmp_path / files[name])
    index = {"metadata": {}, "weight_map": files}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    base = describe(tmp_path)
    assert base.name == str(tmp_path)
    assert base.hashes == tuple((name, hash_bytes(tmp_path / name)) for name in files.values())


def test_a_snapshot_of_a_cache_has_the_name_of_its_repository(tmp_path):
    folder = tmp_path / "models--some-org--a_model.v1" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    safetensors.save_file(WEIGHTS, folder / "model.safetensors")
    assert describe(folder).name == "some-org/a_model.v1"


def test_a_network_in_memory_has_no_name():
    base = describe(nn.Linear(3, 3))
    assert (base.name, base.title, base.hashes) == (None, "Linear", ())


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("---\r\ntags:\r\n- a\r\nlicense: 'mit'\r\n---\r\n", "mit"),
        ("---\nlicense: other\nlicense_name: x\n---\n", "other"),
        ("license: mit\n", None),
        ("---\nlicense: <script>\n---\n", None),
        ("---\ntags: [x]\n---\nlicense: mit\n", None),
        ("", None),
    ],
)
def test_the_licence_is_that_of_the_model_card(tmp_path, text, licence):
    safetensors.save_file(WEIGHTS, tmp_path / "model.safetensors")
    (tmp_path / "README.md").write_bytes(text.encode())
    assert describe(tmp_path).licence == licence


def test_names_from_files_do_not_act_on_the_readme(tmp_path):
    name = "x\x1b[31m\n# Title <b>|`[l](u).weight"
    base = WEIGHTS | {name: torch.zeros(4, 4)}
    tuned = {key: tensor + 0.1 for key, tensor in WEIGHTS.items()} | {name: torch.zeros(5, 5)}
    extract_adapter(base, tuned, tmp_path / "a")
    text = (tmp_path / "a" / "README.md").read_text()
    assert "\x1b" not in text
    assert "\n# Title" not in text
    assert r"\<b\>" in text
    assert r"\[l\](u)" in text
