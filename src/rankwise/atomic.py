"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["write_bytes"]


def write_bytes(path: Path, content: bytes) -> None:
    """Writes beside the file first, then puts it in its place in one step.

    Raises:
        OSError: If it can't be written; what stood there before is left as it was.
    """
    path = path.resolve()  # a link keeps pointing to the file
    if path.exists() and not path.is_file():  # /dev/null must not be replaced by a file
        path.write_bytes(content)
        return
    # Not tempfile, whose files only their owner may read.
    fresh = path.with_name(f".rankwise-{secrets.token_hex(6)}.tmp")
    try:
        with fresh.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:  # a full disk tells no name, or that of the file beside
        fresh.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
