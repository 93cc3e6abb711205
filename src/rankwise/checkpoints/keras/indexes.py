"""Indexes of groups and of chunks that lead in circles, found before the HDF5 library follows them.

The library follows the tree of names of a group, the list of gaps between the names and, before
version 2, the tree of chunks without an end: it runs out of stack or takes all memory.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwise.checkpoints.source import OpenSource

_MAX_NODES = 200_000  # of a file, and gaps
_MAX_LEVELS = 32
_TREE, _NODE = b"TREE", struct.Struct("<4sBBHQQ")  # magic, type, level, entries, two neighbours
_HEAP, _NAMES = b"HEAP", struct.Struct("<4sB3xQQQ")  # magic, version, size, first gap, place
_NO_GAP = 1  # where the next one would be
_NOWHERE = 2**64 - 1
_ADDRESS = 8


class IndexChecker:
    """Follows the indexes of one file, each part once."""

    def __init__(self, file: OpenSource) -> None:
        self._file = file
        self._left = _MAX_NODES
        self._seen: set[int] = set()  # indexes that were checked

    def check_tree(self, place: int, key: int) -> None:
        """Raise ``ValueError`` unless a tree with keys of so many bytes has an end."""
        if place == _NOWHERE or place in self._seen:
            return
        nodes = {place}
        waiting = [(place, None)]
        while waiting:
            node, expected = waiting.pop()
            self._count()
            magic, _, level, entries, _, _ = _NODE.unpack(self._file.read(node, _NODE.size))
            is_valid = level <= _MAX_LEVELS if expected is None else level == expected
            if magic != _TREE or not is_valid:
                raise ValueError("an index is damaged, or leads in a circle")
            if level == 0:
                continue
            step = key + _ADDRESS
            content = self._file.read(node + _NODE.size, entries * step)
            for start in range(key, len(content), step):
                child = int.from_bytes(content[start : start + _ADDRESS], "little")
                if child in nodes:
                    raise ValueError("an index leads in a circle")
                nodes.add(child)
                waiting.append((child, level - 1))
        self._seen.add(place)

    def check_names(self, place: int) -> None:
        """Raise ``ValueError`` unless the gaps between the names of a group have an end."""
        if place in self._seen:
            return
        magic, _, size, gap, data = _NAMES.unpack(self._file.read(place, _NAMES.size))
        if magic != _HEAP:
            raise ValueError("the names of a group are not where it says")
        gaps: set[int] = set()
        while gap not in (_NO_GAP, _NOWHERE):
            self._count()
            if gap in gaps or gap + 2 * _ADDRESS > size:
                raise ValueError("the list of gaps between names is damaged, or leads in a circle")
            gaps.add(gap)
            gap = int.from_bytes(self._file.read(data + gap, _ADDRESS), "little")
        self._seen.add(place)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"its indexes have more than {_MAX_NODES} parts")
