"""The structure of a PyTorch archive: its pickle, with each tensor's place in the file.

``torch.load`` is never given the file itself. It reads an archive made here in memory, which has
the file's pickle and a record without data for each of the file's, onto the device "meta". Each
storage that comes back knows at which offset of that archive its record lay, which tells the record
of the file. So neither PyTorch's reader of archives nor its mapping ever sees untrusted offsets.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from rankwise._text import quote, sanitize
from rankwise.checkpoints.pytorch.limits import check_program
from rankwise.checkpoints.pytorch.numpy_numbers import allow_numbers
from rankwise.checkpoints.pytorch.stand_ins import replace_globals, stand_ins
from rankwise.checkpoints.records import Record, read_record, read_records
from rankwise.checkpoints.safety import convert_errors, format_path
from rankwise.checkpoints.source import ByteOrder, FileSource
from rankwise.errors import CheckpointError, UnsafeFileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

_KIND = "a PyTorch file"
_PREFIX = "archive"
_VERSION = b"3\n"
_LOCAL_HEADER = 30  # bytes before the name of an entry
_REFUSED = "GLOBAL "


@dataclass(frozen=True, slots=True)
class TorchArchive:
    """What a file's pickle contains, tensors without data, and the records with the data."""

    source: FileSource
    tree: object
    byteorder: ByteOrder
    stored: int  # bytes of data in all records
    _records: dict[int, Record]  # by their offset in the archive that torch.load was given

    def find_record(self, tensor: Tensor) -> Record | None:
        """Return the record with a tensor's data, None where it was saved without data."""
        offset = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
        return None if offset is None else self._records[offset]


def read_archive(source: FileSource) -> TorchArchive:
    """Read the pickle of an archive, and where the data of its tensors lies."""
    _check_torch()
    records = {record.name: record for record in read_records(source)}
    for record in records.values():
        if record.is_compressed or record.size != record.stored:
            raise CheckpointError(
                f"{format_path(source.path)}: its entry {quote(record.name)} is compressed, which "
                "PyTorch never does; save the checkpoint again with torch.save."
            )
    prefix = next(iter(records)).partition("/")[0]
    program = records.get(f"{prefix}/data.pkl")
    if program is None:
        raise CheckpointError(
            f"{format_path(source.path)}: a PyTorch archive without the entry "
            f"{quote(prefix + '/data.pkl')}; it is damaged."
        )
    content = replace_globals(read_record(source, program).numpy().tobytes())
    check_program(source, content)
    data = [record for name, record in records.items() if name.startswith(f"{prefix}/data/")]
    archive, offsets = _build_archive(content, data, len(prefix))
    tree = load_pickle(source, lambda encoding: _load(archive, encoding))
    byteorder = _read_byteorder(source, records.get(f"{prefix}/byteorder"))
    return TorchArchive(source, tree, byteorder, sum(record.size for record in data), offsets)


def _build_archive(
    program: bytes, records: list[Record], prefix: int
) -> tuple[IO[bytes], dict[int, Record]]:
    """Return an archive with a pickle and empty records, and which record lies at which offset."""
    file = io.BytesIO()
    offsets = {}
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{_PREFIX}/data.pkl"), program)
        archive.writestr(zipfile.ZipInfo(f"{_PREFIX}/version"), _VERSION)
        archive.writestr(zipfile.ZipInfo(f"{_PREFIX}/byteorder"), sys.byteorder)
        for record in records:
            entry = zipfile.ZipInfo(_PREFIX + record.name[prefix:])
            archive.writestr(entry, b"")
            name_size = len(entry.filename.encode())
            offsets[entry.header_offset + _LOCAL_HEADER + name_size] = record
    return file, offsets


@lru_cache
def _check_torch() -> None:
    """Raise ``CheckpointError`` if this PyTorch does not tell where a tensor's data lies."""
    file = io.BytesIO()
    torch.save(torch.ones(1), file)
    file.seek(0)
    tensor = torch.load(file, map_location="meta", weights_only=True, mmap=False)
    if getattr(tensor.untyped_storage(), "_checkpoint_offset", None) is None:
        raise CheckpointError(
            f"Reading PyTorch files needs torch 2.11 or later, this is {torch.__version__}: "
            "pip install --upgrade torch"
        )


def _load(archive: IO[bytes], encoding: str) -> object:
    archive.seek(0)
    with stand_ins(), allow_numbers():
        return torch.load(
            archive, map_location="meta", weights_only=True, mmap=False, encoding=encoding
        )


def load_pickle(source: FileSource, load: Callable[[str], object]) -> object:
    """Return what ``torch.load`` makes of a file; `load` calls it with the encoding of texts."""
    path = source.path
    # Damaged and old files make torch warn; a failure is reported once, as an error.
    with convert_errors(path, _KIND), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            try:
                return load("utf-8")
            except UnicodeDecodeError:  # texts of Python 2 can be in any encoding
                return load("latin1")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{format_path(path)}: holds a text that is not UTF-8; "
                "give its tensors other names and save it again."
            ) from error
        except pickle.UnpicklingError as error:
            raise UnsafeFileError(_explain_refusal(source, str(error))) from error


def _explain_refusal(source: FileSource, text: str) -> str:
    remedy = (
        "If you trust it, save its weights alone with torch.save(model.state_dict(), 'weights.pt') "
        "or convert it to .safetensors."
    )
    _, _, wanted = text.partition(_REFUSED)
    if wanted:
        reason = f"refers to {quote(wanted.split()[0])}, which could run code"
    else:
        # The cause stands between lines of advice.
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        advice = ("Please", "Check")
        line = next((line for line in lines[1:] if not line.startswith(advice)), lines[0])
        reason = f"contains more than tensors, or is damaged ({sanitize(line[:200])})"
    return f"{format_path(source.path)}: {reason}; nothing was run. {remedy}"


def _read_byteorder(source: FileSource, record: Record | None) -> ByteOrder:
    if record is None:  # as PyTorch takes it
        return "little"
    order = source.read(record.start, min(record.size, 16)).decode("ascii", "replace")
    if order not in ("little", "big"):
        raise CheckpointError(
            f"{format_path(source.path)}: expected 'little' or 'big' as its byte order, "
            f"got {quote(order)}."
        )
    return cast("ByteOrder", order)
