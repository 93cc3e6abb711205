from __future__ import annotations

import io
import os
import pickle
import shutil
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwise.checkpoints import open_weights
from rankwise.checkpoints.pytorch.archive import _check_torch
from rankwise.checkpoints.pytorch.numpy_numbers import NumberType, read_number
from rankwise.checkpoints.pytorch.reader import read_torch_tree
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
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
@pytest.mark.parametrize("channels", [None, 0, 1])
def test_quantised_tensors_are_dequantised(save, dtype: torch.dtype, channels) -> None:
    numbers = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    if channels is None:
        tensor = torch.quantize_per_tensor(numbers, 0.02, 3, dtype)
    else:
        scales = torch.linspace(0.01, 0.05, numbers.shape[channels], dtype=torch.float64)
        zeros = torch.arange(numbers.shape[channels])
        tensor = torch.quantize_per_channel(numbers, scales, zeros, channels, dtype)
    path = save({"q": tensor, "t": tensor.T if channels is None else tensor, "w": torch.ones(2)})
    quantised, other, plain = open_weights(path).tensors
    assert quantised.obstacle is None
    assert quantised.stored == str(dtype).removeprefix("torch.")
    assert quantised.dtype == quantised.load().dtype == torch.float32
    torch.testing.assert_close(quantised.load(), tensor.dequantize())
    expected = tensor.dequantize()
    torch.testing.assert_close(other.load(), expected.T if channels is None else expected)
    assert plain.load().sum() == 2


@pytest.mark.filterwarnings("ignore")
def test_codes_of_four_bits_get_a_row(tmp_path: Path) -> None:
    scales, zeros = torch.ones(4), torch.zeros(4)
    tensor = torch.quantize_per_channel(torch.ones(4, 4), scales, zeros, 0, torch.quint4x2)
    torch.save({"q": tensor, "w": torch.ones(2)}, tmp_path / "w.pt")
    quantised, plain = open_weights(tmp_path / "w.pt").tensors
    assert quantised.obstacle is not None
    assert quantised.obstacle[0] == "quantised"
    assert quantised.shape == (4, 4)
    assert plain.load().sum() == 2


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
def test_nested_tensors_get_a_row(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    torch.save({"odd": nested, "w": torch.ones(2)}, tmp_path / "w.pt")
    odd, good = open_weights(tmp_path / "w.pt").tensors
    assert odd.obstacle is not None
    assert odd.obstacle[0] == "unreadable"
    assert good.load().sum() == 2


VIEWS = {
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "block": torch.arange(40.0).reshape(5, 8)[1:4, 2:7],
    "column": torch.arange(40.0).reshape(5, 8)[:, 3],
    "every other": torch.arange(40.0)[1::2],
    "windows": torch.arange(9.0).as_strided((5, 5), (1, 1)),
    "scalar": torch.arange(9.0)[4],
    "empty": torch.arange(9.0)[9:],
    "complex": torch.randn(3, 4, dtype=torch.complex64),
    "conjugate": torch.randn(3, 4, dtype=torch.complex64).conj(),
    "negative": torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "halves": torch.randn(3, 4).half(),
    "bfloat16": torch.randn(3, 4).bfloat16(),
    "float8": torch.randn(3, 4).to(torch.float8_e4m3fn),
    "unsigned": torch.arange(9).to(torch.uint16),
    "bools": torch.tensor([True, False]),
}


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("name", VIEWS)
def test_tensors_come_as_they_are(tmp_path: Path, name: str, byteorder: str) -> None:
    torch.save({"first": torch.ones(3), "w": VIEWS[name]}, tmp_path / "w.pt")
    if byteorder == "big":
        with zipfile.ZipFile(tmp_path / "w.pt") as archive:
            data = archive.read("w/data/1")
        parts = VIEWS[name].is_complex() or name == "negative"  # a number of two parts
        width = VIEWS[name].untyped_storage().nbytes() and (
            4 if parts else VIEWS[name].element_size()
        )
        swapped = b"".join(data[i : i + width][::-1] for i in range(0, len(data), width or 1))
        _rezip(tmp_path / "w.pt", byteorder=b"big", **{"0": bytes(12), "1": swapped})
    weight = open_weights(tmp_path / "w.pt").tensors[1]
    loaded = weight.load()
    assert (loaded.dtype, loaded.shape) == (weight.dtype, weight.shape)
    assert torch.equal(loaded.to(torch.complex64), VIEWS[name].to(torch.complex64))


def test_rows_are_read_alone(tmp_path: Path) -> None:
    stack = torch.randn(6, 3, 5)
    torch.save({"w": stack, "part": stack[2:], "t": stack.mT}, tmp_path / "w.pt")
    whole, part, transposed = open_weights(tmp_path / "w.pt").tensors
    assert whole.load_rows is not None
    assert torch.equal(whole.load_rows(1, 2), stack[1:3])
    assert torch.equal(part.load_slice(1, 2), stack[3:5])
    assert transposed.load_rows is None
    assert torch.equal(transposed.load_slice(1, 2), stack.mT[1:3])


def test_small_repeated_tensors_are_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1).expand(10, 10)}, tmp_path / "w.pt")
    assert open_weights(tmp_path / "w.pt").tensors[0].load().sum() == 100


