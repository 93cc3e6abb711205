"""What a run ran on: the commit, the versions, the hardware."""

from __future__ import annotations

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

__all__ = ["describe_session"]

_PACKAGES = ("torch", "numpy", "lightning-fabric", "pytorch-optimizer", "scikit-learn")


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
    found = {"python": platform.python_version(), "rankwise": rankwise.__version__}
    return found | {package: _version(package) for package in _PACKAGES}


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
    """The commit of the code, "+" behind it if it was changed since; None outside a repository."""
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
