"""Folders of torch.distributed.checkpoint, written by PyTorch itself, and then damaged."""

import math
import os
import pickle
import shutil
from dataclasses import replace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.checkpoints.source import FileSource
from rankwise.errors import CheckpointError, UnsafeFileError
from tests.checkpoints.dcp_writer import save_dcp
from tests.optim.distributed.launch import launch


def make_state():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 6))
    optimizer = torch.optim.Adam(model.parameters())
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    return {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 3}


def edit(folder, change):
    """Rewrite the metadata of a checkpoint; what `change` returns is put in its place."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())  # noqa: S301 - written by this test
    result = change(metadata)
    path.write_bytes(pickle.dumps(metadata if result is None else result))
    return folder


def assert_same(weights, expected):
    assert [weight.name for weight in weights.tensors] == list(expected)
    for weight in weights.tensors:
        tensor = weight.load()
        assert (tensor.dtype, tuple(tensor.shape)) == (weight.dtype, weight.shape)
        # As bytes: equality of numbers that are no numbers, and of types that have no comparison.
        one, other = (t.contiguous().reshape(-1) for t in (tensor, expected[weight.name]))
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_a_training_state_is_read_like_a_pytorch_file(tmp_path):
    state = make_state()
    folder = save_dcp(state, tmp_path / "step-3")
    weights = open_weights(folder)
    assert_same(weights, state["model"])
    assert weights.source == str(folder)
    torch.save(state, tmp_path / "w.pt")
    notes = open_weights(tmp_path / "w.pt").notes
    # Single numbers of the optimizer are tensors in both, its lists of parameters in none.
    assert weights.notes[: len(notes)] == notes
    assert weights.notes[len(notes)] == "put together from 1 file of a distributed checkpoint"
    assert "items without tensors left out" in weights.notes[-1]
    moments = open_weights(folder, key="optim.state.0").tensors
    assert {weight.name for weight in moments} >= {"exp_avg", "exp_avg_sq"}
    with pytest.raises(CheckpointError, match=r"no part 'ema'.*'model'"):
        open_weights(folder, key="ema")


def test_a_flat_state_keeps_the_order_of_the_network(tmp_path):
    state = {f"layers.{i}.{name}": torch.randn(4, 4) for i in (10, 9) for name in ("w2", "w1")}
    assert_same(open_weights(save_dcp(state, tmp_path / "c")), state)
    assert rankwise.probe(tmp_path / "c").probed


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float16", "float64", "float8_e4m3fn", "complex64", "int8", "uint16", "bool"],
)
def test_tensors_of_every_type(tmp_path, dtype):
    numbers = torch.randn(6, 5).abs() * 3
    state = {"a.w": numbers.to(getattr(torch, dtype)), "b.w": numbers[0, 0].to(torch.bfloat16)}
    assert_same(open_weights(save_dcp(state, tmp_path / "c")), state)


def test_tensors_of_every_layout(tmp_path):
    base = torch.randn(4, 6, 5, 3)
    state = {
        "a.channels_last": base.to(memory_format=torch.channels_last),
        "a.transposed": base.transpose(0, 2),
        "a.part": base[1:3, ::2],
        "a.empty": torch.empty(0, 3),
        "a.number": torch.tensor(2.5),
        "a.parameter": torch.nn.Parameter(torch.ones(3, 2)),
    }
    weights = open_weights(save_dcp(state, tmp_path / "c"))
    assert_same(weights, {name: tensor.detach() for name, tensor in state.items()})
    for weight in weights.tensors:
        if weight.shape and weight.shape[0] > 1:
            assert torch.equal(weight.load_rows(1, 1), state[weight.name].detach()[1:2])


@pytest.mark.parametrize("options", [{"thread_count": 2}, {"single_file_per_rank": False}])
def test_several_files_of_one_process(tmp_path, options):
    state = make_state()
    folder = save_dcp(state, tmp_path / "c", **options)
    assert len(list(folder.glob("*.distcp"))) > 1
    assert_same(open_weights(folder), state["model"])


def save_sharded(path, mesh_shape, kinds):
    """Save tensors that are split over processes, in several ways; return them whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", tuple(mesh_shape))
    torch.manual_seed(0)
    whole = {
        "a.rows": torch.randn(7, 5),
        "a.few_rows": torch.randn(1, 5),
        "a.columns": torch.randn(4, 9).to(torch.bfloat16),
        "a.whole": torch.randn(3, 3),
        "a.number": torch.tensor(4.0),
    }
    axes = {"a.rows": 0, "a.few_rows": 0, "a.columns": 1}
    state = {}
    for name, tensor in whole.items():
        placements = [
            Shard((axes[name] + place) % tensor.ndim)
            if kind == "shard" and name in axes
            else Replicate()
            for place, kind in enumerate(kinds)
        ]
        state[name] = distribute_tensor(tensor, mesh, placements)
    dcp.save({"model": state, "step": 3}, checkpoint_id=path)
    return whole


