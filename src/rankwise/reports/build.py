"""Paths → the page that suits them: of a checkpoint, of several, of a run, of a study."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rankwise._text import sanitize
from rankwise.api import probe
from rankwise.errors import ArgumentError, RunError
from rankwise.lab.records import Run, is_run, load_run
from rankwise.probes.results import Probe, is_saved_probe
from rankwise.reports.changes import changes_page
from rankwise.reports.checkpoint import checkpoint_page
from rankwise.reports.evolution import evolution_page
from rankwise.reports.page import Page, Section, Words
from rankwise.reports.run import run_page
from rankwise.reports.study.page import study_page

__all__ = ["Loader", "build_page"]

Loader = Callable[[Path, bool], Probe]  # a path, and whether spectra are wanted


def build_page(
    paths: Sequence[Path | str], *, title: str | None = None, load: Loader | None = None
) -> Page:
    """The page for what the paths lead to.

    Args:
        paths: A checkpoint or saved probe; two of them to compare; more to see an evolution; a
            run's folder; folders of runs, or several runs, for a study.
        title: Instead of one made from the paths.
        load: Reads a checkpoint; by default `rankwise.probe` does.

    Raises:
        RankwiseError: If a path can't be read, or the paths don't go together.
    """
    found = [Path(path) for path in paths]
    if not found:
        raise ArgumentError("Expected a checkpoint, a run or a folder of runs, got no path.")
    of_runs = {path: _run_folders(path) for path in found}
    kinds = {path: bool(folders) for path, folders in of_runs.items()}
    if len(set(kinds.values())) > 1:
        listed = "; ".join(
            f"{path} {'holds runs' if r else 'does not'}" for path, r in kinds.items()
        )
        raise ArgumentError(f"Runs and checkpoints don't go on one page: {listed}.")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        if kinds[found[0]]:
            page = _page_of_runs(found, [f for folders in of_runs.values() for f in folders], title)
        else:
            page = _page_of_checkpoints(found, load or _probed)
    page = page if title is None else replace(page, title=title)
    return _with_warnings(page, [str(warning.message) for warning in told])


def _run_folders(path: Path) -> list[Path]:
    """The run that a path is, or the runs in it; none where it is something else."""
    return [path] if _holds_run(path) else [p for p in sorted(path.glob("*/")) if _holds_run(p)]


def _holds_run(path: Path) -> bool:
    """Whether a folder is a run's; a Hugging Face model's has a config.json too."""
    return is_run(path) and any((path / f"{n}.jsonl").exists() for n in ("sessions", "epochs"))


def _page_of_runs(paths: Sequence[Path], folders: Sequence[Path], title: str | None) -> Page:
    if len(folders) == 1 and folders[0] == paths[0]:
        return run_page(load_run(folders[0]))
    read = [_read(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    runs = [run for run in read if isinstance(run, Run)]
    notes = [note for note in read if isinstance(note, str)]
    named = ", ".join(dict.fromkeys(path.name or str(path) for path in paths[:3]))
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return study_page(runs, title=title or sanitize(f"Study: {named}{more}"), notes=notes)


def _read(folder: Path) -> Run | str:
    """A run, or why it is left out."""
    try:
        return load_run(folder)
    except (RunError, OSError) as error:
        return sanitize(f"Left out, since it can't be read: {error}")


def _page_of_checkpoints(paths: Sequence[Path], load: Loader) -> Page:
    if len(paths) == 1:
        found = load(paths[0], True)
        return checkpoint_page(found, found.at_random(), source=str(paths[0]))
    paths = _in_order(paths) if len(paths) > 2 else paths
    labels = _labels(paths)
    probes = [load(path, False) for path in paths]
    if len(probes) == 2:
        return changes_page(probes[0], probes[1], labels)
    return evolution_page(probes, labels)


def _probed(path: Path, spectra: bool) -> Probe:
    return Probe.load(path) if is_saved_probe(path) else probe(path, spectra=spectra)


def _in_order(paths: Sequence[Path]) -> list[Path]:
    """By their number, where names differ by just one, as in epoch2.pt and epoch10.pt."""
    numbers = [re.findall(r"\d+", str(path)) for path in paths]
    rests = {re.sub(r"\d+", "#", str(path)) for path in paths}
    if len(rests) > 1 or not numbers[0]:
        return list(paths)
    differing = [i for i, column in enumerate(zip(*numbers, strict=True)) if len(set(column)) > 1]
    if len(differing) != 1:
        return list(paths)
    by_number = dict(zip(paths, (int(found[differing[0]]) for found in numbers), strict=True))
    return sorted(paths, key=by_number.__getitem__)


def _labels(paths: Sequence[Path]) -> tuple[str, ...]:
    """The files' names, with as many folders as it takes to tell them apart."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        labels = tuple("/".join(path.parts[-parts:]) for path in paths)
        if len(set(labels)) == len(labels):
            return labels
    return tuple(f"{path} ({number})" for number, path in enumerate(paths, 1))


def _with_warnings(page: Page, told: Sequence[str]) -> Page:
    """The page, and what was warned of while it was made: nothing vanishes silently."""
    if not told:
        return page
    words = Words(tuple(dict.fromkeys(told)), tone="warning")
    return replace(page, sections=(*page.sections, Section("Warnings", (words,))))
