"""Files are whole or not there, and what is broken is left out with a warning."""

import errno
import hashlib
import json
import os
import pickle
import sys

import pytest
import torch
from torch import nn

import rankwise
from rankwise.lab import Config, RunError, run_folder
from rankwise.lab.networks.language import build_language_network
from rankwise.lab.run_folder import (
    RunFolder,
    append_line,
    explain_write_errors,
    load_state,
    remove_states_after,
    save_state,
)

pytest.importorskip("safetensors")
from safetensors.torch import load_file


def failing(monkeypatch, error):
    def fail(handle):
        raise error

    monkeypatch.setattr(os, "fsync", fail)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_lines_are_appended(tmp_path):
    append_line(tmp_path / "lines", b"a")
    append_line(tmp_path / "lines", "β".encode())
    assert (tmp_path / "lines").read_text(encoding="utf-8") == "a\nβ\n"


def test_a_line_that_cannot_be_appended_leaves_the_file_as_long_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    append_line(path, b"first")
    failing(monkeypatch, OSError(errno.ENOSPC, "full"))
    with pytest.raises(OSError, match="full"):
        append_line(path, b"second")
    assert path.read_text() == "first\n"


def test_of_a_line_that_only_half_fits_nothing_stays(tmp_path):
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    path = tmp_path / "lines"
    append_line(path, b"x" * 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            append_line(path, b"y" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_text() == "x" * 1000 + "\n"


def test_a_half_written_line_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"a": 1}\n{"b"')
    append_line(path, b'{"c": 3}')
    assert path.read_bytes() == b'{"a": 1}\n{"b"\n{"c": 3}\n'


def save(folder, *places):
    for epoch, batch in places:
        parts = {"w": torch.full((3,), float(epoch))}
        save_state(folder, epoch, batch, {"epoch": epoch, "batch": batch, "parts": parts})


def test_a_state_comes_back_and_the_one_before_is_kept(tmp_path):
    assert load_state(tmp_path) is None
    assert load_state(tmp_path / "nowhere") is None
    save(tmp_path, (1, 0), (2, 0), (2, 50), (3, 0))
    found = load_state(tmp_path)
    assert found["epoch"] == 3
    assert torch.equal(found["parts"]["w"], torch.full((3,), 3.0))
    assert names(tmp_path) == [
        f"state-{place}.{kind}"
        for place in ("00002-000050", "00003-000000")
        for kind in ("json", "pt")
    ]


def test_what_killed_processes_left_is_swept_away(tmp_path):
    save(tmp_path, (1, 0))
    (tmp_path / "state-00002-000000.pt").write_bytes(b"killed before its note was written")
    (tmp_path / ".state-00002-000000.pt-12345678.tmp").write_bytes(b"killed while writing")
    (tmp_path / "epochs.jsonl").write_text("{}\n")
    assert load_state(tmp_path)["epoch"] == 1
    save(tmp_path, (3, 0))
    assert [name for name in names(tmp_path) if name.endswith(".pt")] == [
        "state-00001-000000.pt",
        "state-00003-000000.pt",
    ]
    assert (tmp_path / "epochs.jsonl").exists()
    assert not list(tmp_path.glob(".*"))


def newest(folder, kind):
    return folder / f"state-00002-000000.{kind}"


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


BREAKS = {
    "cut": lambda f: newest(f, "pt").write_bytes(newest(f, "pt").read_bytes()[:500]),
    "empty": lambda f: newest(f, "pt").write_bytes(b""),
    "a bit": lambda f: flip(newest(f, "pt")),
    "note cut": lambda f: newest(f, "json").write_bytes(b'{"sha256": "12'),
    "note empty": lambda f: newest(f, "json").write_bytes(b""),
    "note a list": lambda f: newest(f, "json").write_bytes(b"[]"),
    "note without": lambda f: newest(f, "json").write_bytes(b"{}"),
    "note binary": lambda f: newest(f, "json").write_bytes(b"\xff\x00"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_state_falls_back_to_the_one_before_with_a_warning(tmp_path, what):
    save(tmp_path, (1, 0), (2, 0))
    BREAKS[what](tmp_path)
    with pytest.warns(UserWarning, match=r"state-00002-000000\.pt is broken \(.+\)"):
        assert load_state(tmp_path)["epoch"] == 1


def test_without_a_whole_state_there_is_none(tmp_path):
    save(tmp_path, (1, 0), (2, 0))
    for path in tmp_path.glob("*.pt"):
        flip(path)
    with pytest.warns(UserWarning, match="is broken") as warned:
        assert load_state(tmp_path) is None
    assert len(warned) == 2


class Hostile:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def plant(folder, content):
    """A state that someone else has written, with the right checksum."""
    newest(folder, "pt").write_bytes(content)
    note = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    newest(folder, "json").write_text(json.dumps(note))


def hostile_zip(folder, trace):
    torch.save({"epoch": Hostile(trace)}, folder / "hostile")
    content = (folder / "hostile").read_bytes()
    (folder / "hostile").unlink()
    return content


@pytest.mark.parametrize(
    "content",
    [
        hostile_zip,
        lambda _, trace: pickle.dumps(Hostile(trace), protocol=2),
        lambda *_: b"",
        lambda *_: b"PK\x03\x04 and nothing more",
        lambda *_: b"\x80\x02.",
        lambda *_: b"cnowhere\nnothing\n.",
        lambda *_: os.urandom(200),
    ],
    ids=["torch", "pickle", "empty", "zip", "stop", "module", "random"],
)
def test_a_state_that_is_none_is_refused_and_nothing_in_it_is_run(tmp_path, content):
    save(tmp_path, (1, 0))
    plant(tmp_path, content(tmp_path, tmp_path / "trace"))
    with pytest.warns(UserWarning, match="is broken"):
        assert load_state(tmp_path)["epoch"] == 1
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "The disk is full."),
        (errno.EDQUOT, "The disk is full."),
        (errno.EIO, r"Writing failed \(.*went wrong.*\)\."),
    ],
    ids=["full", "quota", "other"],
)
def test_a_failing_disk_is_a_sentence_that_says_what_is_safe(number, reason):
    with (
        pytest.raises(RunError, match=rf"{reason} 3 epochs are safe\. .*repeat the command"),
        explain_write_errors("3 epochs are safe."),
    ):
        raise OSError(number, "went wrong")


def test_a_full_disk_leaves_the_states_that_are_there(tmp_path, monkeypatch):
    save(tmp_path, (1, 0), (2, 0))
    before = names(tmp_path)
    failing(monkeypatch, OSError(errno.ENOSPC, "full"))
    with pytest.raises(OSError, match="full"):
        save(tmp_path, (3, 0))
    assert names(tmp_path) == before
    assert load_state(tmp_path)["epoch"] == 2


def test_a_state_whose_note_was_not_written_does_not_count(tmp_path, monkeypatch):
    save(tmp_path, (1, 0))
    original = run_folder.write_atomically

    def killed(path, content):
        if path.suffix == ".json":
            raise KeyboardInterrupt
        original(path, content)

    monkeypatch.setattr(run_folder, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, (2, 0))
    assert load_state(tmp_path)["epoch"] == 1


def test_a_broken_state_is_not_kept_as_the_one_before(tmp_path):
    save(tmp_path, (4, 0), (4, 37))
    (tmp_path / "state-00004-000037.pt").write_bytes(b"broken")
    with pytest.warns(UserWarning, match="is broken"):
        assert load_state(tmp_path)["batch"] == 0
    remove_states_after(tmp_path, 4, 0)
    save(tmp_path, (5, 0))
    assert [name[6:18] for name in names(tmp_path) if name.endswith("pt")] == [
        "00004-000000",
        "00005-000000",
    ]


def save_weights(path, parts):
    RunFolder(Config(), path).save_weights(parts)


def test_weights_come_back_as_they_were(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(
        memory_format=torch.channels_last
    )
    save_weights(tmp_path, {"": network.state_dict()})
    found = load_file(tmp_path / "weights.safetensors")
    assert found.keys() == network.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in network.state_dict().items())


def test_several_parts_are_told_apart(tmp_path):
    parts = {"generator": {"a": torch.ones(2)}, "critic": {"a": torch.zeros(2)}}
    save_weights(tmp_path, parts)
    found = load_file(tmp_path / "weights.safetensors")
    assert {name: float(value[0]) for name, value in found.items()} == {
        "generator.a": 1.0,
        "critic.a": 0.0,
    }


def test_tied_weights_are_under_each_of_their_names_and_can_be_probed(tmp_path):
    network = build_language_network("lstm1", 40, width=0.05, tied=True)
    assert network.decoder.weight is network.embedding.weight
    path = tmp_path / "weights.safetensors"
    save_weights(tmp_path, {"": network.state_dict()})
    found = load_file(path)
    assert torch.equal(found["decoder.weight"], found["embedding.weight"])
    fresh = build_language_network("lstm1", 40, width=0.05, tied=True)
    fresh.load_state_dict(found)
    assert torch.equal(fresh.decoder.weight, network.decoder.weight)
    by_name = {layer.name: layer for layer in rankwise.probe(path).layers}
    for layer in rankwise.probe(network).probed:
        assert by_name[layer.name].quality == pytest.approx(layer.quality, abs=1e-6)


def test_a_file_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    save_weights(tmp_path, {"": {"a": torch.ones(2)}})

    def fail(_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="broken"):
        save_weights(tmp_path, {"": {"a": torch.zeros(2)}})
    assert load_file(path)["a"].tolist() == [1.0, 1.0]


def test_without_safetensors_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install safetensors"):
        save_weights(tmp_path, {"": {}})


def test_a_probe_of_the_file_has_the_layers_in_the_networks_order(tmp_path):
    network = nn.ModuleDict({"stem": nn.Linear(4, 4), "body": nn.Linear(4, 4)})
    save_weights(tmp_path, {"": network.state_dict()})
    found = rankwise.probe(tmp_path / "weights.safetensors")
    assert [layer.name for layer in found.layers] == list(network.state_dict())
