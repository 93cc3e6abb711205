"""Pickles put together opcode by opcode: trees of nodes in which every part can be replaced."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rankwise.checkpoints.pytorch.inert import INERT_CLASSES
from tests.fuzz.values import CANARY, draw_integer, draw_text, find_slots


@dataclass(frozen=True)
class Global:
    """A name that is imported when it is loaded."""

    module: str
    name: str


@dataclass(frozen=True)
class Raw:
    """Opcodes as they are."""

    code: bytes


class Tuple(list[object]):
    """The items of a tuple."""


class Pairs(list[object]):
    """Keys and values of a dictionary, in turn."""


class Call(list[object]):
    """A function and the tuple of its arguments."""


class New(list[object]):
    """A class and the tuple of arguments that an object of it is made with."""


class Items(list[object]):
    """An object, and keys and values that are set on it."""


class Elements(list[object]):
    """An object, and what is appended to it."""


class Build(list[object]):
    """An object and the state that is set on it."""


class Persistent(list[object]):
    """The identifier of something that is stored elsewhere."""


_COMMAND = f"touch {CANARY}"
_WRITE = f"__import__('pathlib').Path('{CANARY}').touch()"
# A function and its arguments; each would create the canary, or is a step towards it.
_ATTACKS: tuple[tuple[Global, tuple[object, ...]], ...] = (
    (Global("os", "system"), (_COMMAND,)),
    (Global("posix", "system"), (_COMMAND,)),
    (Global("builtins", "exec"), (_WRITE,)),
    (Global("builtins", "eval"), (_WRITE,)),
    (Global("__builtin__", "eval"), (_WRITE,)),
    (Global("builtins", "open"), (CANARY, "w")),
    (Global("io", "open"), (CANARY, "w")),
    (Global("subprocess", "Popen"), (_COMMAND,)),
    (Global("subprocess", "check_output"), (_COMMAND,)),
    (Global("os", "popen"), (_COMMAND,)),
    (Global("os", "mkdir"), (CANARY,)),
    (Global("socket", "create_connection"), (("localhost", 9),)),
    (Global("webbrowser", "open"), ("http://localhost",)),
    (Global("builtins", "getattr"), ("x", "__class__")),
    (Global("importlib", "import_module"), ("antigravity",)),
    (Global("runpy", "_run_code"), (_WRITE, {})),
    (Global("pty", "spawn"), ("true",)),
    (Global("torch.storage", "_load_from_bytes"), (b"\x80\x02N.",)),
    (Global("torch", "load"), (CANARY,)),
    (Global("torch.hub", "load"), ("a/b", "c")),
    (Global("torch._utils", "_rebuild_wrapper_subclass"), ()),
    (Global("torch.nn.modules.linear", "Linear"), (2, 3)),
    (Global("numpy._core.multiarray", "_reconstruct"), ()),
    (Global("numpy", "load"), (CANARY,)),
    (Global("tests.fuzz.values", "draw_text"), ()),
    (Global("os\nsystem", "x"), ()),
    (Global("", ""), ()),
)
# Functions that weights need, with arguments that strain them.
_STRAINS: tuple[tuple[Global, tuple[object, ...]], ...] = (
    (Global("builtins", "bytearray"), (2**31,)),
    (Global("builtins", "bytearray"), (2**40,)),
    (Global("torch", "FloatTensor"), (2**29,)),
    (Global("torch", "FloatTensor"), (2**20, 2**20)),
    (Global("torch", "Tensor"), (-1,)),
    (Global("torch", "Size"), ((2**62, 2**62),)),
    (Global("torch", "device"), ("cuda:99",)),
    (Global("torch.storage", "UntypedStorage"), (2**40,)),
    (Global("_codecs", "encode"), ("a", "zlib")),
    (Global("_codecs", "encode"), ("a" * 200, "unicode_escape")),
    (Global("collections", "Counter"), ("text",)),
    (Global("collections", "OrderedDict"), (((1, 2), (1, 3)),)),
    (Global("builtins", "set"), ((1, (2, 3)),)),
    (Global("builtins", "complex"), ("1+j",)),
    (Global("torch._utils", "_rebuild_meta_tensor_no_storage"), ((), (2**40,), (1,), False)),
    (Global("torch.serialization", "_get_layout"), ("torch.strided",)),
    (Global("numpy", "dtype"), ("V1099511627776", False, True)),
    (Global("numpy", "dtype"), (2**40,)),
    (Global("numpy.core.multiarray", "scalar"), ("O8", b"\x80\x02N.")),
    (Global("numpy._core.multiarray", "scalar"), ()),
)
_INERT = tuple(sorted(INERT_CLASSES))
_ATTRIBUTES = (
    "__class__",
    "__dict__",
    "__reduce__",
    "__setstate__",
    "__hash__",
    "__del__",
    "_attributes",
    "_state",
    "_parent",
    "_content",
    "code",
    "items",
    "state",
    "param_groups",
    "weight",
    "model",
)
_CYCLE = b"}q\1X\1\0\0\0ah\1s"  # a dictionary that contains itself
# Lists of which each contains the one before twice: 2**25 items in a few bytes.
_LAUGHS = b"]" + b"".join(b"q%c0](h%ch%ce" % (i, i, i) for i in range(25))


def draw_hostile_call(rng: Random) -> object:
    """Draw a node that calls something it shouldn't, in one of the ways that pickles can."""
    function, args = rng.choice(_ATTACKS if rng.random() < 0.6 else _STRAINS)
    inner = b"".join(_encode(arg) for arg in args)
    stack_global = _encode(function.module) + _encode(function.name) + b"\x93"
    name = _name(function)
    return rng.choice(
        (
            Call([function, Tuple(args)]),
            Call([Raw(stack_global), Tuple(args)]),
            Raw(b"(" + inner + b"i" + name),
            Raw(b"(c" + name + inner + b"o"),
            Raw(b"c" + name + b"(" + inner + b"t\x81"),
            Raw(b"c" + name + b"(" + inner + b"t}\x92"),
            Build([Call([function, Tuple()]), Pairs(["__setstate__", function])]),
            Build([Pairs(), Pairs(["__reduce__", function])]),
            Build([function, Pairs(["__dict__", Pairs(["a", 1])])]),
            function,
        )
    )


