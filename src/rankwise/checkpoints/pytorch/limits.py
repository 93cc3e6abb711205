"""What a pickle may ask PyTorch's loader for, before it is loaded.

The loader calls only functions that it knows, but some of them take as much memory as a number
says: a storage, a tensor, a `bytearray`. So a pickle is read here as a list of instructions, and
refused if a number larger than any real file needs reaches a call. Nothing is run.

It may also nest tuples: as keys of a dictionary, a million in each other overflow the stack of the
process, which ends it.
"""

from __future__ import annotations

import pickletools
import re
import warnings
from typing import IO, TYPE_CHECKING, Literal

from rankwise.checkpoints.safety import convert_errors, format_path
from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    from rankwise.checkpoints.source import FileSource

_MIN_LIMIT = 2**26  # numbers; what a call may ask for in a file of any size
_FACTOR = 16  # times the bytes of the file
_MIN_LEGACY = 2**13
# Bytes that may be an instruction to push a large number; few real files have any.
_SUSPECT = re.compile(
    rb"J...[\x04-\x7f]|\x8a[\x04-\xff]|\x8b|[IL]-?[0-9]{8,}|bytearray|Tensor", re.DOTALL
)
# Constructors that take memory by themselves. PyTorch saves tensors by others.
_TYPES = "BFloat16|Bool|Byte|Char|Complex\\w+|Double|Float|Half|Int|Long|Short"
_GREEDY = re.compile(rf"(\S+ )?(bytearray|({_TYPES})Tensor)")
_MAX_LINE = 2**20
_MAX_NESTED = 1000  # tuples in tuples
_MANY_TUPLES = 5000  # instructions that may make tuples: fewer can't nest them dangerously
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_LARGE = 2**62
_CALLS = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST", "BINPERSID"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}


class BoundedReader:
    """A file that is read by small steps and never asked for more than it has."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size

    def read(self, count: int) -> bytes:
        """Return at most so many bytes."""
        return self._file.read(min(count, self._size - self._file.tell()))

    def readline(self) -> bytes:
        """Return the bytes up to the end of a line, or the first of a very long one."""
        return self._file.readline(_MAX_LINE)

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._file.tell()


def check_program(source: FileSource, program: bytes | BoundedReader) -> None:
    """Raise an error if a pickle asks for more memory than a file of this size can need."""
    if isinstance(program, bytes):
        limit = max(_MIN_LIMIT, _FACTOR * source.size)
        if _SUSPECT.search(program) is None and _count_tuples(program) < _MANY_TUPLES:
            return
    else:  # a legacy file, whose tensors take memory when they are made, a byte or more a number
        limit = max(_MIN_LEGACY, source.size)
    with convert_errors(source.path, "a PyTorch file"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts of Python 2 may have odd escapes
        fault = _find_fault(program, limit)
    if fault == "nested":
        raise CheckpointError(
            f"{format_path(source.path)}: nests more than {_MAX_NESTED} tuples; damaged or "
            "malicious."
        )
    if fault == "memory":
        raise CheckpointError(
            f"{format_path(source.path)}: asks for more memory than a file of {source.size} bytes "
            "can need; damaged or malicious."
        )


def _count_tuples(program: bytes) -> int:
    """Return how many instructions make tuples at most, from bytes that may be such."""
    with_marks = min(program.count(b"("), program.count(b"t"))
    return with_marks + sum(program.count(code) for code in (b"\x85", b"\x86", b"\x87"))


def _find_fault(program: bytes | BoundedReader, limit: int) -> Literal["memory", "nested"] | None:
    """Return whether a number above the limit reaches a call, or tuples are nested too deeply.

    The stack of the pickle machine is followed with one number for each object: how deeply tuples
    are nested in it, or `_LARGE` where it is, or contains, a number above the limit.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[object, int] = {}
    for instruction, argument, _ in pickletools.genops(program):  # type: ignore[arg-type]
        name = instruction.name
        taken = _pop(instruction, stack, marks)
        depth = max(taken, default=0)
        if name in _CALLS and depth == _LARGE:
            return "memory"
        if isinstance(argument, str) and _GREEDY.fullmatch(argument):
            return "memory"
        if name == "MARK":
            marks.append(len(stack))
        elif name in _PUTS or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1] if stack else 0
        elif name in _GETS:
            stack.append(memo.get(argument, 0))
        elif name in _TUPLES and depth < _LARGE:
            if depth == _MAX_NESTED:
                return "nested"
            stack.append(depth + 1)
        else:
            is_large = isinstance(argument, int) and abs(argument) > limit
            count = len(instruction.stack_after)
            stack += [_LARGE if is_large or depth == _LARGE else 0] * count
    return None


def _pop(instruction: pickletools.OpcodeInfo, stack: list[int], marks: list[int]) -> list[int]:
    """Take from the stack what an instruction takes, down to the last mark if it says so."""
    before = instruction.stack_before
    taken: list[int] = []
    has_mark = pickletools.markobject in before or (
        instruction.name == "POP" and bool(marks) and marks[-1] == len(stack)
    )
    if has_mark:
        start = marks.pop() if marks else 0
        taken = stack[start:]
        del stack[start:]
        before = before[: before.index(pickletools.markobject)] if before else []
        if instruction.name == "POP":
            return taken
    if instruction.name in _PUTS or instruction.name == "MEMOIZE":
        return taken
    for _ in before:
        taken.append(stack.pop() if stack else 0)
    return taken
