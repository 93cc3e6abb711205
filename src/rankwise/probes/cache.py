"""Measured layers on disk: a probe that was stopped continues where it stopped.

An entry is found by the numbers of the weight, not by its name or file, so that the layers that a
fine-tuned network shares with its base are measured once. Entries are JSON, checked as a saved
probe is, in a folder that only its owner can open.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import time
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankwise._io import write_atomically
from rankwise.numerics.randomness import RandomnessTest, Verdict
from rankwise.probes.layer_metrics import ModeMetrics

MAX_BYTES = 1 << 30  # of all entries
# Multiplications that measuring must take, some 20 ms, for an entry to be worth its file.
MIN_WORK = 1e9
_FOLDER = "layers"
_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_TEMPORARY = re.compile(r"\.rankwise-[0-9a-f]+\.tmp")
_ABANDONED = 86400.0  # seconds after which a file that was not completed never will be
_HASHED = 16 << 20  # bytes at a time
# What a result depends on, apart from the weight and the options.
_CODE = {"rankwise.numerics": None, "rankwise.probes": ("measure.py", "layer_metrics.py")}


class Measured(NamedTuple):
    """All that is measured of one weight."""

    modes: tuple[ModeMetrics, ...]
    norm: float
    test: RandomnessTest | None


class LayerCache:
    """Entries of measured layers below a folder; of those beyond 1 GiB the oldest are deleted.

    Where the folder can't be used (no space, no permission, not private), nothing is kept, and
    everything is measured.

    Args:
        folder: Where to keep them.

    Attributes:
        hits: How many entries were found.
    """

    def __init__(self, folder: Path) -> None:
        self.hits = 0
        self._folder = folder / _FOLDER
        self._unchecked = MAX_BYTES  # bytes written since the size was last checked: not known
        self._is_usable = _make_private(self._folder)

    def make_key(self, tensor: Tensor, *options: object) -> str:
        """Return the name of an entry: a hash of the numbers, the options and our own code."""
        digest = hashlib.blake2b(digest_size=32)
        described = (_hash_code(), str(tensor.dtype), tuple(tensor.shape), *options)
        digest.update(repr(described).encode())
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        for start in range(0, len(data), _HASHED):
            digest.update(data[start : start + _HASHED].numpy().data)
        return digest.hexdigest()

    def get(self, key: str, *, spectra: bool) -> Measured | None:
        """Return an entry; None where there is none, or it is damaged or without its spectra."""
        if not self._is_usable:
            return None
        path = self._locate(key)
        try:
            measured = _decode(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        if any((mode.spectrum is None) and spectra for mode in measured.modes):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the oldest are those not used for longest
        self.hits += 1
        if spectra:
            return measured
        return measured._replace(modes=tuple(mode.without_spectrum() for mode in measured.modes))

    def put(self, key: str, measured: Measured) -> None:
        """Keep an entry, as far as there is space."""
        if not self._is_usable:
            return
        content = json.dumps(_encode(measured), allow_nan=False).encode()
        path = self._locate(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, content)
        except OSError:  # a full disk is no reason to stop
            self._is_usable = False
            return
        self._unchecked += len(content)
        if self._unchecked > MAX_BYTES // 16:
            self._delete_oldest()

    def _delete_oldest(self) -> None:
        """Delete what was not used for longest, until the rest is within the limit."""
        self._unchecked = 0
        entries = sorted(self._list_entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= MAX_BYTES:
                return
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            total -= size

    def _list_entries(self) -> list[tuple[float, int, Path]]:
        """List time, size and path of all entries; delete what killed processes left behind."""
        entries = []
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                if _ENTRY.fullmatch(path.name):
                    entries.append((status.st_mtime, status.st_size, path))
                elif _TEMPORARY.fullmatch(path.name) and time.time() - status.st_mtime > _ABANDONED:
                    path.unlink(missing_ok=True)
        return entries

    def _locate(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def find_cache_folder() -> Path:
    """Return where this user's entries are kept: $RANKWISE_CACHE, or as the system has it.

    Example:
        >>> import os
        >>> from unittest import mock
        >>> from rankwise.probes.cache import find_cache_folder
        >>> with mock.patch.dict(os.environ, {"RANKWISE_CACHE": "scratch"}):
        ...     find_cache_folder().name
        'scratch'
    """
    if given := os.environ.get("RANKWISE_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rankwise"


def _make_private(folder: Path) -> bool:
    """Create a folder for this user alone; return whether it is one."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return False
    # Others who could write here could make up metrics. Windows keeps a profile private by itself.
    is_ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return is_ours and (os.name == "nt" or not status.st_mode & 0o077)


@cache
def _hash_code() -> str:
    """Return a hash of the code that measures: what another version measured is never used."""
    digest = hashlib.blake2b()
    for package, names in _CODE.items():
        modules = [item for item in files(package).iterdir() if item.name.endswith(".py")]
        for module in sorted(modules, key=lambda item: item.name):
            if names is None or module.name in names:
                digest.update(module.read_bytes())
    return digest.hexdigest()


def _encode(measured: Measured) -> dict[str, Any]:
    test = measured.test
    return {
        "modes": [mode.to_dict() for mode in measured.modes],
        "norm": measured.norm,
        "test": None if test is None else [test.verdict.value, test.chance, test.overlap],
    }


def _decode(entry: dict[str, Any]) -> Measured:
    """Invert `_encode`; raise KeyError, TypeError or ValueError for anything else."""
    modes = tuple(ModeMetrics.from_dict(mode) for mode in entry["modes"])
    test = entry["test"]
    if test is not None:
        verdict, chance, overlap = test
        test = RandomnessTest(Verdict(verdict), float(chance), float(overlap))
    if not modes:
        raise ValueError("a measured layer has unfoldings")
    return Measured(modes, float(entry["norm"]), test)
