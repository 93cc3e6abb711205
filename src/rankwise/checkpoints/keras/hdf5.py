"""HDF5 files → a list of their datasets, without a look at anything outside of the file.

The package `h5py` reads the file's structure, from a file object that we open. Only links to
objects of the file itself are followed. The numbers are read here: the HDF5 library would follow
datasets into other files, and load shared libraries to unpack chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rankwise.checkpoints.keras.datasets import Budget, Dataset, describe_dataset, make_row
from rankwise.checkpoints.keras.headers import Attribute, Header, HeaderReader
from rankwise.checkpoints.safety import convert_errors, format_path
from rankwise.checkpoints.source import FileSource, OpenSource, PositionedFile
from rankwise.errors import CheckpointError, MissingExtraError
from rankwise.weights.tensor import Status

if TYPE_CHECKING:
    from types import ModuleType

    import h5py

Path = tuple[str, ...]  # names of groups and of what is in them

_MAX_LINKS = 500_000
_MAX_DEPTH = 64
_SIZES = (8, 8)  # of addresses and lengths
# Keras cuts lists that are too long for one attribute into several, numbered from 0.
_LISTS = ("layer_names", "weight_names")


@dataclass(slots=True)
class Listing:
    """The datasets of a file, in the order of its links, and the attributes that Keras writes."""

    datasets: list[Dataset] = field(default_factory=list)
    attributes: dict[Path, dict[str, Attribute]] = field(default_factory=dict)
    is_ordered: bool = True  # every group tells in which order its links were made
    has_deeper: bool = False  # groups that are nested too deeply were left out

    def get_text(self, path: Path, name: str) -> str | None:
        """Return an attribute of a group that is one text."""
        value = self.attributes.get(path, {}).get(name)
        return value if isinstance(value, str) else None

    def get_list(self, path: Path, name: str) -> list[str] | None:
        """Return an attribute of a group that is a list of texts."""
        value = self.attributes.get(path, {}).get(name)
        return value if isinstance(value, list) else None


def list_datasets(source: FileSource) -> Listing:
    """List the datasets of an HDF5 file, each with a function that loads it."""
    try:
        import h5py  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise MissingExtraError("h5py", "keras", "Reading .h5 and .keras files") from error
    with convert_errors(source.path, "an HDF5 file"), source.open() as opened:
        try:
            return _walk(h5py, source, opened)
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(str(error)) from error  # as h5py says that a file is damaged


def _walk(h5py: ModuleType, source: FileSource, opened: OpenSource) -> Listing:
    headers = HeaderReader(opened, source.size)
    place = headers.find_root()
    root = headers.read(place)  # before the library does
    with h5py.File(_CheckedFile(source.size, opened.read_into), "r") as file:
        if file.id.get_create_plist().get_sizes() != _SIZES:
            raise ValueError("its addresses are not of 8 bytes")
        walk = _Walk(source, headers)
        walk.visit(h5py.h5g.open(file.id, b"/"), place, root, ())
        return walk.listing


class _CheckedFile(PositionedFile):
    """A file that has all bytes that are asked for: the library does not look at their number."""

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any object with memory
        """Fill a buffer, or fail."""
        count = super().readinto(buffer)
        if count < memoryview(buffer).nbytes:
            raise OSError("a read beyond the end of the file")
        return count


class _Link(NamedTuple):
    name: bytes
    kind: int
    place: int  # of the object in the file, where the link is a hard one
    number: int | None  # counts the links of a group as they are made, where it was asked for


class _Walk:
    """A depth-first walk over the groups of a file, each of which is visited once."""

    def __init__(self, source: FileSource, headers: HeaderReader) -> None:
        self.listing = Listing()
        self._headers = headers
        self._source = source
        self._budget = Budget(source)
        self._links = _MAX_LINKS
        self._groups: set[int] = set()  # by their place in the file
        self._datasets: dict[int, Dataset] = {}

    def visit(self, group: h5py.h5g.GroupID, place: int, header: Header, path: Path) -> None:
        from h5py import h5l  # noqa: PLC0415

        self._groups.add(place)
        self.listing.attributes[path] = _join_lists(header.attributes)
        for link in self._list_links(group):
            name = link.name.decode("utf-8", "backslashreplace")
            if link.kind != h5l.TYPE_HARD:
                self._add_row((*path, name), _name_link(link.kind))
            elif name in ("", ".") or "/" in name:  # would be opened as a path
                self._add_row((*path, name), "a name that no object of HDF5 can have")
            elif link.place in self._datasets:
                self.listing.datasets.append(self._datasets[link.place].rename((*path, name)))
            elif link.place not in self._groups:
                self._visit_object(group, link, (*path, name))

    def _visit_object(self, group: h5py.h5g.GroupID, link: _Link, path: Path) -> None:
        from h5py import h5d, h5g, h5o  # noqa: PLC0415

        header = self._headers.read(link.place)
        if header.is_virtual:
            self._add_row(path, "its numbers are those of other datasets, which are not opened")
            return
        if header.is_external:
            self._add_row(path, "its numbers lie in another file, which is never opened")
            return
        item = h5o.open(group, link.name)
        if isinstance(item, h5g.GroupID):
            if len(path) > _MAX_DEPTH:
                self.listing.has_deeper = True
            else:
                self.visit(item, link.place, header, path)
        elif isinstance(item, h5d.DatasetID):
            found = describe_dataset(
                self._source,
                item,
                path,
                (str(self._source.path), link.place),
                self._budget,
                opaque_is_bfloat16=self._is_keras(header),
            )
            self._datasets[link.place] = found
            self.listing.datasets.append(found)

    def _is_keras(self, header: Header) -> bool:
        """Return whether Keras says that it wrote the file, or that a dataset is of bfloat16."""
        is_said = header.attributes.get("dtype") == "bfloat16"
        return is_said or "keras_version" in self.listing.attributes[()]

    def _add_row(self, path: Path, reason: str) -> None:
        self.listing.datasets.append(make_row(self._source, path, (Status.UNREADABLE, reason)))

    def _list_links(self, group: h5py.h5g.GroupID) -> list[_Link]:
        """Return a group's links, in the order in which they were made if all tell it.

        They are taken in the order in which they are stored: to sort them, the library would first
        collect them all, without end where the index of a group leads in a circle.
        """
        from h5py import h5  # noqa: PLC0415

        links: list[_Link] = []

        def add(name: bytes, info: Any) -> bool | None:  # noqa: ANN401 - of a package without types
            number = info.corder if info.corder_valid else None
            links.append(_Link(name, info.type, info.u, number))
            return True if len(links) > self._links else None

        group.links.iterate(add, order=h5.ITER_NATIVE, info=True)
        self._links -= len(links)
        if self._links < 0:
            raise CheckpointError(
                f"{format_path(self._source.path)}: it has more than {_MAX_LINKS} links; "
                "damaged or malicious."
            )
        if all(link.number is not None for link in links):
            return sorted(links, key=lambda link: link.number or 0)
        self.listing.is_ordered &= len(links) < 2
        return sorted(links, key=lambda link: link.name)


def _join_lists(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return attributes with the lists joined that Keras cut into several."""
    for name in _LISTS:
        pieces: list[str] = []
        count = 0
        while isinstance(piece := attributes.get(f"{name}{count}"), list):
            pieces += piece
            count += 1
        if count:
            attributes.setdefault(name, pieces)
    return attributes


def _name_link(kind: int) -> str:
    from h5py import h5l  # noqa: PLC0415

    reasons = {
        h5l.TYPE_EXTERNAL: "a link to another file, which is never opened",
        h5l.TYPE_SOFT: "a soft link, which is not followed",
    }
    return reasons.get(kind, "a link of unknown type")