def save_fsdp(path):
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 31), torch.nn.Linear(31, 3)).bfloat16()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
    return {name: tensor.full_tensor() for name, tensor in weights.items()}


@pytest.mark.parametrize(
    ("mesh", "kinds"),
    [((2,), ["shard"]), ((2, 2), ["shard", "shard"]), ((2, 2), ["replicate", "shard"])],
)
def test_tensors_split_over_processes_are_put_together(tmp_path, mesh, kinds):
    path = str(tmp_path / "c")
    whole, *_ = launch(
        save_sharded, math.prod(mesh), tmp_path, path=path, mesh_shape=mesh, kinds=kinds
    )
    weights = open_weights(path)
    assert_same(weights, whole)
    for weight in weights.tensors:
        for start in range(weight.shape[0] if weight.shape else 0):
            for count in range(weight.shape[0] - start + 1):
                rows = weight.load_rows(start, count)
                assert torch.equal(rows, whole[weight.name][start : start + count])


def test_what_fsdp_saves(tmp_path):
    path = tmp_path / "c"
    whole, *_ = launch(save_fsdp, 2, tmp_path, path=str(path))
    weights = open_weights(path)
    assert_same(weights, whole)
    assert weights.notes[0] == "weights taken from 'model'"
    (path / "__1_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"missing.*'__1_0\.distcp'"):
        open_weights(path)


def test_opening_reads_no_data(tmp_path, monkeypatch):
    folder = save_dcp({"a.w": torch.randn(300, 300)}, tmp_path / "c")
    read, real = [], FileSource.read

    def count(source, start, length):
        read.append((source.path.name, length))
        return real(source, start, length)

    monkeypatch.setattr(FileSource, "read", count)
    monkeypatch.setattr(FileSource, "read_tensor", None)
    open_weights(folder)
    assert sum(length for name, length in read if name.endswith(".distcp")) < 100


def test_the_configuration_beside_it_is_read(tmp_path):
    folder = save_dcp({"a.w": torch.ones(2, 2)}, tmp_path / "c")
    (folder / "config.json").write_text('{"num_attention_heads": 4}')
    assert open_weights(folder).config == {"num_attention_heads": 4}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_metadata_of_every_protocol(tmp_path, protocol):
    state = make_state()
    folder = save_dcp(state, tmp_path / "c")
    metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - written here
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol))
    assert_same(open_weights(folder), state["model"])


def test_without_a_plan_the_names_are_flat(tmp_path):
    state = make_state()
    folder = edit(
        save_dcp(state, tmp_path / "c"), lambda metadata: replace(metadata, planner_data=None)
    )
    names = {weight.name for weight in open_weights(folder, key=".").tensors}
    assert {f"model.{name}" for name in state["model"]} <= names


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Stranger:
    pass


def put_in(place, value):
    def change(metadata):
        if place == "root":
            return value
        if place == "plan":
            metadata.planner_data["x"] = value
        elif place == "key":
            metadata.state_dict_metadata[value] = next(iter(metadata.state_dict_metadata.values()))
        else:
            metadata.storage_meta.modules.append(value)
        return None

    return change


@pytest.mark.parametrize("place", ["root", "plan", "modules", "key"])
def test_code_is_never_run(tmp_path, place):
    folder = save_dcp({"a.w": torch.ones(2, 2)}, tmp_path / "c")
    edit(folder, put_in(place, Payload(tmp_path / "pwned")))
    with pytest.raises(UnsafeFileError, match=r"'(posix|nt)\.system'.*nothing was run") as caught:
        open_weights(folder)
    assert not (tmp_path / "pwned").exists()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [Stranger(), torch.ones(2), bytearray(3), {1, 2}, b"x", 2**80])
