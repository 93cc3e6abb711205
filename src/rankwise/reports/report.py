"""Checkpoints, networks or runs → the page that suits them, and that page in a file."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise._io import refuse_overwrite, write_atomically
from rankwise._text import sanitize
from rankwise.adapters.deltas.change_records import NetworkChange
from rankwise.adapters.deltas.changes import measure_changes
from rankwise.api import Target, probe
from rankwise.charts.style import keep_default_layer
from rankwise.checks.check import check
from rankwise.checks.findings import Findings
from rankwise.errors import ArgumentError, ProbeMismatchError, RunError
from rankwise.lab.records import Run, is_run, load_run
from rankwise.probes.results import Probe, is_saved_probe
from rankwise.reports.checkpoint import make_checkpoint_page
from rankwise.reports.diff import make_diff_page
from rankwise.reports.evolution import make_evolution_page
from rankwise.reports.html import encode_page
from rankwise.reports.page import Page, Section, Text
from rankwise.reports.run import make_run_page
from rankwise.reports.study import make_study_page

# A path; in Python also a module, a mapping of tensors, or what was probed already.
Source = Path | Target | Probe
Loader = Callable[[Any, bool], Probe]  # a target, and whether spectra are wanted
Checker = Callable[[Any], Findings]
Comparer = Callable[[Any, Any], NetworkChange]


def write_report(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    title: str | None = None,
) -> Path:
    """Write one self-contained page about a checkpoint, several, a run or a study.

    Args:
        paths: One or more: a checkpoint or saved probe; two of them to compare; more to see an
            evolution; a run's folder; a folder of runs, or several runs, for a study.
        out: The file; it is written whole or not at all.
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
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    return write_page(listed, out, title)


def write_page(
    targets: Sequence[Target | Probe], out: str | os.PathLike[str], title: str | None
) -> Path:
    """Write the page about targets, as `rankwise.report` takes them, and return its file."""
    file = Path(out)
    refuse_overwrite(file, [Path(one) for one in targets if isinstance(one, str | os.PathLike)])
    if file.is_dir():
        raise ArgumentError(f"{file}: expected the name of a file, got a folder.")
    write_atomically(file, encode_page(build_page(targets, title=title)))
    return file