def test_torch_is_asked_for_the_structure_alone(tmp_path: Path, monkeypatch) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "w.safetensors")  # an extension that torch believes
    seen = []
    real = torch.load

    def spy(file, **options):
        seen.append(options)
        assert isinstance(file, io.BytesIO)
        return real(file, **options)

    monkeypatch.setattr(torch, "load", spy)
    assert open_weights(tmp_path / "w.safetensors").tensors[0].load().sum() == 2
    (options,) = seen
    assert options["weights_only"] is True
    assert options["mmap"] is False
    assert options["map_location"] == "meta"


def test_an_older_torch_is_named(tmp_path: Path, monkeypatch) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt")
    real = torch.load

    def load_as_before(*args, **options):
        loaded = real(*args, **options)
        tensor = loaded["w"] if isinstance(loaded, dict) else loaded
        tensor.untyped_storage()._checkpoint_offset = None
        return loaded

    monkeypatch.setattr(torch, "load", load_as_before)
    _check_torch.cache_clear()
    with pytest.raises(CheckpointError, match=r"needs torch 2\.11"):
        open_weights(tmp_path / "w.pt")
    _check_torch.cache_clear()


def _save_quantised_per_channel(path: Path) -> None:
    scales, zeros = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_channel(torch.ones(4, 3), scales, zeros, 0, torch.qint8)
        torch.save({"q": tensor}, path)


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


@pytest.mark.parametrize("kept", [0, 8, 63])
def test_a_record_shorter_than_its_tensor_is_refused(tmp_path: Path, kept: int) -> None:
    torch.save({"w": torch.ones(4, 4), "v": torch.ones(4, 4)}, tmp_path / "w.pt")
    _rezip(tmp_path / "w.pt", **{"0": bytes(kept)})
    short, whole = open_weights(tmp_path / "w.pt").tensors
    assert short.obstacle == ("unreadable", f"truncated: {kept} of its 64 bytes are in the file")
    with pytest.raises(CheckpointError, match="truncated"):
        short.load()
    assert whole.load().sum() == 16


def test_a_record_shorter_than_the_scales_of_channels_is_refused(tmp_path: Path) -> None:
    _save_quantised_per_channel(tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    scales = next(name for name, size in sizes.items() if "/data/" in name and size == 32)
    _rezip(tmp_path / "w.pt", **{Path(scales).name: bytes(8)})
    (weight,) = open_weights(tmp_path / "w.pt").tensors
    assert weight.obstacle == ("unreadable", "truncated: 8 of its 32 bytes are in the file")


def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4, 4)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        program = archive.read("w/data.pkl")
    place = b"QK\x00K\x04K\x04\x86"  # from number 0 of the storage on, of shape (4, 4)
    assert program.count(place) == 1
    program = program.replace(place, b"QK\x08K\x04K\x04\x86")  # from number 8 on
    _rezip(tmp_path / "w.pt", data_pkl=program)
    (weight,) = open_weights(tmp_path / "w.pt").tensors
    assert weight.obstacle is not None
    assert "truncated" in weight.obstacle[1]


def test_a_legacy_file_with_a_pickle_behind_it(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer, _use_new_zipfile_serialization=False)
    start = buffer.getvalue()[:15]
    (tmp_path / "w.pt").write_bytes(start + pickle.dumps(Payload(tmp_path / "pwned"), protocol=2))
    with pytest.raises(CheckpointError):
        open_weights(tmp_path / "w.pt")
    assert not (tmp_path / "pwned").exists()


def test_a_number_repeated_many_times_is_not_measured(tmp_path: Path, save) -> None:
    path = save({"w": torch.ones(1).expand(8000, 8000), "v": torch.ones(2)})
    repeated, plain = open_weights(path).tensors
    assert repeated.obstacle == ("unreadable", "repeats 1 stored number to make 64000000")
    assert repeated.shape == (8000, 8000)
    assert plain.load().sum() == 2