def draw_inert_object(rng: Random, depth: int = 2) -> object:
    """Draw an object of a harmless class, made, filled and given a state in ways that strain it."""
    name = rng.choice(_INERT)
    kind, made = Global(*name.rsplit(".", 1)), INERT_CLASSES[name]()
    if rng.random() < 0.1:
        return kind
    arguments = Tuple(_draw_value(rng, depth) for _ in range(rng.choice((0, 0, 1, 2, 3))))
    node: object = rng.choice((Call, New))([kind, arguments])
    match rng.randrange(10):
        case 0 | 1 | 2 if isinstance(made, OrderedDict):
            node = Items([node, *_draw_pairs(rng, depth)])
        case 0 | 1 | 2 if isinstance(made, list):
            node = Elements([node, _draw_value(rng, depth), _draw_value(rng, depth)])
        case 3:
            elements = [_draw_value(rng, depth), _draw_value(rng, depth)]
            node = rng.choice((Items, Elements))([node, *elements])
        case 4:
            node = Raw(_encode(node) + b"q\xc8")
            cycle = Raw(b"h\xc8")
            node = Build([node, rng.choice((cycle, Pairs(["me", cycle]), Tuple([cycle, cycle])))])
    if rng.random() < (0.1 if isinstance(made, list) else 0.6):
        node = Build([node, _draw_state(rng, depth)])
    return node


def _draw_value(rng: Random, depth: int) -> object:
    if depth > 0 and rng.random() < 0.4:
        return draw_inert_object(rng, depth - 1)
    return rng.choice(
        (None, draw_integer(rng), draw_text(rng), [1, [2]], Pairs(["a", 1]), Tuple([2**20] * 5))
    )


def _draw_pairs(rng: Random, depth: int) -> Pairs:
    pairs = Pairs()
    for _ in range(rng.choice((0, 1, 3))):
        key = _draw_value(rng, 0) if rng.random() < 0.2 else rng.choice(_ATTRIBUTES)
        pairs += [key, _draw_value(rng, depth)]
    return pairs


def _draw_state(rng: Random, depth: int) -> object:
    shape = Tuple(draw_integer(rng) for _ in range(rng.choice((0, 1, 2, 64))))
    array = Tuple([1, shape, Call([Global("numpy", "dtype"), Tuple(["f8"])]), False, "bytes"])
    return rng.choice(
        (
            _draw_pairs(rng, depth),
            _draw_pairs(rng, depth),
            Tuple([None, _draw_pairs(rng, depth)]),
            Tuple([_draw_pairs(rng, depth), _draw_pairs(rng, depth)]),
            array,
            _draw_value(rng, depth),
        )
    )


def draw_node(rng: Random) -> object:
    """Draw any node: a value of an unexpected type, an attack, or opcodes that strain a reader."""
    match rng.randrange(9):
        case 0:
            return draw_integer(rng)
        case 1:
            return draw_text(rng)
        case 2 | 3:
            return draw_hostile_call(rng)
        case 4:
            return rng.choice((None, True, 0.5, float("nan"), float("inf"), b"", b"\xff" * 9))
        case 5 | 6:
            return draw_inert_object(rng)
        case 7:
            return rng.choice(([], Tuple(), Pairs(), Pairs([None, 1]), Tuple([1, Tuple([2])])))
        case _:
            return Raw(_draw_code(rng))


