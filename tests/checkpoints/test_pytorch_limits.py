"""A pickle may not ask for more memory than its file can need."""

import io
import pickle
import zipfile

import pytest
import torch

import rankwise
from rankwise import CheckpointError


def write_zip(path, program):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3\n")
    return path


def make_call(module, name, *numbers):
    """Return a pickle of {"w": module.name(*numbers)}."""
    arguments = b"".join(pickle.dumps(number, 2)[2:-1] for number in numbers)
    call = f"c{module}\n{name}\n".encode() + b"(" + arguments + b"tR"
    return b"\x80\x02}X\x01\x00\x00\x00w" + call + b"s."


@pytest.mark.parametrize(
    ("module", "name", "numbers"),
    [
        ("builtins", "bytearray", (10,)),
        ("torch", "FloatTensor", (1 << 20, 1 << 20)),
        ("torch.storage", "UntypedStorage", (1 << 40,)),
        ("torch", "FloatStorage", (1 << 31,)),
    ],
)
def test_a_call_that_takes_memory_is_refused(tmp_path, module, name, numbers):
    program = make_call(module, name, *numbers)
    with pytest.raises(CheckpointError, match="more memory"):
        rankwise.probe(write_zip(tmp_path / "w.pt", program))


def test_a_number_that_comes_from_the_memo_is_seen(tmp_path):
    number = pickle.dumps(1 << 40, 2)[2:-1] + b"q\x05" + b"0"  # kept, and dropped
    program = b"\x80\x02" + number + b"ctorch\nFloatStorage\n" + b"(h\x05tR."
    with pytest.raises(CheckpointError, match="more memory"):
        rankwise.probe(write_zip(tmp_path / "w.pt", program))


@pytest.mark.parametrize("is_legacy", [False, True])
def test_large_numbers_among_the_values_do_no_harm(tmp_path, is_legacy):
    content = {
        "seed": 2**62,
        "times": [2**40, 2**50],
        "Tensor": "a text",
        "model": {"fc.weight": torch.randn(8, 8)},
    }
    torch.save(content, tmp_path / "w.pt", _use_new_zipfile_serialization=not is_legacy)
    assert [layer.name for layer in rankwise.probe(tmp_path / "w.pt").probed] == ["fc.weight"]


def test_a_legacy_file_may_not_claim_more_than_it_has(tmp_path):
    file = io.BytesIO()
    torch.save({"w": torch.zeros(3, 3)}, file, _use_new_zipfile_serialization=False)
    claim = b"J" + (2**31 - 1).to_bytes(4, "little")
    data = file.getvalue()
    assert data.count(b"K\x09") == 1
    (tmp_path / "w.pt").write_bytes(data.replace(b"K\x09", claim))
    with pytest.raises(CheckpointError, match="more memory"):
        rankwise.probe(tmp_path / "w.pt")


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize(
    "nested",
    [
        b")" + b"\x85" * 1_000_000,
        b"(" * 1_000_000 + b"t" * 1_000_000,
        b")" + b"\x85q\x00h\x00\x86" * 500_000,  # through the memo
    ],
)
def test_tuples_nested_without_end_are_refused(tmp_path, nested, is_legacy):
    # As a key, such a tuple is hashed, which overflows the stack and ends the process.
    program = b"\x80\x02}(" + nested + b"K\x01u."
    path = tmp_path / "w.pt"
    if is_legacy:
        file = io.BytesIO()
        torch.save({}, file, _use_new_zipfile_serialization=False)
        path.write_bytes(file.getvalue().replace(b"\x80\x02}q\x00.", program))
    else:
        write_zip(path, program)
    with pytest.raises(CheckpointError, match="nests more than 1000 tuples"):
        rankwise.probe(path)


def test_many_tuples_side_by_side_do_no_harm(tmp_path):
    shapes = [(i, (i, i)) for i in range(10_000)]
    torch.save({"fc.weight": torch.randn(8, 8), "shapes": shapes}, tmp_path / "w.pt")
    assert rankwise.probe(tmp_path / "w.pt").probed
