"""`rankwise check`: what is wrong with checkpoints, for people and for pipelines."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwise._text import quote, sanitize, suggest_globs, wrap
from rankwise.cli.output import (
    FAILED,
    FOUND_PROBLEMS,
    STDOUT,
    check_outputs,
    get_table_width,
    make_console,
    print_error,
    write_output,
)
from rankwise.cli.probe import Key
from rankwise.cli.resources import Jobs, Memory, NoCache, make_resources
from rankwise.errors import ArgumentError, RankwiseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankwise.checks.findings import Findings
    from rankwise.probes.workers import Resources

_COLORS = {"error": "bold red", "warning": "yellow", "note": "dim"}

CHECK_EXAMPLES = """\b
Examples:
  rankwise check model.safetensors
  rankwise check finetuned.safetensors --base pretrained.safetensors
  rankwise check model.pt --fail-on warning --ignore dead-filters
  rankwise check model.pt --ignore 'looks-untrained:pooler.*' --json findings.json
  rankwise check weights/*.safetensors --sarif findings.sarif

\b
Exit codes:
  0  nothing as serious as --fail-on was found
  2  problems were found
  1  a file could not be read, or none of its layers could be measured and
     nothing as serious as --fail-on was found; of several files, one such
     file makes the exit code 1
"""


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Checkpoints: files, folders or hf://org/name."),
    ],
    *,
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The network that this one was made from, to compare with."
        ),
    ] = None,
    fail_on: Annotated[
        Literal["error", "warning"],
        typer.Option(help="Exit with 2 if a finding is this serious."),
    ] = "error",
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND[:LAYER]",
            help="Leave out findings of a kind, for layers that match a glob; repeatable.",
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="OUT", help="Write JSON; - for stdout. One FILE only.")
    ] = None,
    sarif: Annotated[
        str | None, typer.Option(metavar="OUT", help="Write SARIF; - for stdout.")
    ] = None,
    key: Key = None,
    jobs: Jobs = None,
    memory: Memory = None,
    no_cache: NoCache = False,
) -> None:
    """Find what is wrong with checkpoints."""
    from rankwise.checks.findings import parse_ignore
    from rankwise.checks.inspection import has_measured
    from rankwise.checks.sarif import format_sarif

    for pattern in ignore or ():
        parse_ignore(pattern)
    if json is not None and len(paths) > 1:
        raise ArgumentError("--json describes one file; give one FILE, or use --sarif.")
    outputs = [output for output in (json, sarif) if output is not None]
    check_outputs(outputs, paths if base is None else [*paths, base])
    resources = make_resources(jobs, memory, no_cache)
    checked = _check_files(paths, base, ignore or (), key, resources, quiet=STDOUT in outputs)
    results = list(checked)
    if json is not None:
        write_output(json, (results[0].to_json(indent=2) + "\n").encode())
    if sarif is not None:
        write_output(sarif, (format_sarif(results) + "\n").encode())
    unmeasured = [r for r in results if not (r.reach(fail_on) or has_measured(r.probe))]
    for result in unmeasured:
        print_error(f"{result.source}: no layer could be measured; rankwise probe FILE says why.")
    for text in _list_unmatched(ignore or (), results):
        print_error(f"Warning: {text}")
    if unmeasured or len(results) < len(paths):
        raise typer.Exit(FAILED)
    if any(result.reach(fail_on) for result in results):
        raise typer.Exit(FOUND_PROBLEMS)


def _list_unmatched(patterns: Sequence[str], results: Sequence[Findings]) -> Iterator[str]:
    """Yield a sentence for each pattern of `--ignore` whose glob matches no layer of any file.

    It is a warning: a pipeline has one list of patterns for files that come and go.
    """
    from rankwise.checks.findings import parse_ignore

    names = [layer.name for result in results for layer in result.probe.layers]
    # Those of the base alone have findings, too.
    names += [one.layer for result in results for one in result.findings if one.layer is not None]
    for pattern in patterns:
        _, glob = parse_ignore(pattern)
        if glob != "*" and names and not any(fnmatchcase(name, glob) for name in names):
            yield f"--ignore {quote(pattern)} matches no layer.{suggest_globs(glob, names)}"


def _check_files(
    paths: Sequence[Path],
    base: Path | None,
    ignore: Sequence[str],
    key: str | None,
    resources: Resources,
    *,
    quiet: bool,
) -> Iterator[Findings]:
    """Check files one after the other; of several, one that can't be read stops none."""
    for path in paths:
        try:
            result = _check_file(path, base, ignore, key, resources)
        except (RankwiseError, OSError) as error:
            if len(paths) == 1:
                raise
            print_error(str(error))
            continue
        if not quiet:
            _print_findings(result, name=path if len(paths) > 1 else None)
        yield result


def _check_file(
    path: Path, base: Path | None, ignore: Sequence[str], key: str | None, resources: Resources
) -> Findings:
    from rankwise.checks.check import check as check_weights
    from rankwise.cli.progress import show_probing
    from rankwise.probes.results import is_saved_probe

    for file in (path, base):
        if file is not None and is_saved_probe(file):
            raise ArgumentError(
                f"{file} is a saved probe; a check needs the weights. Give the checkpoint instead."
            )
    with show_probing("Checking", resumes=resources.cache is not False) as progress:
        return check_weights(
            path, base, ignore=ignore, key=key, resources=resources, progress=progress
        )


def _print_findings(result: Findings, name: Path | None) -> None:
    from rich.text import Text

    from rankwise.checks.text import format_group, group_findings

    console = make_console()
    width = get_table_width(console)
    head = "" if name is None else f"{sanitize(str(name))}: "
    console.print(Text(wrap(head + result.summary(), width)), soft_wrap=True)
    for group in group_findings(result.findings):
        severity = group[0].severity.value
        text = Text(f"\n{format_group(group, width)}")
        text.stylize(_COLORS[severity], 1, 1 + len(severity))
        console.print(text, soft_wrap=True)
