"""Values that readers don't expect: numbers, names, JSON, damaged bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import TypeVar

T = TypeVar("T")

CANARY = "canary"  # a file that nothing may create; relative to the worker's folder
OUTSIDE = "outside"  # a folder beside the input's, in which nothing may be opened

_INTEGERS = (
    -(2**63),
    -(2**31),
    -1,
    0,
    1,
    2,
    3,
    7,
    8,
    16,
    64,
    255,
    256,
    4096,
    65536,
    2**24,
    2**31 - 1,
    2**31,
    2**32,
    2**40,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    10**30,
)
_TEXTS = (
    "",
    ".",
    "..",
    "/",
    "weight",
    ".weight",
    "a..b",
    "\x1b[31mred",
    "\u202eevil",
    "\0",
    "a\nb",
    "\r",
    "\ud800",
    "\u2028",
    "層.weight",
    "<script>alert(1)</script>",
    "{0}%s%n",
    "x" * 300,
    "a." * 200,
    "0" * 500,
    "9" * 500 + ".weight",
    "h.0.attn.c_attn.weight",
    "__metadata__",
    "layers.0.mlp.experts.gate_up_proj",
    "q_proj.lora_A.weight",
    "q_proj.lora_B.weight",
    "weight_g",
    "weight_v",
    "rnn.weight_hh_l0",
    "in_proj_weight",
    f"../{OUTSIDE}/secret.bin",
    f"../{OUTSIDE}/model.safetensors",
    "/etc/passwd",
    "/dev/zero",
    "C:\\boot.ini",
    "nan",
    "-1",
    "1e999",
)
_FLOATS = (0.0, -0.0, -1.5, 0.5, 1e-320, 1e38, 1e308, float("inf"), float("-inf"), float("nan"))
_DUPLICATE = "\u2063"  # marks a key that is written again under its own name


def draw_integer(rng: Random) -> int:
    """Draw a number at the edge of some type, or a small one."""
    return rng.choice(_INTEGERS) if rng.random() < 0.7 else rng.randrange(-3, 40)


def draw_text(rng: Random) -> str:
    """Draw a name that is hostile, meaningful or both."""
    text = rng.choice(_TEXTS)
    return text if rng.random() < 0.7 else f"{rng.choice(_TEXTS)}.{text}"[:2000]


def draw_json(rng: Random, depth: int = 0) -> object:
    """Draw a JSON value of any type."""
    match rng.randrange(10):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2 | 3:
            return draw_integer(rng)
        case 4:
            return rng.choice(_FLOATS)
        case 5 | 6:
            return draw_text(rng)
        case 7 if depth < 3:
            return [draw_json(rng, depth + 1) for _ in range(rng.randrange(4))]
        case 8 if depth < 3:
            return {draw_text(rng): draw_json(rng, depth + 1) for _ in range(rng.randrange(4))}
        case _:
            return rng.choice(([], {}, [[]], "", [None], [1, 2], {"": {}}))


def find_slots(tree: object) -> list[tuple[list[object] | dict[str, object], object]]:
    """Return every place of a tree of lists and dictionaries whose value can be replaced."""
    slots: list[tuple[list[object] | dict[str, object], object]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list | dict):
            items = node.items() if isinstance(node, dict) else enumerate(node)
            for key, value in items:
                slots.append((node, key))
                waiting.append(value)
    return slots


def mutate_json(tree: object, rng: Random, draw: Callable[[Random], object] = draw_json) -> None:
    """Change a tree of lists and dictionaries in one random place."""
    slots = find_slots(tree)
    if not slots:
        return
    node, key = rng.choice(slots)
    value = node[key]  # type: ignore[index,call-overload]
    match rng.randrange(8):
        case 0:
            del node[key]  # type: ignore[arg-type,union-attr]
        case 1 if isinstance(node, dict):
            node[draw_text(rng)] = node.pop(key)  # type: ignore[call-overload]
        case 2 if isinstance(node, dict):
            node[f"{key}{_DUPLICATE}"] = draw(rng)
        case 2 if isinstance(node, list):
            node.insert(key, draw(rng))  # type: ignore[arg-type]
        case 3 if isinstance(value, int) and not isinstance(value, bool):
            node[key] = value + rng.choice((-8, -1, 1, 8))  # type: ignore[index,call-overload]
        case 4:
            node[key] = rng.choice(([value], {"": value}))  # type: ignore[index,call-overload]
        case _:
            node[key] = draw(rng)  # type: ignore[index,call-overload]


def encode_json(tree: object, rng: Random | None = None) -> bytes:
    """Write JSON; keys that `mutate_json` repeated stand there twice."""
    text = json.dumps(tree)
    text = text.replace(json.dumps(_DUPLICATE)[1:-1] + '"', '"')
    if rng is not None:
        if rng.random() < 0.05 and text.startswith('{"'):
            deep = rng.choice((50, 900, 20_000))
            text = f'{{"deep": {"[" * deep}{"]" * deep}, {text[1:]}'
        if rng.random() < 0.05:
            text = text.replace("1", "1" * rng.choice((30, 5000)), 1)
        if rng.random() < 0.05:
            text = text.replace("\\u", "\\", 1)
    return text.encode("utf-8", "surrogatepass")


def damage_bytes(content: bytes, rng: Random) -> bytes:
    """Cut, lengthen or overwrite a few bytes."""
    damaged = bytearray(content)
    if not damaged:
        return rng.randbytes(rng.randrange(9))
    start = rng.randrange(len(damaged))
    match rng.randrange(5):
        case 0:
            del damaged[start:]
        case 1:
            del damaged[start : start + rng.randrange(1, 40)]
        case 2:
            damaged[start:start] = rng.randbytes(rng.randrange(1, 9))
        case 3:
            end = rng.randrange(start, len(damaged)) + 1
            damaged[start:start] = damaged[start:end][:200]
        case _:
            for _ in range(rng.randrange(1, 8)):
                place = rng.randrange(len(damaged))
                damaged[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(damaged)
