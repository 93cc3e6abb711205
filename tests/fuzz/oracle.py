# ruff: noqa: S311 - what is called needn't be unpredictable
"""One input → what became of it: read, refused, or a failure."""

from __future__ import annotations

import json
import os
import traceback
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random

import torch

import rankwise
from rankwise.checkpoints import open_weights
from tests.fuzz.corpus import empty_folder, make_case, write_case
from tests.fuzz.watch import Watch

_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_SCRIPT = "<script>alert"
_NO_MEMORY = ("can't allocate memory", "Unable to allocate", "not enough memory to read")
# May be loaded although they are not measured: parts of weights, constants, codes as bytes.
_LOADABLE = {rankwise.Status.MERGED, rankwise.Status.NOT_A_WEIGHT, rankwise.Status.QUANTISED}
_MAX_TOUCHED = 1 << 20  # numbers of a tensor that are all used
_MAX_RANDOM_ROWS = 600


class Outcome(str, Enum):
    """What became of an input."""

    REFUSED = "refused"
    OPENED = "opened"  # with a row for every tensor, none of which was measured
    MEASURED = "measured"


class ViolationError(Exception):
    """A result that breaks a promise."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one input; a failure where there are problems."""

    outcome: Outcome
    problems: list[str] = field(default_factory=list)
    cpu: float = 0.0
    memory: int = 0


Reader = Callable[[Path, Random], Outcome]


def judge_seed(name: str, seed: int, watch: Watch, reader: Reader | None = None) -> Verdict:
    """Make the input of a format and seed, read it, and judge what happened."""
    target = write_case(make_case(name, seed), watch.inputs)
    if reader is None:
        reader = read_probe if name == "saved-probe" else read_checkpoint
    try:
        return judge_reader(reader, target, Random(f"calls:{name}:{seed}"), watch)
    finally:
        empty_folder(watch.inputs)


def judge_reader(reader: Reader, target: Path, rng: Random, watch: Watch) -> Verdict:
    """Run a reader under watch; it may return or raise a `RankwiseError`, nothing else."""
    outcome, problems = Outcome.REFUSED, []
    old_folder = Path.cwd()
    os.chdir(watch.folder)  # where the hostile pickles would create their file
    try:
        with watch.observe() as record:
            try:
                outcome = reader(target, rng)
            except rankwise.RankwiseError as error:
                problems += _judge_error(error)
            # An exception of any other kind is what we look for; it must not end the run.
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                problems.append(_describe_error(error))
    finally:
        os.chdir(old_folder)
    problems += [text for text in record.problems if text not in problems]
    return Verdict(outcome, problems, record.cpu, record.memory)


def _describe_error(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    ours = [frame for frame in frames if "/rankwise/" in frame.filename]
    caller = f", from {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}: {str(error)[:200]!r} at {place}{caller}"


def _judge_error(error: rankwise.RankwiseError) -> list[str]:
    problems = []
    if unsafe := _find_unsafe(str(error), allowed=""):
        problems.append(f"the error's text contains {unsafe}: {str(error)[:200]!r}")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or any(text in str(cause) for text in _NO_MEMORY):
            problems.append(f"asks for too much memory: {str(cause)[:200]!r}")
            break
        cause = cause.__cause__ or cause.__context__
    return problems


def _find_unsafe(text: str, allowed: str = "\n") -> str:
    """Return the first character that could act on a terminal, escaped; "" if there is none."""
    if text.isascii() and text.replace("\n", "").isprintable() and allowed:
        return ""
    unsafe = (c for c in text if c not in allowed and unicodedata.category(c) in _UNSAFE)
    return ascii(next(unsafe, ""))[1:-1]


def read_checkpoint(path: Path, rng: Random) -> Outcome:
    """Probe a checkpoint in one of the ways there are, and use the result."""
    choice = rng.random()
    if choice < 0.2:
        _load_all(path)
    if choice < 0.12:
        findings = rankwise.check(path)
        use_text(findings.table(), findings.to_json())
        return _use_probe(findings.probe, rng)
    split: object = True if choice > 0.85 else "heads" if choice > 0.7 else False
    options: dict[str, object] = {"split": split} if split else {}
    if rng.random() < 0.05:
        options["key"] = rng.choice((".", "model", "ema", "x.y"))
    if rng.random() < 0.1:
        options["spectra"] = True
    return _use_probe(rankwise.probe(path, **options), rng)  # type: ignore[arg-type]


def _load_all(path: Path) -> None:
    """Load every tensor; each must be what its description says."""
    for weight in open_weights(path).tensors:
        try:
            tensor = weight.load()
        except rankwise.RankwiseError as error:
            if problems := _judge_error(error):
                raise ViolationError(problems[0]) from error
            continue
        if weight.obstacle is not None and weight.obstacle[0] not in _LOADABLE:
            raise ViolationError(f"{weight.name!r} was loaded in spite of {weight.obstacle}")
        if (tuple(tensor.shape), tensor.dtype) != (weight.shape, weight.dtype):
            raise ViolationError(
                f"{weight.name!r} is {tensor.shape} {tensor.dtype}, not as described"
            )
        if tensor.numel() <= _MAX_TOUCHED:
            tensor.to(torch.complex64).sum()  # every byte is read


def _use_probe(probe: rankwise.Probe, rng: Random) -> Outcome:
    use_text(probe.table(width=rng.choice((20, 80))), probe.to_json())
    if rng.random() < 0.1 and _SCRIPT in probe._repr_html_():
        raise ViolationError("the HTML contains a script from the file")
    for layer in probe.layers:
        if any(text in layer.reason for text in _NO_MEMORY):
            raise ViolationError(f"asks for too much memory: {layer.name!r}: {layer.reason[:200]}")
    return Outcome.MEASURED if probe.probed else Outcome.OPENED


def use_text(table: str, text: str) -> None:
    """Check a table for a terminal, and JSON for machines."""
    if unsafe := _find_unsafe(table):
        raise ViolationError(f"the table contains {unsafe}")
    json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ViolationError(f"the JSON contains {name}")


def read_probe(path: Path, rng: Random) -> Outcome:
    """Load a saved probe and use it."""
    probe = rankwise.Probe.load(path)
    outcome = _use_probe(probe, rng)
    if rng.random() < 0.3:
        use_text(str(probe.diff(probe)), rankwise.Probe.from_json(probe.to_json()).to_json())
    rows = max((mode.rows for layer in probe.layers for mode in layer.modes), default=0)
    if rng.random() < 0.1 and rows < _MAX_RANDOM_ROWS:
        probe.at_random()
    return outcome
