"""What makes a run repeatable: seeds, and a record of commit, versions and hardware.

Every random choice of a run follows from the run's seed and its place in the run. No generator
lives longer than a batch, so there is no random state to save: epoch and batch determine every
draw, on any number of processes.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import rankwise
from rankwise.lab.records import Hardware, Session

_PACKAGES = ("torch", "numpy", "lightning-fabric", "pytorch-optimizer", "scikit-learn")


def derive_seed(*place: int | str) -> int:
    """Return a seed of 63 bits for a place, such as `(seed, "order", epoch)`."""
    text = "\0".join(map(str, place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def make_generator(*place: int | str) -> torch.Generator:
    """Return a generator on the CPU, seeded for a place."""
    return torch.Generator().manual_seed(derive_seed(*place))


def describe_session(
    *, threads: int, processes: int = 1, epoch: int = 0, data: dict[str, Any] | None = None
) -> Session:
    """Return the record of this start of a run."""
    return Session(
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=_commit(),
        versions=_versions(),
        hardware=_hardware(threads),
        processes=processes,
        epoch=epoch,
        data=data or {},
    )


def _versions() -> dict[str, str]:
    own = {"python": platform.python_version(), "rankwise": rankwise.__version__}
    return own | {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _hardware(threads: int) -> Hardware:
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return Hardware(
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        cores=os.cpu_count(),
        threads=threads,
        accelerators=tuple(torch.cuda.get_device_name(number) for number in cuda),
    )


def _cpu() -> str:
    info = Path("/proc/cpuinfo")  # platform.processor() is empty on Linux
    for line in info.read_text(encoding="utf-8").splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str | None:
    """Return the code's commit, with "+" if it was changed since; None outside a repository."""
    git = shutil.which("git")
    folder = Path(__file__).parents[2]
    if git is None or not (folder.parent / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(  # noqa: S603
                [git, "-C", str(folder), *words],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changes else "")