def test_what_metadata_never_contains_is_refused(tmp_path, value):
    folder = save_dcp({"a.w": torch.ones(2, 2)}, tmp_path / "c")
    edit(folder, put_in("plan", value))
    with pytest.raises(CheckpointError, match=r"\.metadata: (refers to|contains) "):
        open_weights(folder)


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"\x80",
        b"\x80\x04.",
        b"\x80\x04N.",
        b"\x80\x04R.",
        b"\x80\x04(.",
        b"\x80\x04u.",
        b"\x80\x04\x94.",
        b"\x80\x04h\x07.",
        b"\x80\x04X\xff\xff\xff\xff.",
        b"\x80\x04\x93.",
        b"\x80\x04\x8c\x02os(\x8c\x06system\x93.",  # a mark between the texts of a name
        b"\x80\x04\x8c\x02os\x94Nb\x8c\x06system\x93.",
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR.",
        b"\x80\x02(X\x01\x00\x00\x00aios\nsystem\n.",
        b"\x80\x02ctorch\nSize\n(J\xff\xff\xff\x7ftR.",
        b"\x80\x02(S'storage'\nQ.",
        b"\x80\x02}(" + b")" + b"\x85" * 1_000_000 + b"K\x01u.",  # deep tuples overflow the stack
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x02]" + b"q\x00(h\x00h\x00e" * 40 + b".",
    ],
)
def test_hostile_metadata_ends_in_one_sentence(tmp_path, program):
    folder = save_dcp({"a.w": torch.ones(2, 2)}, tmp_path / "c")
    (folder / ".metadata").write_bytes(program)
    with pytest.raises(CheckpointError, match=r"\.metadata: ") as caught:
        open_weights(folder)
    assert str(caught.value).isprintable()


def test_names_of_tensors_may_be_those_of_types(tmp_path):
    # The pickle contains these texts once, where they are parts of names of types and classes.
    names = ["torch", "float32", "Size", "Metadata", "torch.distributed.checkpoint.metadata"]
    state = {name: torch.full((3, 2), float(i)) for i, name in enumerate(names)}
    weights = open_weights(save_dcp({"model": state}, tmp_path / "c"), key="model")
    assert {weight.name: weight.load()[0, 0].item() for weight in weights.tensors} == {
        name: i for i, name in enumerate(names)
    }


def test_what_is_remembered_is_what_the_loader_remembers(tmp_path):
    # Between the texts of a name, which are written as one, lies a value for key 5. The loader
    # would not see it, and nest the tuple that it has there deeper and deeper.
    name = b"\x8c\x05torch" + b"Nq\x05b" + b"\x8c\x04Size\x93"
    first = b")" + b"\x85" * 7 + b"q\x05N"
    program = b"\x80\x02}(" + first + 150_000 * (name + b"h\x05" + b"\x85" * 7 + b"q\x05")
    folder = save_dcp({"a.w": torch.ones(2, 2)}, tmp_path / "c")
    (folder / ".metadata").write_bytes(program + b"h\x05K\x01u.")
    with pytest.raises(CheckpointError, match="changes a text"):
        open_weights(folder)


def test_huge_metadata_is_refused_unread(tmp_path):
    folder = save_dcp({"a.w": torch.ones(2, 2)}, tmp_path / "c")
    with (folder / ".metadata").open("r+b") as file:
        file.truncate(33 * 2**20)
    with pytest.raises(CheckpointError, match="too large"):
        open_weights(folder)


def place_of(metadata, name="a.w"):
    return next(
        (index, place) for index, place in metadata.storage_data.items() if index.fqn == name
    )


def move(**fields):
    """Change where the piece of a.w lies."""

    def change(metadata):
        index, place = place_of(metadata)
        metadata.storage_data[index] = replace(place, **fields)

    return change


@pytest.fixture
def folder(tmp_path):
    return save_dcp({"a.w": torch.randn(6, 4), "b.w": torch.ones(6, 4)}, tmp_path / "c")


@pytest.mark.parametrize("name", ["../w", "/etc/passwd", "a/../../w", "..\\w", "C:\\w", "", "out"])
def test_files_outside_of_the_folder_are_refused(tmp_path, folder, name):
    shutil.copy(folder / "__0_0.distcp", tmp_path / "w")
    (folder / "out").symlink_to("../w")
    edit(folder, move(relative_path=name))
    with pytest.raises(UnsafeFileError, match="nothing was read"):
        open_weights(folder)


@pytest.mark.parametrize(
    ("name", "reason"),
    [(".metadata", "truncated"), (".", "regular file"), ("fifo", "regular file")],
)
def test_what_is_no_file_of_pieces_is_refused(folder, name, reason):
    os.mkfifo(folder / "fifo")
    edit(folder, move(relative_path=name, offset=0, length=10**5))
    with pytest.raises(CheckpointError, match=reason):
        open_weights(folder)


