"""`rankwise.report`: a network, checkpoints, a run or a study → an HTML page in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from rankwise.api import Target
    from rankwise.probes.results import Probe


def report(
    *targets: Target | Probe, out: str | os.PathLike[str] = "report.html", title: str | None = None
) -> Path:
    """Write one self-contained page about a network, several, a run or a study.

    It needs the packages of the extra `report`: altair, jinja2 and vl-convert-python.

    Args:
        *targets: One or more: a module, a state dict, a path as `rankwise.probe` takes it, or a
            probe. Of one the page has what `rankwise.check` finds, and the metrics and spectra of
            every layer; of two what changed; of more how the layers developed. A run's folder,
            a folder of runs, or several runs give the page of a training or of a study.
        out: The file; it is written whole or not at all, and never over a target.
        title: Instead of one made from the targets.

    Returns:
        The file.

    Raises:
        RankwiseError: If a target can't be read, the targets don't go together, or `out` is one.
        MissingExtraError: If a package for pages is not installed.

    Example:
        >>> import tempfile, torch, rankwise
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = rankwise.report(torch.nn.Linear(20, 10), out=Path(folder) / "page.html")
        ...     page.name, page.stat().st_size > 500_000
        ('page.html', True)
    """
    from rankwise.reports.report import write_page  # noqa: PLC0415 - it needs packages of an extra

    return write_page(targets, out, title)
