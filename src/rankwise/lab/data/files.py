"""Where the files of a dataset are looked for, and how untrusted files are read."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rankwise.errors import DataError

# Debian packages such as dataset-fashion-mnist install datasets here.
SYSTEM_FOLDER = Path("/usr/share/datasets")

_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20


def list_folders(root: Path, names: Sequence[str]) -> list[Path]:
    """List the folders that may hold a dataset: `root/NAME`, and `root` itself if so named."""
    folders = [root / name for name in names]
    absolute = root.resolve()
    if any(absolute.match(name) for name in names):
        folders.append(root)
    return folders


def find_file(folders: Iterable[Path], names: Sequence[str]) -> Path | None:
    """Return the first existing file or folder: the first folder wins, then the first name."""
    paths = (folder / name for folder in folders for name in names)
    return next((path for path in paths if path.exists()), None)


def require_file(
    name: str, folders: Sequence[Path], names: Sequence[str], *, files: str, advice: str
) -> Path:
    """Return what `find_file` finds, or raise what `missing_error` returns."""
    path = find_file(folders, names)
    if path is None:
        raise missing_error(name, folders, files=files, advice=advice)
    return path


def missing_error(name: str, folders: Sequence[Path], *, files: str, advice: str) -> DataError:
    """Return the error for a dataset that was not found; `advice` completes "Either …"."""
    places = ", ".join(dict.fromkeys(map(str, folders)))
    other = "text:PATH with a text of your own" if name == "ptb" else "digits, which needs no files"
    return DataError(
        f"The dataset {name} was not found: looked for {files} in {places}. Either {advice}, or "
        f"use the dataset {other}."
    )


def damaged_error(path: Path, reason: object) -> DataError:
    """Return the error for a file that can't be read to its end."""
    return DataError(f"{path} is damaged or incomplete ({reason}); download the file again.")


class LimitedFile(io.RawIOBase):
    """Read a file, decompressed if it is gzip, up to a limit of bytes.

    A small gzip file may decompress to any size; the limit protects the memory from hostile ones.
    """

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__()
        self._path = path
        self._left = limit
        self._file = _open(path)

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes; fewer than asked for at the end of the file."""
        try:
            data = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged_error(self._path, error) from error
        self._left -= len(data)
        if self._left < 0:
            raise DataError(
                f"{self._path} is larger than this dataset can be; get the original file."
            )
        return data

    def read_rest(self) -> bytearray:
        """Return all remaining bytes."""
        data = bytearray()
        while chunk := self.read(_CHUNK):
            data += chunk
        return data

    def set_limit(self, size: int) -> None:
        """Allow `size` more bytes from here on."""
        self._left = size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file, decompressed if its first bytes (not its name) say that it is gzip."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP_MAGIC
        return gzip.open(path, "rb") if compressed else path.open("rb")
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}.") from error
