"""The figures of a page as image files, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

from rankwise.reports.page import Page

__all__ = ["write_images"]


def write_images(page: Page, folder: Path, form: str) -> list[Path]:
    """Write every figure into a folder, numbered and named by its title.

    Args:
        page: The page.
        folder: Where to; made if need be.
        form: "png", "svg" or "pdf".

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, picture in enumerate(page.pictures, 1):
        name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-")[:60]
        path = folder / f"{number:02d}-{name}.{form}"
        scale = 2 if form == "png" else 1
        picture.chart.properties(title=picture.title).save(path, format=form, scale_factor=scale)
        written.append(path)
    return written
