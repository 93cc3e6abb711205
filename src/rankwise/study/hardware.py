"""What the runs of a study ran on, in a line for each kind of machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rankwise.lab.records import Run, Session

__all__ = ["machines"]

_PRECISIONS = {"32": "float32", "64": "float64", "bf16": "bfloat16 mixed"}


def machines(runs: Iterable[Run]) -> tuple[str, ...]:
    """Processor or accelerators, threads, torch and precision, with the number of runs.

    A run that went on elsewhere counts for all the machines it was on, joined by "then".

    Args:
        runs: Finished or not.

    Example:
        >>> machines([])
        ()
    """
    found = Counter(_where(run) for run in runs)
    return tuple(
        f"{place}; {number} run{'s' if number != 1 else ''}"
        for place, number in sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
    )


def _where(run: Run) -> str:
    precision = _PRECISIONS.get(run.config.precision, run.config.precision)
    places = dict.fromkeys(_machine(session) for session in run.sessions())
    return f"{' then '.join(places) or 'an unknown machine'}, {precision}"


def _machine(session: Session) -> str:
    hardware = session.hardware
    accelerators = ", ".join(
        f"{number} × {name}" for name, number in Counter(hardware.accelerators).items()
    )
    threads = "?" if hardware.threads is None else hardware.threads
    cpu = hardware.cpu or "an unknown processor"
    parts = [f"{threads} thread{'s' if threads != 1 else ''} of {cpu}"]
    parts += [accelerators] if accelerators else []
    torch = session.versions.get("torch")
    return ", ".join([*parts, f"torch {torch or '?'}"])