def _draw_code(rng: Random) -> bytes:
    """Draw opcodes: extensions, far places of the memo, cycles, long numbers, deep nesting."""
    memo = rng.choice((0, 5, 255))
    place = struct.pack("<L", draw_integer(rng) % 2**32)
    depth = rng.choice((3, 60, 300, 2000))
    return rng.choice(
        (
            rng.choice((b"\x82\x01", b"\x83\1\0", b"\x84\1\0\0\0", b"P1\n", b"2", b"0")),
            b"Nq%c" % memo + b"0h%c" % rng.choice((memo, 7)),
            b"Nr" + place + rng.choice((b"", b"0j" + place)),
            _draw_long(rng),
            _CYCLE,
            _LAUGHS,
            b"]" * depth + b"a" * (depth - 1),
            b")" + b"\x85" * depth,
        )
    )


def _draw_long(rng: Random) -> bytes:
    length = rng.choice((0, 8, 9, 100))
    return rng.choice(
        (
            b"\x8a%c" % length + rng.randbytes(length),
            b"\x8b" + struct.pack("<L", rng.choice((4, 2**31 - 1, 2**32 - 1))) + b"abcd",
            b"X" + struct.pack("<L", rng.choice((2**31, 2**32 - 1))) + b"abc",
            b"\x8d" + struct.pack("<Q", rng.choice((2**40, 2**63))) + b"abc",
            b"B" + struct.pack("<L", 2**31) + b"abc",
            b"\x95" + struct.pack("<Q", rng.choice((3, 2**62))),
            b"L" + b"9" * rng.choice((20, 5000)) + b"L\n",
            b"I" + b"9" * rng.choice((5, 5000)) + b"\n",
            b"F1e999\n",
            b"S'a\\x'\n",
        )
    )


def encode_pickle(node: object, protocol: int = 2) -> bytes:
    """Return a pickle of a node."""
    return b"\x80%c" % protocol + _encode(node) + b"."


def split_opcodes(node: object) -> list[bytes]:
    """Return the opcodes of a node in the order in which they run."""
    return list(_iterate_code(node))


def _encode(node: object) -> bytes:
    return b"".join(_iterate_code(node))


# What stands before and after the parts of a node.
_FRAMES = {
    Tuple: (b"(", b"t"),
    tuple: (b"(", b"t"),
    Call: (b"", b"R"),
    New: (b"", b"\x81"),
    Build: (b"", b"b"),
    Persistent: (b"", b"Q"),
    list: (b"](", b"e"),
    dict: (b"}", b""),
}


def _iterate_code(node: object) -> Sequence[bytes]:
    match node:
        case Raw(code):
            return [code]
        case Global():
            return [b"c" + _name(node)]
        case Pairs():
            return [b"}(", *_join_all(node[: len(node) // 2 * 2]), b"u"]
        case Items() | Elements() if node:
            rest = _join_all(node[1:] if len(node) % 2 else node[1:-1])
            end = b"u" if isinstance(node, Items) else b"e"
            return [*_iterate_code(node[0]), b"(", *rest, end]
        case Items() | Elements():
            return []
        case list() | tuple() | dict():
            before, after = _FRAMES[type(node)]
            return [before, *_join_all(tuple(node)), after]
        case _:
            return [_encode_leaf(node)]


def _join_all(nodes: Sequence[object]) -> list[bytes]:
    return [code for node in nodes for code in _iterate_code(node)]


def _encode_leaf(value: object) -> bytes:
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int() if 0 <= value < 256:
            return b"K%c" % value
        case int() if -(2**31) <= value < 2**31:
            return b"J" + struct.pack("<l", value)
        case int():
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a%c" % len(data) + data
        case float():
            return b"G" + struct.pack(">d", value)
        case bytes():
            return b"B" + struct.pack("<L", len(value)) + value
    text = str(value).encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<L", len(text)) + text


def _name(node: Global) -> bytes:
    return f"{node.module}\n{node.name}\n".encode()


def mutate_node(tree: object, rng: Random) -> None:
    """Change a tree of nodes in one random place."""
    slots = [(node, key) for node, key in find_slots(tree) if isinstance(node, list)]
    if not slots:
        return
    node, key = rng.choice(slots)
    assert isinstance(key, int)
    match rng.randrange(8):
        case 0:
            del node[key]
        case 1:
            node.insert(key, draw_node(rng))
        case 2:
            other, place = rng.choice(slots)
            assert isinstance(place, int)
            if place < len(other):  # by its code: a node that contained itself would not end
                node[key] = Raw(_encode(other[place]))
        case _:
            node[key] = draw_node(rng)


def shuffle_opcodes(codes: list[bytes], rng: Random) -> None:
    """Delete, repeat, exchange or insert opcodes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        place, other = rng.randrange(len(codes)), rng.randrange(len(codes))
        match rng.randrange(5):
            case 0 if len(codes) > 1:
                del codes[place]
            case 1:
                codes.insert(place, codes[other])
            case 2:
                codes[place], codes[other] = codes[other], codes[place]
            case 3:
                codes.insert(place, _encode(draw_node(rng)))
            case _:
                codes[place] = rng.randbytes(1) + codes[place][1:]
