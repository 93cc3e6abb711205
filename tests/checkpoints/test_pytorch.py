from __future__ import annotations

import io
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.errors import CheckpointError, UnsafeFileError


class Unknown:
    pass


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def save(request: pytest.FixtureRequest, tmp_path: Path):
    def save(content: object, name: str = "w.pt") -> Path:
        path = tmp_path / name
        torch.save(content, path, _use_new_zipfile_serialization=request.param)
        return path

    return save


def test_code_is_never_run(tmp_path: Path, save) -> None:
    path = save({"w": torch.ones(2), "x": Payload(tmp_path / "pwned")})
    with pytest.raises(UnsafeFileError, match=r"'(posix|nt)\.system'.*state_dict") as caught:
        open_weights(path)
    assert not (tmp_path / "pwned").exists()
    assert str(caught.value).isprintable()


def test_unknown_classes_are_named(save) -> None:
    content = {"w": torch.ones(2), "config": Unknown()}
    with pytest.raises(UnsafeFileError, match=r"'[\w.]*Unknown', .*safetensors") as caught:
        open_weights(save(content))
    assert str(caught.value).count("\n") == 0


def test_whole_modules_are_refused(save) -> None:
    with pytest.raises(UnsafeFileError, match=r"torch\.nn\.modules\.linear\.Linear"):
        open_weights(save(torch.nn.Linear(2, 2)))


def test_a_module_whose_state_dict_was_saved(save) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    weights = open_weights(save(model.state_dict()))
    assert [w.name for w in weights.tensors] == list(model.state_dict())
    assert weights.notes == ()
    for weight, expected in zip(weights.tensors, model.state_dict().values(), strict=True):
        assert torch.equal(weight.load(), expected)


def test_a_training_checkpoint(save) -> None:
    model = torch.nn.Linear(3, 2)
    state = {"step": torch.tensor(1.0), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
    optimizer = {"state": {0: state, 1: state}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    average = OrderedDict((name, tensor * 0) for name, tensor in model.state_dict().items())
    content = {
        "epoch": 7,
        "model": model.state_dict(),
        "model_ema": average,
        "optimizer": optimizer,
    }
    path = save(content)
    weights = open_weights(path)
    assert torch.equal(weights.tensors[0].load(), model.weight)
    choice, left_out = weights.notes
    assert "'model'" in choice
    assert "'model_ema' (2 tensors)" in choice
    assert "'optimizer'" in left_out
    assert "6 tensors" in left_out
    assert open_weights(path, key="model_ema").tensors[0].load().sum() == 0
    with pytest.raises(CheckpointError, match=r"w\.pt: .* 'ema'.*'model', "):
        open_weights(path, key="ema")


def test_parameters_come_without_their_gradient(save) -> None:
    (weight,) = open_weights(save({"w": torch.nn.Parameter(torch.ones(2, 2))})).tensors
    assert not weight.load().requires_grad
    assert type(weight.load()) is torch.Tensor


def test_tied_tensors_have_one_identity(save) -> None:
    shared = torch.randn(4, 3)
    content = {"a": shared, "b": shared, "c": shared.clone(), "d": shared[:2], "e": shared.T}
    identity = {w.name: w.identity for w in open_weights(save(content)).tensors}
    assert identity["a"] == identity["b"]
    assert len(set(identity.values())) == 4
    empty = open_weights(save({"a": torch.empty(0), "b": torch.empty(0)})).tensors
    assert [w.identity for w in empty] == [None, None]


def test_two_files_share_no_identity(save) -> None:
    first = open_weights(save({"w": torch.ones(4, 3)}, "1.pt")).tensors[0].identity
    second = open_weights(save({"w": torch.ones(4, 3)}, "2.pt")).tensors[0].identity
    assert first != second


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (torch.ones(2, 3), ["tensor"]),
        ([torch.ones(2), torch.ones(2)], ["0", "1"]),
        ({"layer1": {"weight": torch.ones(2, 2)}, "n": 3}, ["layer1.weight"]),
    ],
)
def test_other_contents(save, content: object, expected: list[str]) -> None:
    assert [w.name for w in open_weights(save(content)).tensors] == expected


def test_without_tensors(save) -> None:
    with pytest.raises(CheckpointError, match=r"w\.pt: .*no tensors"):
        open_weights(save({"epoch": 3}))


@pytest.mark.parametrize(
    ("tensor", "status"),
    [
        (torch.eye(3).to_sparse(), "unreadable"),
        (torch.empty(3, 3, device="meta"), "no data"),
        (torch.ones(1).expand(2**20, 2**20), "unreadable"),
    ],
)
def test_tensors_that_cannot_be_probed_get_a_row(tmp_path: Path, tensor, status: str) -> None:
    torch.save({"odd": tensor, "w": torch.ones(2)}, tmp_path / "w.pt")
    odd, good = open_weights(tmp_path / "w.pt").tensors
    assert odd.shape == tensor.shape
    assert odd.obstacle is not None
    assert odd.obstacle[0] == status
    with pytest.raises(CheckpointError, match="'odd' can't be read"):
        odd.load()
    assert good.load().sum() == 2


@pytest.mark.filterwarnings("ignore")  # PyTorch calls quantised tensors deprecated
def test_quantised_tensors_get_a_row(tmp_path: Path) -> None:
    torch.save(
        {"q": torch.quantize_per_tensor(torch.ones(2, 2), 1.0, 0, torch.qint8)}, tmp_path / "w"
    )
    (weight,) = open_weights(tmp_path / "w").tensors
    assert weight.obstacle is not None
    assert weight.obstacle[0] == "quantised"