@pytest.mark.parametrize("fields", [{"offset": 2**40}, {"length": 2**40}, {"length": 10**6}])
def test_pieces_beyond_the_end_of_the_file_are_refused(folder, fields):
    edit(folder, move(**fields))
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        open_weights(folder)


def test_a_truncated_file_is_refused(folder):
    path = folder / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        open_weights(folder)


def test_two_tensors_may_not_share_their_bytes(folder):
    def change(metadata):
        index, _ = place_of(metadata)
        metadata.storage_data[index] = place_of(metadata, "b.w")[1]

    edit(folder, change)
    with pytest.raises(CheckpointError, match="overlap"):
        open_weights(folder)


def describe(**fields):
    """Change what the metadata says of a.w."""

    def change(metadata):
        tensor = metadata.state_dict_metadata["a.w"]
        for name, value in fields.items():
            setattr(tensor, name, value)

    return change


def chunks(*rows):
    return [
        dcp.metadata.ChunkStorageMetadata(torch.Size([start, 0]), torch.Size([count, width]))
        for start, count, width in rows
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"chunks": chunks((0, 7, 4))}, "outside"),
        ({"chunks": chunks((0, 6, 2**40))}, "outside"),
        ({"chunks": chunks((2**62, 2**62, 4))}, "outside"),
        ({"chunks": []}, "0 numbers, the whole has 24"),
        ({"chunks": chunks((0, 5, 4))}, "20 numbers, the whole has 24"),
        ({"chunks": chunks((0, 6, 4), (0, 6, 4))}, "overlap"),
        ({"chunks": chunks((3, 3, 4))}, "in no file"),
        ({"size": torch.Size([60, 4])}, "24 numbers, the whole has 240"),
        ({"size": torch.Size([2**40, 4])}, "24 numbers"),
        ({"size": torch.Size([24])}, "outside"),
        ({"properties": TensorProperties(torch.complex128)}, None),  # more bytes than its piece has
        ({"size": torch.Size([600, 400]), "chunks": chunks((0, 600, 400))}, "fewer bytes"),
    ],
)
def test_pieces_that_do_not_fit_give_a_row(folder, fields, reason):
    edit(folder, describe(**fields))
    bad, good = open_weights(folder).tensors
    assert good.load().sum() == 24
    if reason is None:
        assert bad.obstacle is None
    else:
        assert bad.obstacle[0] == rankwise.Status.UNREADABLE
        assert reason in bad.obstacle[1]
    with pytest.raises(CheckpointError):
        bad.load()
    assert {layer.name for layer in rankwise.probe(folder).layers} == {"a.w", "b.w"}


@pytest.mark.parametrize(
    "ranges",
    [
        [((0, 0), (4, 4)), ((2, 0), (2, 4))],  # along one axis
        [((0, 0), (4, 2)), ((2, 0), (2, 4)), ((0, 2), (4, 2))],  # along two
    ],
)
def test_as_many_numbers_as_needed_may_overlap_and_leave_a_gap(folder, ranges):
    def change(metadata):
        _, place = place_of(metadata)
        for offsets, _ in ranges:
            metadata.storage_data[MetadataIndex("a.w", offsets)] = place
        metadata.state_dict_metadata["a.w"].chunks = [
            dcp.metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            for offsets, sizes in ranges
        ]

    edit(folder, change)
    bad, good = open_weights(folder).tensors
    assert bad.obstacle == (rankwise.Status.UNREADABLE, "its pieces overlap")
    assert good.load().sum() == 24


def test_pieces_without_numbers_need_no_place(folder):
    edit(folder, describe(chunks=chunks((0, 6, 4), (3, 0, 4), (6, 0, 4))))
    assert open_weights(folder).tensors[0].load().shape == (6, 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"size": torch.Size([2**62, 2**62])},
        {"size": None},
        {"chunks": None},
        {"properties": None},
        {"properties": TensorProperties("float32")},
    ],
)
def test_tensors_without_a_description_are_refused(folder, fields):
    if not isinstance(getattr(fields.get("properties"), "dtype", torch.int8), torch.dtype):
        fields["properties"].dtype = "float32"
    edit(folder, describe(**fields))
    with pytest.raises(CheckpointError, match=r"'a\.w'"):
        open_weights(folder)


