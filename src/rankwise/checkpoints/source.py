"""Bytes of a file that may be cut short or rewritten while it is read.

No part of a checkpoint is mapped into memory: where a mapped file shrinks, the system ends the
process. Every read opens the file, sees that it is still the one that was described, copies the
bytes, and looks again.
"""

from __future__ import annotations

import io
import math
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rankwise._text import quote
from rankwise.checkpoints.safety import (
    build_read_error,
    convert_errors,
    format_path,
    get_file_size,
)
from rankwise.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import FileIO

_CHUNK = 64 * 2**20
_CLOCK_TICK = 10_000_000  # nanoseconds between two times that a file system distinguishes
_MAX_WAITS = 5

ByteOrder = Literal["little", "big"]


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file as it was when it was described: its path, and what tells whether it has changed."""

    path: Path
    size: int
    identity: tuple[int, ...]  # device, number, size and time of the last change

    @contextmanager
    def open(self) -> Iterator[OpenSource]:
        """Open the file for some reads; raise ``CheckpointError`` if it is not what it was."""
        try:
            with open(self.path, "rb", buffering=0, opener=_open_without_waiting) as file:
                self._check(file)
                try:
                    yield OpenSource(self, file)
                finally:  # what failed inside may have failed for this reason
                    self._check(file)
        except OSError as error:
            raise build_read_error(self.path, error) from error

    def read(self, start: int, count: int) -> bytes:
        """Return a range of bytes."""
        with self.open() as file:
            return file.read(start, count)

    def read_tensor(self, start: int, nbytes: int) -> Tensor:
        """Return a range of bytes as a tensor of its own memory, of type uint8."""
        self.check_range(start, nbytes)  # before so much memory is taken
        data = allocate(nbytes)
        if nbytes:
            with self.open() as file:
                file.read_into(start, get_buffer(data))
        return data

    def check_range(self, start: int, count: int) -> None:
        """Raise ``CheckpointError`` if a range does not lie inside the file."""
        if not 0 <= start <= start + count <= self.size:
            raise CheckpointError(
                f"{format_path(self.path)}: {count} bytes at {start} lie beyond the end of the "
                f"file, which has {self.size}; it is truncated or damaged."
            )

    def build_change_error(self) -> CheckpointError:
        """Return the error to raise where the file isn't what it was."""
        return CheckpointError(
            f"{format_path(self.path)}: changed while it was being read; "
            "try again once it is complete."
        )

    def _check(self, file: FileIO) -> None:
        if _identify(os.fstat(file.fileno())) != self.identity:
            raise self.build_change_error()


class OpenSource:
    """A file that is open for reads by position, none of them beyond the size it was given."""

    def __init__(self, source: FileSource, file: FileIO) -> None:
        self._source = source
        self._file = file

    def read(self, start: int, count: int) -> bytes:
        """Return a range of bytes."""
        self._source.check_range(start, count)
        self._file.seek(start)
        data = self._file.read(count)
        if len(data) < count:  # more than the system reads at once
            buffer = bytearray(count)
            self.read_into(start, memoryview(buffer))
            return bytes(buffer)
        return data

    def as_file(self) -> IO[bytes]:
        """Return the open file itself."""
        return self._file

    def read_into(self, start: int, view: memoryview) -> None:
        """Fill a buffer with the bytes that begin at `start`."""
        self._file.seek(start)
        place = 0
        while place < len(view):
            count = self._file.readinto(view[place : place + _CHUNK])
            if not count:  # it had these bytes when it was opened
                raise self._source.build_change_error()
            place += count


class PositionedFile(io.RawIOBase):
    """A file of known size whose bytes come from a function that fills a buffer from a position."""

    def __init__(self, size: int, fetch: Callable[[int, memoryview], None]) -> None:
        self._size = size
        self._fetch = fetch
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position of the next read."""
        base = (0, self._place, self._size)[whence]
        if base + offset < 0:
            raise OSError("a position before the beginning of the file")
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._place

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any object with memory
        """Fill a buffer, as far as there are bytes."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._place))
        if count:
            self._fetch(self._place, view[:count])
        self._place += count
        return count


@dataclass(frozen=True, slots=True)
class RangeSource(FileSource):
    """A part of a file that is read like a file: one that lies in an archive, say."""

    whole: FileSource
    start: int

    @contextmanager
    def open(self) -> Iterator[OpenSource]:
        """Open the file for some reads; positions count from the beginning of the part."""
        with self.whole.open() as file:

            def fetch(start: int, view: memoryview) -> None:
                file.read_into(self.start + start, view)

            yield OpenSource(self, PositionedFile(self.size, fetch))  # type: ignore[arg-type]


def take_range(whole: FileSource, start: int, size: int) -> RangeSource:
    """Return a part of a file as a file of its own."""
    whole.check_range(start, size)
    return RangeSource(whole.path, size, whole.identity, whole, start)


def open_source(path: Path) -> FileSource:
    """Return a regular file as it is now; its content is read later."""
    if not isinstance(path, Path):  # of a repository on the hub
        return path.open_source()
    get_file_size(path)  # refuses what is no regular file, or may not be read
    with convert_errors(path, "a checkpoint"):
        status = path.stat()
        for _ in range(_MAX_WAITS):
            source = FileSource(path, status.st_size, _identify(status))
            if time.time_ns() - status.st_mtime_ns > _CLOCK_TICK:
                return source
            # Another write in the same tick of the clock would leave no trace.
            time.sleep(_CLOCK_TICK / 1e9)
            status = path.stat()
            if _identify(status) == source.identity:
                return source
    raise source.build_change_error()


def _identify(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _open_without_waiting(path: str, flags: int) -> int:
    # A pipe put in the place of the file would wait for a writer.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def allocate(nbytes: int) -> Tensor:
    """Return memory for so many bytes."""
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    except RuntimeError as error:  # PyTorch's way to say so
        raise MemoryError(str(error)) from error


def get_buffer(data: Tensor) -> memoryview:
    """Return the memory of a tensor of bytes."""
    return memoryview(data.numpy())  # type: ignore[arg-type]


def decode(data: Tensor, dtype: torch.dtype, byteorder: ByteOrder = "little") -> Tensor:
    """Return stored bytes as numbers, in one row."""
    if byteorder != sys.byteorder:
        width = dtype.itemsize // (2 if dtype.is_complex else 1)
        data = data.view(-1, width).flip(1).reshape(-1) if data.numel() else data
    return data.view(dtype)


def check_rows(name: str, shape: tuple[int, ...], start: int, count: int) -> None:
    """Raise ``ArgumentError`` unless a tensor has these rows."""
    if not shape or not 0 <= start <= start + count <= shape[0]:
        raise ArgumentError(
            f"Expected rows of {quote(name)}, which has the shape {shape}, "
            f"got {count} rows from row {start}."
        )


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where the numbers of a tensor lie in a file, row after row, and how to read them."""

    source: FileSource
    name: str
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    byteorder: ByteOrder = "little"

    def load(self) -> Tensor:
        """Read the whole tensor."""
        return self._read(self.start, self.shape)

    def load_rows(self, start: int, count: int) -> Tensor:
        """Read some rows of the first axis alone."""
        check_rows(self.name, self.shape, start, count)
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        return self._read(self.start + start * row, (count, *self.shape[1:]))

    def _read(self, start: int, shape: tuple[int, ...]) -> Tensor:
        nbytes = math.prod(shape) * self.dtype.itemsize
        with convert_errors(self.source.path, "a checkpoint"):
            data = self.source.read_tensor(start, nbytes)
            return decode(data, self.dtype, self.byteorder).reshape(shape)
