"""Where the files of a data set are looked for, and how they are opened without trusting them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rankwise.errors import DataError

__all__ = ["Source", "first_existing", "homes", "missing", "read_all"]

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20


def homes(root: Path, names: Iterable[str]) -> list[Path]:
    """The folders that are a data set's own: `root/NAME`, and `root` itself if so named.

    Args:
        root: The folder in which data sets are looked for.
        names: What the data set's folder is called, such as "mnist" or "MNIST/raw".
    """
    folders = [root / name for name in names]
    own = root.resolve()
    if any(own.match(name) for name in names):
        folders.append(root)
    return folders


def first_existing(folders: Iterable[Path], names: Sequence[str]) -> Path | None:
    """The first of these names that is in the first of these folders to have any of them."""
    paths = (folder / name for folder in folders for name in names)
    return next((path for path in paths if path.exists()), None)


def missing(name: str, files: str, folders: Sequence[Path], advice: str) -> DataError:
    """The error for a data set that is nowhere.

    Args:
        name: The data set.
        files: What was looked for, as in "the files a and b".
        folders: Where it was looked for.
        advice: How to get it, as the rest of the sentence "Either …".
    """
    places = ", ".join(dict.fromkeys(map(str, folders)))
    return DataError(
        f"The data set {name} was not found: looked for {files} in {places}; either {advice}, "
        "or take the data set digits, which needs no download."
    )


class Source(io.RawIOBase):
    """A file read from its start, unpacked if it is gzip, and never past a limit.

    A small gzip file may unpack to any size; the limit keeps a hostile one from filling the memory.
    """

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__()
        self._path = path
        self._left = limit
        self._file = _open(path)

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; fewer than asked for at the end of the file.

        Raises:
            DataError: If the file is damaged or holds more than the limit.
        """
        try:
            data = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{self._path} is damaged or cut off ({error}); get the file anew."
            ) from error
        self._left -= len(data)
        if self._left < 0:
            raise DataError(
                f"{self._path} holds more than this data set can have; get the original file."
            )
        return data

    def allow(self, size: int) -> None:
        """Set a new limit: so many bytes from here on."""
        self._left = size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def read_all(source: Source) -> bytearray:
    """All that a source holds, at most its limit."""
    data = bytearray()
    while chunk := source.read(_CHUNK):
        data += chunk
    return data


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """The unpacked bytes of a file; what it is stands in its first bytes, not in its name."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        return gzip.open(path, "rb") if packed else path.open("rb")
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}.") from error
