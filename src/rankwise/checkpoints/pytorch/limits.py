"""What a pickle may ask PyTorch's loader for, before it is loaded.

The loader calls only functions that it knows, but some of them take as much memory as a number
says: a storage, a tensor, a `bytearray`. So a pickle is read here as a list of instructions, and
refused if a number larger than any real file needs reaches a call. Nothing is run.
"""

from __future__ import annotations

import pickletools
import re
import warnings
from typing import IO, TYPE_CHECKING

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
        if _SUSPECT.search(program) is None:
            return
    else:  # a legacy file, whose tensors take memory when they are made, a byte or more a number
        limit = max(_MIN_LEGACY, source.size)
    with convert_errors(source.path, "a PyTorch file"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts of Python 2 may have odd escapes
        asks_for_much = _asks_for_memory(program, limit)
    if asks_for_much:
        raise CheckpointError(
            f"{format_path(source.path)}: asks for more memory than a file of {source.size} bytes "
            "can need; damaged or malicious."
        )


def _asks_for_memory(program: bytes | BoundedReader, limit: int) -> bool:
    """Return whether a number above the limit becomes an argument of a call, or bytes are made.

    The stack of the pickle machine is followed with one flag for each object: whether it is, or
    contains, such a number.
    """
    stack: list[bool] = []
    marks: list[int] = []
    memo: dict[object, bool] = {}
    for instruction, argument, _ in pickletools.genops(program):  # type: ignore[arg-type]
        name = instruction.name
        taken = _pop(instruction, stack, marks)
        if name in _CALLS and any(taken):
            return True
        if isinstance(argument, str) and _GREEDY.fullmatch(argument):
            return True
        if name == "MARK":
            marks.append(len(stack))
        elif name in _PUTS or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else argument] = bool(stack) and stack[-1]
        elif name in _GETS:
            stack.append(memo.get(argument, False))
        else:
            is_large = isinstance(argument, int) and abs(argument) > limit
            count = len(instruction.stack_after)
            stack += [is_large or any(taken)] * count
    return False


def _pop(instruction: pickletools.OpcodeInfo, stack: list[bool], marks: list[int]) -> list[bool]:
    """Take from the stack what an instruction takes, down to the last mark if it says so."""
    before = instruction.stack_before
    taken: list[bool] = []
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
        taken.append(stack.pop() if stack else False)
    return taken