def test_shared_lists_of_pieces_take_no_time(tmp_path):
    folder = save_dcp({f"{i}.w": torch.ones(2, 2) for i in range(50)}, tmp_path / "c")

    def change(metadata):
        shared = chunks(*((i, 1, 2) for i in range(1000)))
        for tensor in metadata.state_dict_metadata.values():
            tensor.chunks = shared

    edit(folder, change)
    with pytest.raises(CheckpointError, match="more pieces of tensors than it has places"):
        open_weights(folder)


def test_a_piece_that_is_another_tensor_is_noticed(tmp_path):
    folder = save_dcp({"a.w": torch.ones(6, 4), "b.w": torch.ones(4, 6)}, tmp_path / "c")

    def change(metadata):
        (one, first), (other, second) = (place_of(metadata, name) for name in ("a.w", "b.w"))
        metadata.storage_data.update({one: second, other: first})

    edit(folder, change)
    weight = open_weights(folder).tensors[0]
    with pytest.raises(CheckpointError, match=r"'a\.w' has the shape \(4, 6\).* says \(6, 4\)"):
        weight.load()


def test_a_piece_that_runs_code_is_refused(tmp_path, folder):
    data = folder / "__0_0.distcp"
    torch.save(Payload(tmp_path / "pwned"), data)
    edit(folder, move(offset=0, length=data.stat().st_size))
    edit(folder, lambda metadata: metadata.storage_data.pop(place_of(metadata, "b.w")[0]) and None)
    weight = open_weights(folder).tensors[0]
    with pytest.raises(UnsafeFileError, match="nothing was run"):
        weight.load()
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"PK\5\6" + bytes(18), b"", b"\0" * 300])
def test_a_piece_that_is_no_archive_gives_a_sentence(folder, content):
    data = folder / "__0_0.distcp"
    data.write_bytes(bytes(300 - len(content)) + content)
    edit(folder, move(offset=0, length=300))
    edit(folder, lambda metadata: metadata.storage_data.pop(place_of(metadata, "b.w")[0]) and None)
    weight = open_weights(folder).tensors[0]
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: "):
        weight.load()


def test_a_file_that_changes_is_noticed(folder):
    weight = open_weights(folder).tensors[0]
    save_dcp({"a.w": torch.randn(6, 4), "b.w": torch.ones(6, 4)}, folder)
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        weight.load()


def test_two_items_in_one_place_are_refused(folder):
    edit(folder, lambda metadata: metadata.planner_data.update({"b.w": ("a.w",)}))
    with pytest.raises(CheckpointError, match="in one place"):
        open_weights(folder)
    edit(folder, lambda metadata: metadata.planner_data.update({"b.w": ("a.w", "x")}))
    with pytest.raises(CheckpointError, match="in one place"):
        open_weights(folder)


def test_compressed_pieces_are_refused(folder):
    edit(folder, move(transform_descriptors=["stream.zstd/1"]))
    with pytest.raises(CheckpointError, match=r"'stream\.zstd/1', which isn't supported"):
        open_weights(folder)


def test_pieces_stored_as_safetensors_are_refused(tmp_path):
    state = {"a.w": torch.ones(2, 2), "b.w": torch.ones(2, 2)}
    options = {"serialization_format": SerializationFormat.SAFETENSORS}
    folder = save_dcp(state, tmp_path / "c", **options)
    with pytest.raises(CheckpointError, match="stored as safetensors"):
        open_weights(folder)


def test_metadata_in_json_is_refused(folder):
    (folder / ".metadata").write_text("{}")
    with pytest.raises(CheckpointError, match="JSON"):
        open_weights(folder)


def test_a_piece_has_one_place(folder):
    def change(metadata):
        index = MetadataIndex("another", [0, 0])
        metadata.storage_data[index] = place_of(metadata)[1]
        object.__setattr__(index, "fqn", "a.w")  # a dictionary does not notice

    edit(folder, change)
    with pytest.raises(CheckpointError, match=r"two places for one piece of 'a\.w'"):
        open_weights(folder)


@pytest.mark.parametrize(("key", "value"), [("x", None), (MetadataIndex("x", [0]), "x")])
def test_the_table_of_places_has_nothing_else(folder, key, value):
    edit(folder, lambda metadata: metadata.storage_data.update({key: value}))
    with pytest.raises(CheckpointError, match="table of places with something else"):
        open_weights(folder)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_file_of_the_folder_is_not_enough(folder, name):
    with pytest.raises(CheckpointError, match=f"give the path of its folder, {folder}"):
        open_weights(folder / name)


def test_the_places_of_a_piece_are_numbers(folder):
    edit(folder, move(offset=1.5))
    assert "not described" in open_weights(folder).tensors[0].obstacle[1]
