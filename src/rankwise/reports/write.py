"""Paths → a page in a file: the report's main door."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankwise._io import refuse_overwrite, write_atomically
from rankwise.reports.build import build_page
from rankwise.reports.html import page_bytes

__all__ = ["write_report"]


def write_report(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    title: str | None = None,
) -> Path:
    """Writes one self-contained page about a checkpoint, several, a run or a study.

    Args:
        paths: One or more: a checkpoint or saved probe; two of them to compare; more to see an
            evolution; a run's folder; a folder of runs, or several runs, for a study.
        out: The file; whole or not at all.
        title: Instead of one made from the paths.

    Returns:
        The file.

    Raises:
        RankwiseError: If a path can't be read, the paths don't go together, or `out` is one.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from rankwise.reports import write_report
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"fc.weight": torch.randn(20, 10)}, Path(folder) / "model.pt")
        ...     page = write_report(Path(folder) / "model.pt", Path(folder) / "report.html")
        ...     page.stat().st_size > 500_000
        True
    """
    listed = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    target = Path(out)
    refuse_overwrite(target, listed)
    page = build_page(listed, title=title)
    write_atomically(target, page_bytes(page))
    return target
