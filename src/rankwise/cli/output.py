"""A probe → files for other programs: JSON, CSV, Parquet; every row, skipped ones included."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise._io import refuse_overwrite, write_atomically
from rankwise._text import sanitize
from rankwise.errors import ArgumentError, MissingExtraError
from rankwise.probes.results import LayerMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwise.probes.probe_result import Probe

__all__ = ["STDOUT", "check_parquet", "check_targets", "format_csv", "parquet_bytes", "write"]

STDOUT = "-"


def format_csv(probe: Probe) -> str:
    """A probe as CSV, a tensor a line; text is made sanitize, a shape reads 64x3x7x7."""
    columns = [field.name for field in fields(LayerMetrics) if field.name != "modes"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for layer in probe.layers:
        row = layer.to_dict() | {"shape": "x".join(map(str, layer.shape))}
        writer.writerow({k: sanitize(v) if isinstance(v, str) else v for k, v in row.items()})
    return text.getvalue()


def parquet_bytes(probe: Probe) -> bytes:
    """A probe as a Parquet file."""
    buffer = io.BytesIO()
    probe.to_frame().to_parquet(buffer)
    return buffer.getvalue()


def check_parquet() -> None:
    """See that Parquet can be written before the work is done.

    Raises:
        MissingExtraError: Without pandas or pyarrow.
    """
    for package in ("pandas", "pyarrow"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "parquet", "Writing Parquet")


def check_targets(targets: Sequence[str], sources: Sequence[Path]) -> None:
    """See that outputs can be written, before the work is done, and destroy no input.

    Raises:
        ArgumentError: If two outputs are one, an output is an input or a folder, or its folder is
            missing.
    """
    places = [target if target == STDOUT else Path(target).resolve() for target in targets]
    if len(set(places)) < len(places):
        raise ArgumentError("Two outputs can't go to the same place; give each its own.")
    for target in targets:
        path = Path(target)
        if target == STDOUT:
            continue
        refuse_overwrite(path, sources)
        if not path.parent.is_dir():
            raise ArgumentError(f"{target}: there is no folder {path.parent}.")
        if path.is_dir():
            raise ArgumentError(f"{target}: it is a folder; expected the name of a file.")


def write(target: str, content: bytes) -> None:
    """Write a file whole or not at all; "-" is stdout.

    Raises:
        OSError: If it can't be written; what stood there before is left as it was.
    """
    if target == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        write_atomically(Path(target), content)
