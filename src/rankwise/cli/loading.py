"""A path → a probe: weights are probed, a saved probe is read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

from rankwise.api import probe
from rankwise.cli.progress import ProgressBar
from rankwise.errors import ArgumentError
from rankwise.probes.probe_result import Probe, is_saved_probe

if TYPE_CHECKING:
    from pathlib import Path

    from rankwise.numerics.unfold import Modes

__all__ = ["ProbeOptions", "load"]


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How to probe; what is None or empty was not asked for."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    p: float | None = None
    modes: str | None = None
    split: bool = False
    key: str | None = None
    spectra: bool = False

    @property
    def given(self) -> list[str]:
        """The options that were asked for."""
        return [f"--{field.name}" for field in fields(self) if getattr(self, field.name)]


def load(path: Path, options: ProbeOptions) -> Probe:
    """The probe of a checkpoint, or the one that was saved.

    Raises:
        RankwiseError: If the path can't be read as either.
        ArgumentError: If options are given that a saved probe can't follow any more.
    """
    if is_saved_probe(path):
        if options.given:
            raise ArgumentError(
                f"{path} is a saved probe, which {', '.join(options.given)} can't change any more; "
                "give the weights instead."
            )
        return Probe.load(path)
    with ProgressBar() as progress:
        return probe(
            path,
            include=options.include or None,
            exclude=options.exclude or None,
            p=2.0 if options.p is None else options.p,
            modes=cast("Modes", options.modes or "both"),
            split=options.split,
            key=options.key,
            spectra=options.spectra,
            progress=progress,
        )
