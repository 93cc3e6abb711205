# ruff: noqa: S311 - damage needn't be unpredictable
"""Files damaged at random: only rankwise's own errors may come out, whatever the bytes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from rankwise._text import sanitize
from rankwise.checkpoints import open_weights
from rankwise.errors import RankwiseError

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 150


def _damage(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    match rng.randrange(4):
        case 0:
            del damaged[rng.randrange(len(damaged)) :]
        case 1:
            start = rng.randrange(len(damaged))
            del damaged[start : start + rng.randrange(1, 40)]
        case 2:
            start = rng.randrange(len(damaged))
            damaged[start:start] = rng.randbytes(rng.randrange(1, 9))
        case _:
            for _ in range(rng.randrange(1, 8)):
                damaged[rng.randrange(len(damaged))] = rng.choice(
                    (0, 1, 127, 128, 255, rng.randrange(256))
                )
    return bytes(damaged)


def _errors(path: Path) -> list[str]:
    """Reads a whole file; every failure that isn't rankwise's own ends the test."""
    try:
        weights = open_weights(path)
    except RankwiseError as error:
        return [str(error)]
    errors = []
    for weight in weights.tensors:
        try:
            tensor = weight.load()
        except RankwiseError as error:
            errors.append(str(error))
            continue
        assert weight.obstacle is None
        assert (tuple(tensor.shape), tensor.dtype) == (weight.shape, weight.dtype)
        tensor.to(torch.complex64).sum()  # every byte is touched
    return errors


def test_damaged_files_give_one_sentence(tmp_path: Path, write, tensors) -> None:
    path = tmp_path / "w.onnx"
    write(path, tensors)
    assert _errors(path) == []
    content, rng, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(ROUNDS):
        path.write_bytes(_damage(content, rng))
        errors = _errors(path)
        refused += bool(errors)
        assert all(sanitize(error) == error for error in errors)
    assert refused > ROUNDS // 10


def test_a_damaged_nested_checkpoint_gives_one_sentence(tmp_path: Path, tensors) -> None:
    path = tmp_path / "w.pt"
    shared = torch.ones(3, 3)
    optimizer = {"state": {0: {"exp_avg": shared}}, "param_groups": [{"lr": 0.1}]}
    torch.save({"model": tensors, "ema": {"a.b": shared}, "optimizer": optimizer}, path)
    content, rng, refused = path.read_bytes(), random.Random(1), 0
    end = content.find(b"PK\x03\x04", 4)  # of the pickle, which is where the structure lies
    for _ in range(ROUNDS):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(end)] = rng.randrange(256)
        path.write_bytes(damaged)
        errors = _errors(path)
        refused += bool(errors)
        assert all(sanitize(error) == error for error in errors)
    assert refused > ROUNDS // 10
