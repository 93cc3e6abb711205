"""The pickle of a distributed checkpoint's ``.metadata`` → one that PyTorch's loader may be given.

Python writes it in protocol 4 or 5, of which ``torch.load(weights_only=True)`` knows only the
instructions that are in protocol 2 too. So it is translated here, one instruction after the other.
Only the instructions and the names that such metadata consists of are let through: what describes
tensors, sizes and types. Anything else is refused, and nothing is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch

from rankwise._text import quote
from rankwise.checkpoints.safety import format_path
from rankwise.errors import CheckpointError, UnsafeFileError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAX_NESTED = 8  # tuples in tuples; hashing very many would overflow the stack of the process
_MAX_DIGITS = 9  # bytes of a number
_MAX_OBJECTS = 4_000_000
_REMEDY = (
    "If you trust it, convert it with torch.distributed.checkpoint.format_utils.dcp_to_torch_save."
)

_PROTO, _FRAME, _STOP, _MARK = 0x80, 0x95, ord("."), ord("(")
_GLOBAL, _STACK_GLOBAL, _LONG1 = ord("c"), 0x93, 0x8A
_TEXTS = {ord("X"): 4, 0x8C: 1}  # the size of the length
_PUTS = {ord("q"): 1, ord("r"): 4}
_GETS = {ord("h"): 1, ord("j"): 4}
_MEMOIZE = 0x94
_TO_MARK = -1


@dataclass(frozen=True, slots=True)
class _Instruction:
    """What an instruction does to the stack."""

    size: int = 0  # bytes of its argument
    takes: int = 0  # values, or all down to the last mark
    leaves: bool = True  # a new value; else the one below is changed
    is_tuple: bool = False


_INSTRUCTIONS = {
    ord("N"): _Instruction(),
    0x88: _Instruction(),  # True
    0x89: _Instruction(),  # False
    ord(")"): _Instruction(is_tuple=True),
    ord("]"): _Instruction(),
    ord("}"): _Instruction(),
    ord("J"): _Instruction(size=4),
    ord("K"): _Instruction(size=1),
    ord("M"): _Instruction(size=2),
    ord("G"): _Instruction(size=8),
    ord("t"): _Instruction(takes=_TO_MARK, is_tuple=True),
    0x85: _Instruction(takes=1, is_tuple=True),
    0x86: _Instruction(takes=2, is_tuple=True),
    0x87: _Instruction(takes=3, is_tuple=True),
    ord("a"): _Instruction(takes=1, leaves=False),
    ord("e"): _Instruction(takes=_TO_MARK, leaves=False),
    ord("s"): _Instruction(takes=2, leaves=False),
    ord("u"): _Instruction(takes=_TO_MARK, leaves=False),
    ord("b"): _Instruction(takes=1, leaves=False),
    ord("R"): _Instruction(takes=2),
    0x81: _Instruction(takes=2),
}


@dataclass(frozen=True, slots=True)
class _Value:
    """A value on the stack: how deeply tuples are nested in it, or its text."""

    depth: int = 0
    text: bytes | None = None
    start: int = 0  # where the instructions that push a text begin


_PLAIN = _Value()


class Translator:
    """Translates one pickle; `names` are those that it may contain, and what to write for them."""

    def __init__(self, path: Path, program: bytes, names: Mapping[bytes, bytes]) -> None:
        self._path = path
        self._program = program
        self._names = names
        self._place = 0
        self._output = bytearray(b"\x80\x02")
        self._stack: list[_Value] = []
        self._marks: list[int] = []
        self._memo: dict[int, _Value] = {}
        # A text that is part of a name is written only with it, so that the loader lacks it.
        self._texts_put: list[tuple[int, int]] = []  # where in the output, key
        self._known: set[int] = set()  # keys of texts in the loader's memo

    def translate(self) -> bytes:
        """Return the pickle in protocol 2."""
        while (code := self._take(1)[0]) != _STOP:
            if instruction := _INSTRUCTIONS.get(code):
                self._output.append(code)
                self._output += self._take(instruction.size)
                self._apply(instruction)
            elif code in _TEXTS:
                start = len(self._output)
                text = self._take(self._take_number(_TEXTS[code]))
                self._output += b"X" + len(text).to_bytes(4, "little") + text
                self._stack.append(_Value(0, text, start))
            elif code == _MEMOIZE:
                self._put(len(self._memo))
            elif code in _PUTS:
                self._put(self._take_number(_PUTS[code]))
            elif code in _GETS:
                self._get(self._take_number(_GETS[code]))
            else:
                self._translate_rare(code)
        return bytes(self._output) + b"."

    def _translate_rare(self, code: int) -> None:
        if code == _PROTO:
            self._take(1)
        elif code == _FRAME:
            self._take(8)
        elif code == _MARK:
            self._output.append(code)
            self._marks.append(len(self._stack))
        elif code == _LONG1:
            digits = self._take(self._take_number(1))
            if len(digits) > _MAX_DIGITS:
                self._refuse(f"contains a number of {len(digits)} bytes")
            self._output += bytes((code, len(digits))) + digits
            self._stack.append(_PLAIN)
        elif code == _GLOBAL:
            self._write_name(self._take_line(), self._take_line())
        elif code == _STACK_GLOBAL:
            self._write_stack_name()
        else:
            self._refuse(f"contains the instruction {code:#04x}")

    def _apply(self, instruction: _Instruction) -> None:
        """Do to the stack what an instruction does."""
        count = instruction.takes
        if count == _TO_MARK and not self._marks:
            self._refuse("takes more values than there are")
        start = self._marks.pop() if count == _TO_MARK else len(self._stack) - count
        self._check_height(start, 0 if instruction.leaves else 1)
        taken = self._stack[start:]
        del self._stack[start:]
        if not instruction.leaves:
            if self._stack[-1].text is not None:
                self._refuse("changes a text")
            return
        depth = 0
        if instruction.is_tuple:
            depth = 1 + max((value.depth for value in taken), default=0)
            if depth > _MAX_NESTED:
                self._refuse(f"nests more than {_MAX_NESTED} tuples")
        self._stack.append(_Value(depth) if depth else _PLAIN)

    def _check_height(self, height: int, needed: int) -> None:
        """Refuse to take values from below the last mark."""
        if height < (self._marks[-1] if self._marks else 0) + needed:
            self._refuse("takes more values than there are")

    def _put(self, key: int) -> None:
        self._check_height(len(self._stack), 1)
        value = self._stack[-1]
        self._memo[key] = value
        if len(self._memo) > _MAX_OBJECTS:
            self._refuse(f"contains more than {_MAX_OBJECTS} objects")
        self._known.discard(key)
        if value.text is not None:
            self._texts_put.append((len(self._output), key))
            self._known.add(key)
        self._output += b"r" + key.to_bytes(4, "little")

    def _get(self, key: int) -> None:
        value, start = self._memo.get(key), len(self._output)
        if value is None:
            self._refuse("refers to an object that it does not contain")
        if value.text is not None and key not in self._known:
            self._output += b"X" + len(value.text).to_bytes(4, "little") + value.text
            self._stack.append(_Value(0, value.text, start))
            self._put(key)
            return
        self._output += b"j" + key.to_bytes(4, "little")
        self._stack.append(_Value(value.depth, value.text, start))

    def _write_stack_name(self) -> None:
        """Write a name whose two texts were pushed last, in place of what pushes them."""
        self._check_height(len(self._stack), 2)
        name, module = self._stack.pop(), self._stack.pop()
        if name.text is None or module.text is None:
            self._refuse("makes a name of something else than texts")
        del self._output[module.start :]
        while self._texts_put and self._texts_put[-1][0] >= module.start:
            self._known.discard(self._texts_put.pop()[1])
        self._write_name(module.text, name.text)

    def _write_name(self, module: bytes, name: bytes) -> None:
        full = module + b"." + name
        stand_in = self._names.get(full)
        if stand_in is None:
            shown = quote(full.decode("utf-8", "backslashreplace"))
            raise UnsafeFileError(
                f"{format_path(self._path)}: refers to {shown}, which is no part of a distributed "
                f"checkpoint's metadata and could run code; nothing was run. {_REMEDY}"
            )
        self._output += b"c" + stand_in.replace(b".", b"\n", 1) + b"\n"
        self._stack.append(_PLAIN)

    def _take(self, count: int) -> bytes:
        data = self._program[self._place : self._place + count]
        if len(data) < count:
            raise CheckpointError(
                f"{format_path(self._path)}: ends in the middle; it is truncated or damaged."
            )
        self._place += count
        return data

    def _take_number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _take_line(self) -> bytes:
        end = self._program.find(b"\n", self._place)
        line = self._take(max(0, end - self._place + 1))
        return line[:-1]

    def _refuse(self, what: str) -> NoReturn:
        raise CheckpointError(
            f"{format_path(self._path)}: {what}, which no metadata of a distributed checkpoint "
            "does; damaged or malicious."
        )


def list_dtypes() -> dict[bytes, bytes]:
    """Return the names of PyTorch's types of numbers, and the names that its loader knows."""
    types = {name: kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)}
    return {f"torch.{name}".encode(): str(kind).encode() for name, kind in types.items()}
