"""PyTorch checkpoints of both formats, with pickles and records that may not agree."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from tests.fuzz.pickles import (
    Call,
    Global,
    Pairs,
    Persistent,
    Raw,
    Tuple,
    draw_hostile_call,
    draw_inert_object,
    draw_node,
    encode_pickle,
    mutate_node,
    shuffle_opcodes,
    split_opcodes,
)
from tests.fuzz.tensors import ITEM_SIZES, Stored
from tests.fuzz.values import damage_bytes, draw_integer, draw_text
from tests.fuzz.zips import Entry, break_zip, encode_zip

_STORAGES = {
    "F32": "FloatStorage",
    "F16": "HalfStorage",
    "F64": "DoubleStorage",
    "BF16": "BFloat16Storage",
    "I64": "LongStorage",
    "I32": "IntStorage",
    "I16": "ShortStorage",
    "I8": "CharStorage",
    "U8": "ByteStorage",
    "BOOL": "BoolStorage",
    "C64": "ComplexFloatStorage",
}
# Types that came after the storages of their own: bytes, and the type beside them.
_LATE = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
}
_OTHER_STORAGES = (*_STORAGES.values(), "QInt8Storage", "QUInt4x2Storage", "NoStorage", "Tensor")
_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
_HOOKS = Call([Global("collections", "OrderedDict"), Tuple()])


def _make_tensor(tensor: Stored, key: str, *, legacy: bool) -> Call:
    strides, step = [], 1
    for side in reversed(tensor.shape):
        strides.insert(0, step)
        step *= max(side, 1)
    late = _LATE.get(tensor.dtype)
    count = len(tensor.data) if late else tensor.count
    kind = (
        Global("torch.storage", "UntypedStorage")
        if late
        else Global("torch", _STORAGES[tensor.dtype])
    )
    place = Tuple(["storage", kind, key, "cpu", count])
    if legacy:
        place.append(None)
    args = Tuple(
        [Persistent([place]), 0, Tuple(tensor.shape), Tuple(strides), False, _copy_hooks()]
    )
    if late:
        args.append(Global("torch", late))
        return Call([Global("torch._utils", "_rebuild_tensor_v3"), args])
    return Call([Global("torch._utils", "_rebuild_tensor_v2"), args])


def _copy_hooks() -> Call:
    return Call(_HOOKS)


def _wrap_tensor(node: Call, rng: Random) -> Call:
    """Put a tensor into a parameter, a sparse, quantised or meta tensor, or a subclass."""
    args = node[1]
    assert isinstance(args, Tuple)
    match rng.randrange(6):
        case 0:
            return Call(
                [Global("torch._utils", "_rebuild_parameter"), Tuple([node, True, _copy_hooks()])]
            )
        case 1:
            name = rng.choice(("sparse_coo", "sparse_csr", "strided", "_mkldnn", "x"))
            layout = Call([Global("torch.serialization", "_get_layout"), Tuple([f"torch.{name}"])])
            parts = Tuple([node, node, args[2], rng.choice((True, None))])
            return Call([Global("torch._utils", "_rebuild_sparse_tensor"), Tuple([layout, parts])])
        case 2:
            scheme = Global("torch", rng.choice(("per_tensor_affine", "per_channel_affine")))
            how = Tuple([scheme, rng.choice((0.1, 0.0, node)), rng.choice((0, node)), 0])
            return Call(
                [Global("torch._utils", "_rebuild_qtensor"), Tuple([*args[:4], how, *args[4:]])]
            )
        case 3:
            kind = Global("torch", rng.choice(("float32", "int4", "bits8", "complex64")))
            return Call(
                [
                    Global("torch._utils", "_rebuild_meta_tensor_no_storage"),
                    Tuple([kind, args[2], args[3], False]),
                ]
            )
        case 4:
            kind = rng.choice(
                (Global("torch.nn.parameter", "Parameter"), Global("torch", "Tensor"))
            )
            parts = Tuple([node[0], kind, args, rng.choice((Pairs(["a", 1]), Tuple([1, 2]), None))])
            return Call([Global("torch._tensor", "_rebuild_from_type_v2"), parts])
        case _:
            return Call([Global("torch.nn.parameter", "Parameter"), Tuple([node])])


def _mutate_tensor(node: Call, rng: Random) -> None:
    """Change what a tensor says of its storage: the type, how many, where, in which steps."""
    args = node[1]
    if not isinstance(args, Tuple) or not args or not isinstance(args[0], Persistent):
        return
    place = args[0][0]
    assert isinstance(place, Tuple)
    match rng.randrange(8):
        case 0:
            place[1] = Global("torch", rng.choice(_OTHER_STORAGES))
        case 1:
            place[2] = rng.choice(("0", "1", "9", "../0", draw_text(rng), 0, draw_node(rng)))
        case 2:
            place[3] = rng.choice(("cuda:0", "meta", "mps", "", "cpu:7", "xla", draw_node(rng)))
        case 3:
            place[4] = draw_integer(rng)
        case 4:
            args[1] = draw_integer(rng)
        case 5:
            args[2] = Tuple(draw_integer(rng) for _ in range(rng.randrange(5)))
        case 6:
            args[3] = Tuple(draw_integer(rng) for _ in range(rng.randrange(5)))
        case _:  # a view that repeats its numbers
            args[2], args[3] = Tuple([rng.choice((3, 40, 600)), 4]), Tuple([0, rng.choice((0, 1))])


def _make_tree(tensors: Sequence[Stored], rng: Random, *, legacy: bool) -> Pairs:
    state = Pairs()
    for place, tensor in enumerate(tensors):
        node = _make_tensor(tensor, str(place), legacy=legacy)
        state += [tensor.name, _wrap_tensor(node, rng) if rng.random() < 0.1 else node]
    match rng.randrange(6):
        case 0:
            optimizer = Pairs(["state", Pairs([0, Pairs(state[:2])]), "param_groups", [1]])
            return Pairs(["model", state, "optimizer", optimizer, "epoch", 3])
        case 1:
            return Pairs(["ema", Pairs(state[:2]), "state_dict", state, draw_text(rng), 0.5])
        case 2 if len(state) >= 2:
            state += [f"{draw_text(rng)}.tied", state[1]]
    return state


def _list_tensors(tree: object) -> list[Call]:
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Call) and isinstance(node[0], Global) and "tensor_v" in node[0].name:
            found.append(node)
        elif isinstance(node, list):
            waiting += node
    return found


def _write_pickle(tensors: Sequence[Stored], rng: Random, *, broken: bool, legacy: bool) -> bytes:
    tree = _make_tree(tensors, rng, legacy=legacy)
    root: list[object] = [tree]
    if not broken:
        if rng.random() < 0.3 and (nodes := _list_tensors(root)):
            _mutate_tensor(rng.choice(nodes), rng)
        if rng.random() < 0.2:
            tree += [draw_text(rng), rng.choice((1, 0.5, None, Pairs(), [1, 2], "text"))]
        if rng.random() < 0.3:
            tree += [draw_text(rng), draw_inert_object(rng)]
        return encode_pickle(root[0])
    choice = rng.random()
    if choice < 0.3:
        for _ in range(rng.choice((1, 2, 3))):
            mutate_node(root, rng)
    elif choice < 0.5:
        draw = rng.choice((draw_hostile_call, draw_inert_object))
        tree += [draw_text(rng), draw(rng)]
    elif choice < 0.7 and (nodes := _list_tensors(root)):
        _mutate_tensor(rng.choice(nodes), rng)
        mutate_node(rng.choice(nodes), rng)
    elif choice < 0.85:
        codes = split_opcodes(tree)
        shuffle_opcodes(codes, rng)
        return encode_pickle(Raw(b"".join(codes)), rng.choice((2, 2, 3, 4, 5)))
    else:
        return damage_bytes(encode_pickle(tree), rng)
    return encode_pickle(root[0] if root else None, rng.choice((2, 2, 2, 3, 4)))


def encode_torch_zip(tensors: Sequence[Stored], rng: Random, *, broken: bool) -> bytes:
    """Return a checkpoint as torch.save writes it since 1.6, but with a pickle of our own."""
    damage_pickle = broken and rng.random() < 0.6
    pickle = _write_pickle(tensors, rng, broken=damage_pickle, legacy=False)
    entries = [Entry(b"archive/data.pkl", pickle)]
    if rng.random() < 0.3:
        entries.append(Entry(b"archive/.format_version", rng.choice((b"1", b"", b"x"))))
        entries.append(Entry(b"archive/.storage_alignment", rng.choice((b"64", b"0", b"-1", b"x"))))
    if rng.random() < 0.7:
        order = b"little" if rng.random() < 0.9 else rng.choice((b"big", b"", b"middle", b"\xff"))
        entries.append(Entry(b"archive/byteorder", order))
    entries += [Entry(b"archive/data/%d" % i, tensor.data) for i, tensor in enumerate(tensors)]
    version = b"3\n" if rng.random() < 0.95 else rng.choice((b"", b"99\n", b"x"))
    entries.append(Entry(b"archive/version", version))
    if broken and not damage_pickle:
        return break_zip(entries, rng)
    return encode_zip(entries)


def encode_torch_legacy(tensors: Sequence[Stored], rng: Random, *, broken: bool) -> bytes:
    """Return a checkpoint as torch.save wrote it before 1.6."""
    damage_pickle = broken and rng.random() < 0.6
    body = _write_pickle(tensors, rng, broken=damage_pickle, legacy=True)
    sizes = Pairs(["short", 2, "int", 4, "long", 4])
    info = Pairs(["protocol_version", 1001, "little_endian", True, "type_sizes", sizes])
    keys: list[object] = [str(place) for place in range(len(tensors))]
    version: object = 1001
    counts = [
        len(tensor.data) // (1 if tensor.dtype in _LATE else ITEM_SIZES[tensor.dtype])
        for tensor in tensors
    ]
    damage_file = False
    if broken and not damage_pickle:
        match rng.randrange(6):
            case 0:
                version = draw_node(rng)
            case 1:
                mutate_node(info, rng)
            case 2:
                mutate_node([keys], rng)
            case 3 if counts:
                counts[rng.randrange(len(counts))] = draw_integer(rng)
            case _:
                damage_file = True
    head = _MAGIC + encode_pickle(version) + encode_pickle(info) + body + encode_pickle(keys)
    content = _join_legacy(head, counts, tensors)
    return damage_bytes(content, rng) if damage_file else content


def _join_legacy(head: bytes, counts: Sequence[int], tensors: Sequence[Stored]) -> bytes:
    records = (
        struct.pack("<Q", count % 2**64) + tensor.data
        for count, tensor in zip(counts, tensors, strict=True)
    )
    return head + b"".join(records)


def encode_torch_tensor(tensor: Stored, rng: Random, *, broken: bool) -> bytes:
    """Return one tensor as torch.save writes it, as in the files of a distributed checkpoint."""
    node = _make_tensor(tensor, "0", legacy=False)
    tree: list[object] = [node]
    damage = rng.randrange(4) if broken else -1
    match damage:
        case 0:
            _mutate_tensor(node, rng)
        case 1:
            tree = [
                rng.choice((draw_hostile_call(rng), _wrap_tensor(node, rng), Pairs(["w", node])))
            ]
        case 2:
            mutate_node(tree, rng)
    pickle = encode_pickle(tree[0] if tree else None)
    entries = [
        Entry(b"archive/data.pkl", pickle),
        Entry(b"archive/byteorder", b"little"),
        Entry(b"archive/data/0", tensor.data),
        Entry(b"archive/version", b"3\n"),
    ]
    return break_zip(entries, rng) if damage == 3 else encode_zip(entries)