def test_small_repeated_tensors_are_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1).expand(10, 10)}, tmp_path / "w.pt")
    assert open_weights(tmp_path / "w.pt").tensors[0].load().sum() == 100


def test_the_zip_format_is_mapped_not_read(tmp_path: Path, monkeypatch) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt")
    seen = []
    real = torch.load

    def spy(*args, **kwargs):
        seen.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "load", spy)
    open_weights(tmp_path / "w.pt").tensors[0].load()
    assert seen == [{"map_location": "cpu", "weights_only": True, "mmap": True}]


def _rezip(path: Path, compression: int = zipfile.ZIP_STORED, **changes: bytes | None) -> None:
    """Writes a zip archive again, entries by their last name changed or (None) left out."""
    source = path.with_suffix(".old")
    shutil.move(path, source)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", compression) as new:
        for entry in old.infolist():
            content = changes.get(Path(entry.filename).name.replace(".", "_"), old.read(entry))
            if content is not None:
                new.writestr(entry.filename, content)


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(99)}, tmp_path / "w.pt")
    _rezip(tmp_path / "w.pt", zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="is compressed"):
        open_weights(tmp_path / "w.pt")


def _patch_directory(path: Path, place: int, value: bytes) -> None:
    """Changes a field of the last entry in a zip archive's directory."""
    content = bytearray(path.read_bytes())
    start = content.rfind(b"PK\x01\x02") + place
    content[start : start + len(value)] = value
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (10, b"\x08\x00", "is compressed"),
        (24, b"\x00\x00\x00\x01", "is compressed"),
        (20, b"\x00\x00\x00\x01\x00\x00\x00\x01", "beyond the end of the file"),
        (8, b"\x01", "encrypted"),
    ],
)
def test_directories_that_lie_are_refused(
    tmp_path: Path, place: int, value: bytes, said: str
) -> None:
    torch.save({"w": torch.ones(99)}, tmp_path / "w.pt")
    _rezip(tmp_path / "w.pt")
    _patch_directory(tmp_path / "w.pt", place, value)
    with pytest.raises(CheckpointError, match=said):
        open_weights(tmp_path / "w.pt")


def test_what_torch_warns_of_stays_inside(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(9)}, tmp_path / "w.pt")
    _rezip(tmp_path / "w.pt", data_pkl=b"\x80\x03}.")  # an unusual protocol makes it warn
    with pytest.raises(CheckpointError, match="no tensors"):
        open_weights(tmp_path / "w.pt")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(99)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt", "a") as archive:
        archive.writestr("w/data.pkl", b"other")
    with pytest.raises(CheckpointError, match=r"'w/data\.pkl' twice"):
        open_weights(tmp_path / "w.pt")


def _global(module: str, name: str) -> bytes:
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"\x80\x02.",
        b"\x80\x02}.",
        b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94.",
        b"\x80\x02X\xff\xff\xff\x7f.",
        b"\x80\x02" + _global("os", "system") + b"X\x02\x00\x00\x00id\x85R.",
        b"\x80\x02" + _global("builtins", "eval") + b"X\x01\x00\x00\x001\x85R.",
        b"\x80\x02" + _global("evil\x1b[31m", "x") + b".",
        b"\x80\x02" + _global("torch", "FloatTensor") + b"\x8a\x08" + b"\xff" * 7 + b"\x7f\x85R.",
        b"\x80\x02" + _global("builtins", "bytearray") + b"\x8a\x06" + b"\xff" * 5 + b"\x7f\x85R.",
        b"\x80\x02" + _global("collections", "OrderedDict") + b")R}X\x01\x00\x00\x00wK\x01sb.",
        b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
        b"\x80\x02" + b"(" * 50_000,
        b"\x80\x02h\x07.",
        b"\x80\x02K\x01Q.",
    ],
)
def test_hostile_pickles_end_in_one_sentence(tmp_path: Path, program: bytes) -> None:
    torch.save({"w": torch.ones(9)}, tmp_path / "w.pt")
    _rezip(tmp_path / "w.pt", data_pkl=program)
    with pytest.raises(CheckpointError) as caught:
        open_weights(tmp_path / "w.pt")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_a_missing_storage_is_noticed(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(9)}, tmp_path / "w.pt")
    _rezip(tmp_path / "w.pt", **{"0": None})
    with pytest.raises(CheckpointError):
        open_weights(tmp_path / "w.pt")


def test_a_storage_cut_short_never_reads_beyond_the_file(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(10**6)}, tmp_path / "w.pt")
    _rezip(tmp_path / "w.pt", **{"0": b"\0" * 8})
    with pytest.raises(CheckpointError):
        open_weights(tmp_path / "w.pt").tensors[0].load()


def test_a_legacy_file_with_a_pickle_behind_it(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer, _use_new_zipfile_serialization=False)
    start = buffer.getvalue()[:15]
    (tmp_path / "w.pt").write_bytes(start + pickle.dumps(Payload(tmp_path / "pwned"), protocol=2))
    with pytest.raises(CheckpointError):
        open_weights(tmp_path / "w.pt")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "new", [{"a": torch.ones(2)}, {"a": torch.ones(99), "b": torch.ones(3)}], ids=["fewer", "other"]
)
def test_a_file_that_changes_is_noticed(tmp_path: Path, monkeypatch, new: dict) -> None:
    monkeypatch.setattr("rankwise.checkpoints.pytorch._BUDGET", 100)
    torch.save({"a": torch.ones(99), "b": torch.ones(2)}, tmp_path / "w.pt")
    first, second = open_weights(tmp_path / "w.pt").tensors
    first.load()
    torch.save(new, tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="changed while"):
        second.load()
