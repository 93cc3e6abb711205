"""Guards for files that nobody vouches for: paths, JSON, parsers that fail."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise._io import explain_missing
from rankwise._text import quote, sanitize
from rankwise.errors import CheckpointError, RankwiseError, UnsafeFileError
from rankwise.weights.tensor import Status, Weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch
    from torch import Tensor

_MAX_REASON = 200
_MAX_LISTED = 8
# org/name, as the Hugging Face Hub names repositories; a file would have an extension.
_REPO_NAME = re.compile(
    r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.pt)(?<!\.pth)(?<!\.bin)(?<!\.ckpt)(?<!\.np[yz])", re.A
)


def format_path(path: Path) -> str:
    """Return a path as text that is safe to print."""
    return sanitize(str(path))


def list_some(texts: Iterable[str]) -> str:
    """Join the first few texts by commas and count the others."""
    texts = list(texts)
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + more


@contextmanager
def convert_errors(path: Path, what: str) -> Iterator[None]:
    """Turn every failure inside into a ``CheckpointError`` of one line; rankwise's own errors pass.

    `what` is what the file is read as, with its article: "a PyTorch file".
    """
    try:
        yield
    except RankwiseError:
        raise
    except OSError as error:
        raise build_read_error(path, error) from error
    except MemoryError as error:
        raise CheckpointError(f"{format_path(path)}: not enough memory to read it.") from error
    # Parsers raise anything on hostile bytes: KeyError, IndexError, struct.error, RecursionError.
    except Exception as error:
        raise CheckpointError(
            f"{format_path(path)}: can't be read as {what}; it may be damaged or truncated: "
            f"{_summarize(error)}"
        ) from error


def build_read_error(path: Path, error: OSError) -> CheckpointError:
    """Return the error to raise where the system refuses a read."""
    reason = error.strerror or _summarize(error)
    return CheckpointError(f"{format_path(path)}: can't be read: {reason}.")


def _summarize(error: Exception) -> str:
    """Return the first line of an error's text, or its class name where it has none."""
    lines = (line.strip() for line in str(error).splitlines())
    text = next((line for line in lines if line), type(error).__name__)
    return sanitize(text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "…")


def build_unreadable(
    path: Path,
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    obstacle: tuple[Status, str],
) -> Weight:
    """Return the row of a tensor that can't be probed; its ``load`` raises ``CheckpointError``."""

    def load() -> Tensor:
        raise CheckpointError(f"{format_path(path)}: {quote(name)} can't be read: {obstacle[1]}.")

    return Weight(name, shape, dtype, load, obstacle=obstacle)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder."""
    return stat.S_ISDIR(_get_status(path).st_mode)


def get_file_size(path: Path) -> int:
    """Return the size in bytes of a regular file; reading a pipe or device could block forever."""
    status = _get_status(path)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(
            f"{format_path(path)}: not a regular file but a pipe, socket or device; "
            "save its content to a file first."
        )
    if isinstance(path, Path) and not os.access(path, os.R_OK):
        raise CheckpointError(
            f"{format_path(path)}: permission denied; make the file readable for your user."
        )
    return status.st_size


def _get_status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError as error:
        raise CheckpointError(_explain_missing(path)) from error
    except PermissionError as error:
        raise CheckpointError(f"{format_path(path)}: permission denied.") from error
    except (OSError, ValueError) as error:  # ValueError: a path that holds a null byte
        raise CheckpointError(f"{format_path(path)}: can't be reached.") from error


def _explain_missing(path: Path) -> str:
    if not isinstance(path, Path):  # on the Hugging Face Hub
        return f"{format_path(path)}: no such file or folder."
    text = explain_missing(path)
    if text.endswith("?") or not _REPO_NAME.fullmatch(str(path)):
        return text
    return f"{text} Did you mean hf://{path}?"


def safe_join(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder, given its name as written in an untrusted file.

    A name that is absolute, contains "..", or is a link out of the folder is refused.
    """
    parts = name.replace("\\", "/").split("/")
    has_drive = parts[0][1:2] == ":"  # C:file, on systems that have drives
    if not name or "\0" in name or parts[0] == "" or has_drive or ".." in parts:
        raise UnsafeFileError(
            f"{format_path(folder)}: a file in it refers to {quote(name)}, which is not inside "
            "this folder; nothing was read."
        )
    path = folder / name
    try:
        real, home = path.resolve(), folder.resolve()
    # A link to itself, a name that is too long or that no file system can have.
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{format_path(path)}: can't be reached.") from error
    if not real.is_relative_to(home) and real.parent != _find_blobs(home):
        raise UnsafeFileError(
            f"{format_path(path)}: a link that leads out of its folder; nothing was read. "
            "Give the path of the real file, or copy it into the folder."
        )
    return path


def is_present(path: Path) -> bool:
    """Return whether there is a file; a name that no file can have means that there is none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _find_blobs(home: Path) -> Path | None:
    """Return where a Hugging Face cache keeps the files that snapshots/<revision>/ links to."""
    snapshots = next((parent for parent in home.parents if parent.name == "snapshots"), None)
    return None if snapshots is None else snapshots.parent / "blobs"


def parse_json_object(path: Path, text: bytes, what: str) -> dict[str, object]:
    """Parse a JSON object and refuse one in which a key occurs twice.

    Two readers of a repeated key may take different values, so that what one of them checked isn't
    what the other uses.
    """

    def build(items: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(items)
        if len(result) != len(items):
            name = Counter(key for key, _ in items).most_common(1)[0][0]
            raise CheckpointError(f"{format_path(path)}: {what} has the key {quote(name)} twice.")
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=build)
    except RecursionError as error:
        raise CheckpointError(f"{format_path(path)}: {what} is nested too deeply.") from error
    except ValueError as error:
        raise CheckpointError(
            f"{format_path(path)}: {what} isn't valid JSON: {_summarize(error)}"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{format_path(path)}: expected {what} to be a JSON object, got {type(value).__name__}."
        )
    return value