def test_views_of_one_storage_keep_to_a_budget(tmp_path: Path, save, monkeypatch) -> None:
    monkeypatch.setattr("rankwise.checkpoints.pytorch.reader._MIN_BUDGET", 0)
    numbers = torch.randn(100, 50)
    views = {f"w{i}": numbers[i : 50 + i] for i in range(20)}
    weights = open_weights(save(views | {"tied": views["w0"]})).tensors
    read = [weight.name for weight in weights if weight.obstacle is None]
    assert read[-1] == "tied"  # shares the memory of another, so that it takes none
    assert 7 <= len(read) - 1 <= 9  # four times what is stored, each view half of it
    assert all("with the tensors before it" in w.obstacle[1] for w in weights if w.obstacle)


def test_a_legacy_file_without_its_data_is_refused(tmp_path: Path) -> None:
    """PyTorch would leave such a storage as it found the memory."""
    path = tmp_path / "w.pt"
    torch.save({"w": torch.ones(1000)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    place = content.rfind(b"]q\x00")  # the list of the storages that follow
    assert place > 0
    path.write_bytes(content[:place] + b"].")
    with pytest.raises(CheckpointError, match=r"its tensors need 4000 bytes, but the file has"):
        open_weights(path)


@pytest.mark.parametrize("name", ["größe".encode("latin1"), "größe".encode()])
def test_names_of_any_encoding_are_read(tmp_path: Path, name: bytes) -> None:
    torch.save({"w": torch.ones(9)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        program = archive.read("w/data.pkl")
    plain = b"X\x01\x00\x00\x00w"
    assert program.count(plain) == 1
    program = program.replace(plain, b"U" + bytes([len(name)]) + name)
    _rezip(tmp_path / "w.pt", data_pkl=program)
    (weight,) = open_weights(tmp_path / "w.pt").tensors
    assert weight.name == "größe"
    assert weight.load().sum() == 9


def test_a_text_that_is_no_text_is_said_to_be_one(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(9)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        program = archive.read("w/data.pkl").replace(
            b"X\x01\x00\x00\x00w", b"X\x01\x00\x00\x00\xff"
        )
    _rezip(tmp_path / "w.pt", data_pkl=program)
    with pytest.raises(CheckpointError, match="a text that is not UTF-8"):
        open_weights(tmp_path / "w.pt")


def test_a_record_that_is_not_where_the_directory_says_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(99)}, tmp_path / "w.pt")
    _rezip(tmp_path / "w.pt")
    _patch_directory(tmp_path / "w.pt", 42, (5).to_bytes(4, "little"))
    with pytest.raises(CheckpointError, match=r"not where the directory says|overlap"):
        open_weights(tmp_path / "w.pt")


NUMBERS = {
    "best": np.float64(0.75),
    "half": np.float16(0.5),
    "step": np.int64(-3),
    "byte": np.uint8(200),
    "done": np.bool_(True),
    "swapped": np.dtype(">i4").type(7),
}


def test_numbers_of_numpys_are_plain_numbers(save) -> None:
    path = save({**NUMBERS, "name": np.str_("x"), "model": {"fc.weight": torch.ones(2, 3)}})
    assert [weight.name for weight in open_weights(path).tensors] == ["fc.weight"]
    tree = read_torch_tree(path)
    expected = {name: value.item() for name, value in NUMBERS.items()}
    assert {name: tree[name] for name in NUMBERS} == expected
    assert {type(tree[name]) for name in NUMBERS} == {float, int, bool}
    assert tree["name"] is None


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (NumberType("f8", False, True), b"\0" * 6 + b"\xf8\x3f", 1.5),
        (NumberType("O8"), b"", None),
        (NumberType(["f8"]), b"\0" * 8, None),
        (NumberType("f8"), "text", None),
        (NumberType("f8"), b"abc", None),
        ("f8", b"\0" * 8, None),
        (None, None, None),
    ],
    ids=["float", "object", "list", "text", "too short", "name", "nothing"],
)
def test_only_a_plain_type_and_its_bytes_make_a_number(kind, data, expected) -> None:
    assert read_number(kind, data) == expected


def test_the_order_of_bytes_is_the_types() -> None:
    kind = NumberType("i2")
    kind.__setstate__((3, ">", None))
    assert read_number(kind, b"\x01\x00") == 256
    for state in (None, (), (3, "|"), (3, b">")):
        kind.__setstate__(state)
    assert kind.order == ">"


def test_only_files_of_torch_have_a_tree(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones(3))
    with pytest.raises(CheckpointError, match=r"not a file of torch\.save"):
        read_torch_tree(tmp_path / "w.npy")