def write_images(page: Page, folder: Path, form: str) -> list[Path]:
    """Write every chart of a page into a folder as "png", "svg" or "pdf", named by its title."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, panel in enumerate(page.charts, 1):
        name = re.sub(r"[^a-z0-9]+", "-", panel.title.lower()).strip("-")[:60]
        path = folder / f"{number:02d}-{name}.{form}"
        scale = 2 if form == "png" else 1
        chart = keep_default_layer(panel.chart).properties(title=panel.title)
        chart.save(path, format=form, scale_factor=scale)
        written.append(path)
    return written


def build_page(
    targets: Sequence[Source],
    *,
    title: str | None = None,
    load: Loader | None = None,
    check: Checker | None = check,
    compare: Comparer = measure_changes,
) -> Page:
    """Return the page about targets, as `rankwise.report` takes them.

    Args:
        targets: What the page is about.
        title: Instead of one made from the paths.
        load: Reads a checkpoint or a saved probe.
        check: Finds what is wrong with a checkpoint; None for a page without findings.
        compare: Measures the change of the weights from one checkpoint to another.
    """
    listed = [Path(one) if isinstance(one, str | os.PathLike) else one for one in targets]
    if not listed:
        raise ArgumentError("Expected a checkpoint, a run or a folder of runs, got no path.")
    paths = [one for one in listed if isinstance(one, Path)]
    folders = [_list_run_folders(path) for path in paths]
    if any(folders) and not (all(folders) and len(paths) == len(listed)):
        kinds = "; ".join(
            f"{path} {'has runs' if runs else 'has none'}"
            for path, runs in zip(paths, folders, strict=True)
        )
        raise ArgumentError(f"Runs and checkpoints can't share a page: {kinds}.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        if any(folders):
            runs = [folder for path_runs in folders for folder in path_runs]
            page = _make_page_of_runs(paths, runs, title)
        else:
            page = _make_page_of_checkpoints(listed, load or _probe, check, compare)
    if caught:  # they are listed on the page
        lines = tuple(dict.fromkeys(str(warning.message) for warning in caught))
        section = Section("Warnings", (Text(lines, style="warning"),))
        page = replace(page, sections=(*page.sections, section))
    return page if title is None else replace(page, title=title)


def _list_run_folders(path: Path) -> list[Path]:
    """The run that a path is, or the runs in it; none where it is something else."""
    return [path] if _has_run(path) else [p for p in sorted(path.glob("*/")) if _has_run(p)]


def _has_run(path: Path) -> bool:
    """Whether a folder is a run's; a Hugging Face model's has a config.json too."""
    return is_run(path) and any((path / f"{n}.jsonl").exists() for n in ("sessions", "epochs"))


def _make_page_of_runs(paths: Sequence[Path], folders: Sequence[Path], title: str | None) -> Page:
    if len(folders) == 1 and folders[0] == paths[0]:
        return make_run_page(load_run(folders[0]))
    results = [_load(folder) for folder in dict.fromkeys(f.resolve() for f in folders)]
    runs = [run for run in results if isinstance(run, Run)]
    notes = [note for note in results if isinstance(note, str)]
    names = ", ".join(dict.fromkeys(path.name or str(path) for path in paths[:3]))
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return make_study_page(runs, title=title or sanitize(f"Study: {names}{more}"), notes=notes)


def _load(folder: Path) -> Run | str:
    try:
        return load_run(folder)
    except (RunError, OSError) as error:
        return sanitize(f"Left out, since it can't be read: {error}")


def _make_page_of_checkpoints(
    targets: Sequence[Source], load: Loader, check: Checker | None, compare: Comparer
) -> Page:
    if len(targets) == 1:
        findings = None if check is None or _is_measured(targets[0]) else check(targets[0])
        # With findings comes a probe, so that every tensor is loaded once.
        result = load(targets[0], True) if findings is None else findings.probe
        source = str(targets[0]) if isinstance(targets[0], Path) else result.source
        return make_checkpoint_page(result, source=source, findings=findings)
    paths = [one for one in targets if isinstance(one, Path)]
    if len(paths) == len(targets) > 2:
        targets = _sort_by_number(paths)
    probes = [load(one, False) for one in targets]
    labels = _make_labels(
        [
            target if isinstance(target, Path) else Path(probe.source)
            for target, probe in zip(targets, probes, strict=True)
        ]
    )
    if len(probes) == 2:
        weights = None
        if not any(map(_is_measured, targets)):
            with suppress(ProbeMismatchError):  # such two are compared as a whole
                weights = compare(targets[0], targets[1])
        return make_diff_page(probes[0], probes[1], labels, weights)
    return make_evolution_page(probes, labels)


def _is_measured(target: Source) -> bool:
    """Return whether a target is a probe, which has metrics and no weights."""
    return isinstance(target, Probe) or (isinstance(target, Path) and is_saved_probe(target))


def _probe(target: Source, spectra: bool) -> Probe:
    if isinstance(target, Probe):
        return target
    if isinstance(target, Path) and is_saved_probe(target):
        return Probe.load(target)
    return probe(target, spectra=spectra)


def _sort_by_number(paths: Sequence[Path]) -> list[Path]:
    """By their number, where names differ by just one, as in epoch2.pt and epoch10.pt."""
    numbers = [re.findall(r"\d+", str(path)) for path in paths]
    rests = {re.sub(r"\d+", "#", str(path)) for path in paths}
    if len(rests) > 1 or not numbers[0]:
        return list(paths)
    differing = [i for i, column in enumerate(zip(*numbers, strict=True)) if len(set(column)) > 1]
    if len(differing) != 1:
        return list(paths)
    keys = {p: int(digits[differing[0]]) for p, digits in zip(paths, numbers, strict=True)}
    return sorted(paths, key=keys.__getitem__)


def _make_labels(paths: Sequence[Path]) -> tuple[str, ...]:
    """The files' names, with as many folders as it takes to distinguish them."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        labels = tuple("/".join(path.parts[-parts:]) for path in paths)
        if len(set(labels)) == len(labels):
            return labels
    return tuple(f"{path} ({number})" for number, path in enumerate(paths, 1))
