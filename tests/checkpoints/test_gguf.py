from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

import rankwise
from rankwise.checkpoints import open_weights
from rankwise.errors import ArgumentError, CheckpointError

RNG = np.random.default_rng(0)
FLOATS = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
INTEGERS = {"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}
UNSUPPORTED = {"Q8_1", "Q8_K", "Q1_0"}  # the package knows their sizes only
QUANTISED = [t for t in GGMLQuantizationType if t.name not in {*FLOATS, *INTEGERS, "BF16"}]


def _write(path: Path, tensors: dict, metadata: dict | None = None, **options) -> Path:
    """Write arrays, or pairs of bytes and a type, with the format's own writer."""
    alignment = options.pop("alignment", None)
    writer = gguf.GGUFWriter(path, "llama", **options)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in (metadata or {}).items():
        add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    for name, value in tensors.items():
        array, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _make_blocks(kind: GGMLQuantizationType, *shape: int) -> np.ndarray:
    """Random blocks; with exponents of 16-bit scales that are neither huge nor no number."""
    numbers, nbytes = GGML_QUANT_SIZES[kind]
    data = RNG.integers(0, 256, (*shape[:-1], shape[-1] // numbers * nbytes), dtype=np.uint8)
    return data & 0x3F


def _load(path: Path) -> dict:
    return {weight.name: weight for weight in open_weights(path).tensors}


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_types_are_what_the_package_computes(tmp_path: Path, kind) -> None:
    blocks = _make_blocks(kind, 6, 512)
    path = _write(tmp_path / "w.gguf", {"a.weight": (blocks, kind), "b": np.ones(3, np.float32)})
    weight = _load(path)["a.weight"]
    assert (weight.shape, weight.stored, weight.dtype) == ((6, 512), kind.name, torch.float32)
    if kind.name in UNSUPPORTED:
        assert weight.obstacle is not None
        assert weight.obstacle[0] is rankwise.Status.QUANTISED
        with pytest.raises(CheckpointError, match="can't turn into numbers"):
            weight.load()
        return
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == "a.weight")
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(dequantize(np.array(stored.data), kind))
    torch.testing.assert_close(weight.load(), expected, rtol=0, atol=0, equal_nan=True)
    rows = weight.load_rows(2, 3)
    torch.testing.assert_close(rows, expected[2:5], rtol=0, atol=0, equal_nan=True)
    with pytest.raises(ArgumentError):
        weight.load_rows(5, 2)


@pytest.mark.parametrize("order", list(gguf.GGUFEndian), ids=lambda order: order.name)
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_plain_types_in_both_byte_orders(tmp_path: Path, name: str, order) -> None:
    array = (100 * RNG.normal(size=(3, 4, 5))).astype((FLOATS | INTEGERS)[name])
    path = _write(tmp_path / "w.gguf", {"w": array.copy()}, endianess=order)
    weight = _load(path)["w"]
    assert weight.stored is None
    assert torch.equal(weight.load(), torch.from_numpy(array))
    assert torch.equal(weight.load_rows(1, 2), torch.from_numpy(array)[1:])


def test_bfloat16_keeps_its_type(tmp_path: Path) -> None:
    numbers = torch.randn(4, 8).to(torch.bfloat16)
    data = numbers.view(torch.uint8).numpy()
    path = _write(tmp_path / "w.gguf", {"w": (data, GGMLQuantizationType.BF16)})
    assert torch.equal(_load(path)["w"].load(), numbers)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q6_K"])
def test_blocks_of_a_big_endian_file(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    blocks = _make_blocks(kind, 4, 512)
    expected = torch.from_numpy(dequantize(blocks, kind))
    swapped = blocks.reshape(-1, GGML_QUANT_SIZES[kind][1]).copy()
    for place in {"Q4_K": (0, 2), "Q6_K": (208,)}.get(name, (0,)):
        swapped[:, [place, place + 1]] = swapped[:, [place + 1, place]]
    swapped = swapped.reshape(blocks.shape)
    big = gguf.GGUFEndian.BIG
    path = _write(tmp_path / "w.gguf", {"w": (swapped, kind)}, endianess=big)
    assert torch.equal(_load(path)["w"].load(), expected)


def test_blocks_of_mixed_numbers_in_a_big_endian_file_are_listed(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.IQ2_XS
    blocks = _make_blocks(kind, 4, 256)
    path = _write(tmp_path / "w.gguf", {"w": (blocks, kind)}, endianess=gguf.GGUFEndian.BIG)
    assert "big-endian" in rankwise.probe(path).layers[0].reason


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignments(tmp_path: Path, alignment: int) -> None:
    arrays = {f"{i}.weight": RNG.normal(size=(3, i + 1)).astype(np.float32) for i in range(4)}
    weights = _load(_write(tmp_path / "w.gguf", arrays, alignment=alignment))
    assert all(torch.equal(weights[n].load(), torch.from_numpy(a)) for n, a in arrays.items())


def test_names_of_llama_cpp_are_understood(tmp_path: Path) -> None:
    def draw(*shape: int) -> np.ndarray:
        return RNG.normal(size=shape).astype(np.float32)

    tensors = {
        "output.weight": draw(50, 32),
        "token_embd.weight": draw(50, 32),
        "blk.0.attn_norm.weight": draw(32),
        "blk.0.attn_output.weight": draw(32, 32),
        "blk.0.attn_qkv.weight": draw(64, 32),
        "blk.0.ffn_gate_exps.weight": draw(3, 24, 32),
        "blk.0.ssm_a": draw(32, 16),
        "blk.1.attn_k.weight": draw(16, 32),
        "blk.1.attn_q.weight": draw(32, 32),
    }
    heads = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": [2, 2]}
    path = _write(tmp_path / "w.gguf", tensors, {**heads, "general.name": "Tiny"})
    probe = rankwise.probe(path)
    layers = {layer.name: layer for layer in probe.layers}
    assert layers["token_embd.weight"].kind == "embedding"
    assert [n for n in layers if "exps" in n] == [
        f"blk.0.ffn_gate_exps.weight[{i}]" for i in range(3)
    ]
    assert layers["blk.0.ssm_a"].status is rankwise.Status.NOT_A_WEIGHT
    assert layers["blk.0.attn_norm.weight"].status is rankwise.Status.VECTOR
    assert next(iter(layers)) == "token_embd.weight"
    assert list(layers)[-1] == "output.weight"
    assert any("'Tiny'" in note and "'llama'" in note for note in probe.notes)
    split = {layer.name for layer in rankwise.probe(path, split="heads").layers}
    assert {"blk.0.attn_qkv.weight[q][head 3]", "blk.0.attn_qkv.weight[v][head 1]"} <= split
    assert {"blk.1.attn_q.weight[head 3]", "blk.1.attn_k.weight[head 1]"} <= split
    assert {"blk.0.attn_output.weight[head 3]"} <= split
    assert "blk.1.attn_k.weight[head 2]" not in split


def test_blocks_that_were_sorted_as_texts_are_sorted_as_numbers(tmp_path: Path) -> None:
    blocks = sorted(range(12), key=str)  # 0, 1, 10, 11, 2, …
    names = ["token_embd.weight", *(f"blk.{i}.{n}.weight" for i in blocks for n in ("up", "down"))]
    weights = open_weights(_write(tmp_path / "w.gguf", dict.fromkeys(names, np.ones((8, 4), "f4"))))
    expected = [f"blk.{i}.{n}.weight" for i in range(12) for n in ("down", "up")]
    assert [weight.name for weight in weights.tensors] == [names[0], *expected]
    assert weights.order == "name"

    in_order = ["token_embd.weight", "blk.2.up.weight", "blk.2.down.weight", "blk.10.up.weight"]
    tensors = dict.fromkeys(in_order, np.ones((8, 4), "f4"))
    weights = open_weights(_write(tmp_path / "w.gguf", tensors))
    assert ([weight.name for weight in weights.tensors], weights.order) == (in_order, "network")


def _write_parts(folder: Path, count: int = 3) -> list[Path]:
    paths = [folder / f"m-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        split = {"split.no": i, "split.count": count, "split.tensors.count": count}
        _write(path, {f"blk.{i}.ffn_up.weight": np.full((4, 4), i, np.float32)}, split)
    return paths


def test_a_split_model_is_read_whole_from_any_file_and_the_folder(tmp_path: Path) -> None:
    for path in (*_write_parts(tmp_path), tmp_path):
        tensors = open_weights(path).tensors
        assert [weight.name for weight in tensors] == [f"blk.{i}.ffn_up.weight" for i in range(3)]
        assert [weight.load()[0, 0].item() for weight in tensors] == [0, 1, 2]


def test_a_split_model_without_one_of_its_files(tmp_path: Path) -> None:
    first, second, third = _write_parts(tmp_path)
    third.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="some are missing"):
        open_weights(first)
    third.write_bytes(second.read_bytes())
    with pytest.raises(CheckpointError, match="is not file 3 of 3"):
        open_weights(first)
    third.write_bytes(b"x")
    with pytest.raises(CheckpointError, match="is not file 3 of 3"):
        open_weights(first)
    renamed = second.rename(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="give it back its name"):
        open_weights(renamed)


def _pack_text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _pack(infos=(), data=b"", entries=(), counts=None, version=3) -> bytes:
    """Write a file by hand: infos of (name, sides, type, offset), entries of (key, bytes)."""
    tensors, keys = counts or (len(infos), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys)
    for key, value in entries:
        head += _pack_text(key) + value
    for name, sides, kind, offset in infos:
        head += _pack_text(name) + struct.pack(f"<I{len(sides)}Q", len(sides), *sides)
        head += struct.pack("<IQ", kind, offset)
    return head + bytes(-len(head) % 32) + data


GOOD = (b"w", (2, 3), 0, 0)


def test_the_format_as_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "w"
    for version in (2, 3):
        path.write_bytes(_pack([GOOD], struct.pack("<6f", *range(6)), version=version))
        (weight,) = open_weights(path).tensors
        assert weight.load().tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        _pack([GOOD], bytes(23)),  # cut off
        _pack([GOOD], bytes(24), version=1),
        _pack([GOOD], bytes(24), version=4),
        _pack([GOOD], bytes(24), counts=(2**63, 0)),
        _pack([GOOD], bytes(24), counts=(1, 2**64 - 1)),
        _pack([GOOD, GOOD], bytes(99)),  # twice
        _pack([GOOD, (b"v", (2, 3), 0, 8)], bytes(99)),  # overlap
        _pack([(b"w", (2, 3), 0, 2**64 - 1)], bytes(24)),
        _pack([(b"w", (2**62, 2**62), 0, 0)], bytes(24)),
        _pack([(b"w", (0, 2**63), 0, 0)], bytes(24)),
        _pack([(b"w", (1,) * 5, 0, 0)], bytes(24)),
        _pack([(b"w" * 70_000, (2, 3), 0, 0)], bytes(24)),
        _pack([GOOD], bytes(24), [(b"k", struct.pack("<I", 13))]),  # unknown type
        _pack([GOOD], bytes(24), [(b"k", struct.pack("<IQ", 8, 2**60))]),
        _pack([GOOD], bytes(24), [(b"k", struct.pack("<IIQ", 9, 8, 2**60))]),
        _pack([GOOD], bytes(24), [(b"k", struct.pack("<IIQ", 9, 0, 2**60))]),
        _pack([GOOD], bytes(24), [(b"k", struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9)]),
        _pack([GOOD], bytes(24), [(b"k", struct.pack("<II", 4, 1))] * 2),
        _pack([GOOD], bytes(24), [(b"general.alignment", struct.pack("<II", 4, 0))]),
        _pack([GOOD], bytes(24), [(b"general.alignment", struct.pack("<II", 4, 33))]),
        _pack([GOOD], bytes(24), [(b"split.count", struct.pack("<II", 4, 2**32 - 1))]),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.gguf").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_weights(tmp_path / "w.gguf")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("info", "reason"), [((b"w", (32, 4), 99, 0), "type 99"), ((b"w", (33, 4), 2, 0), "blocks")]
)
def test_tensors_that_cannot_be_read_are_listed(tmp_path: Path, info, reason: str) -> None:
    (tmp_path / "w.gguf").write_bytes(_pack([info], bytes(99)))
    assert reason in rankwise.probe(tmp_path / "w.gguf").layers[0].reason


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = _pack([GOOD], bytes(24), [(b"k", struct.pack("<II", 4, 1))])
    for length in range(4, len(content)):
        (tmp_path / "w.gguf").write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            open_weights(tmp_path / "w.gguf")


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.Q8_0
    path = _write(tmp_path / "w.gguf", {"w": (_make_blocks(kind, 4, 64), kind)})
    weight = _load(path)["w"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="changed while"):
        weight.load()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankwise.checkpoints.gguf.blocks import find_type

    (tmp_path / "w.gguf").write_bytes(_pack([GOOD], bytes(24)))
    find_type.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "gguf.constants", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install gguf"):
        open_weights(tmp_path / "w.gguf")
