"""The tables of docs/results-tables.md: what a study found → Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

from rankwise.lab.records import Run
from rankwise.lab.scores import format_score
from rankwise.study import StudyResults, Trials, to_markdown
from rankwise.study.stats import PairedTest, adjust_holm, paired_test
from rankwise.study.table import Task

REFERENCE = "SGD, cosine"
ANNEALED = "RMSGD, annealed"
PLAIN = "as it is"  # the annealed rule without any option

# The comparisons that studies/cpu/scale_up.toml states.
SCALE_PAIRS = (
    ("RMSGD", "SGD, step"),
    ("RMSGD", REFERENCE),
    ("SGD, annealed stable rank", "SGD, step"),
    ("SGD, annealed stable rank", REFERENCE),
    ("SGD, annealed stable rank", "SGD, annealed stable rank, mean"),
)

Cells = dict[tuple[str, float], Trials]  # by method and first rate


def table(rows: Iterable[Sequence[str]]) -> str:
    """Cells as Markdown; the first row is the head."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *body])


def summary(found: Sequence[StudyResults]) -> str:
    """Every method's place on each task of Table 1a, the best mean place first."""
    places: dict[str, list[int]] = {}
    tasks = []
    for one in found:
        for task in one.table.tasks:
            tasks.append(f"{task.network} {task.label}")
            scored = [entry.trials.setting for entry in one.table.column(task)]
            for place, setting in enumerate(scored, 1):
                places.setdefault(setting, []).append(place)
    whole = {setting: found for setting, found in places.items() if len(found) == len(tasks)}
    rows = [
        [setting, *map(str, found), f"{fmean(found):.1f}"]
        for setting, found in sorted(whole.items(), key=lambda item: fmean(item[1]))
    ]
    head = ["place of", *tasks, "mean"]
    text = f"Places of {len(places)} methods by mean test accuracy, each with its own tuned rate:"
    return f"## Table 1a in short\n\n{text}\n\n{table([head, *rows])}"


def by_rate(found: StudyResults) -> str:
    """First rates in rows, methods in columns, and where the annealed rule differs from SGD."""
    parts = [f"## {found.title}", found.about, _state(found)]
    for task in found.table.tasks:
        cells = _by_method_and_rate(found, task)
        methods = list(dict.fromkeys(method for method, _ in cells))
        rates = sorted({rate for _, rate in cells})
        head = ["first rate", *methods, f"annealed − {REFERENCE} [95 %]"]
        rows = [
            [f"{rate:g}", *(_cell(cells.get((m, rate))) for m in methods), _gain(cells, rate)]
            for rate in rates
        ]
        parts += [f"**{task.label}** (test accuracy)", table([head, *rows]), _at_best(cells)]
    return "\n\n".join(part for part in parts if part)


def _at_best(cells: Cells) -> str:
    """The annealed rule and SGD, each at the rate that suits it."""
    (a, first), (b, second) = (
        max(((r, c) for (m, r), c in cells.items() if m == of), key=lambda pair: pair[1].mean or 0)
        for of in (ANNEALED, REFERENCE)
    )
    return (
        f"Each at its best rate, picked by these scores: annealed at {a:g} − {REFERENCE} at {b:g}: "
        f"{_difference(first, second)}."
    )


def _by_method_and_rate(found: StudyResults, task: Task) -> Cells:
    cells: Cells = {}
    for (setting, of), entry in found.table.entries.items():
        if of == task:
            rate = entry.trials.runs[0].config.lr or 0.0
            cells[setting.partition(" lr=")[0], rate] = entry.trials
    return cells


def by_option(found: StudyResults) -> str:
    """For each first rate, options in rows and tasks in columns, with how they differ from none."""
    parts = [f"## {found.title}", found.about, _state(found)]
    tasks = {task.label: _by_method_and_rate(found, task) for task in found.table.tasks}
    head = ["option", *(f"{label}, − {PLAIN} [95 %]" for label in tasks)]
    for rate in sorted({rate for cells in tasks.values() for _, rate in cells}, reverse=True):
        options = dict.fromkeys(o for cells in tasks.values() for o, r in cells if r == rate)
        rows = [[o, *(_against_plain(cells, o, rate) for cells in tasks.values())] for o in options]
        parts += [f"**First rate {rate:g}** (test accuracy)", table([head, *rows])]
    return "\n\n".join(part for part in parts if part)


def _against_plain(cells: Cells, option: str, rate: float) -> str:
    one, plain = cells.get((option, rate)), cells.get((PLAIN, rate))
    if one is None or plain is None or option == PLAIN:
        return _cell(one)
    return f"{_cell(one)}: {_difference(one, plain)}"


def pooled(found: Sequence[StudyResults]) -> str:
    """How every option differs from none over all tasks together, seed by seed."""
    gaps: dict[tuple[str, str], list[float]] = {}
    for one in found:
        for task in one.table.tasks:
            cells = _by_method_and_rate(one, task)
            good = max(rate for _, rate in cells)
            for (option, rate), compared in cells.items():
                plain = cells[PLAIN, rate].by_seed
                kind = "good" if rate == good else "far too small"
                # The floor is another number on each network, and another option for that.
                key = (option.partition(" 0.0")[0], kind)
                own = compared.by_seed.items()
                gaps.setdefault(key, []).extend(v - plain[seed] for seed, v in own if seed in plain)
    tests = {key: _against_zero(own) for key, own in gaps.items() if key[0] != PLAIN}
    adjusted = adjust_holm([test.p for test in tests.values()])
    rows = [
        [option, kind, _points(test), "–" if p is None else f"{p:.2g}"]
        for ((option, kind), test), p in zip(tests.items(), adjusted, strict=True)
    ]
    rows.sort(key=lambda row: row[1], reverse=True)
    head = ["option", "first rate", f"− {PLAIN} [95 %]", "p by Holm"]
    tasks = sum(len(one.table.tasks) for one in found)
    text = f"The same over all {tasks} tasks, as if they were one:"
    return f"{text}\n\n{table([head, *rows])}"


def _cell(one: Trials | None) -> str:
    return f"{format_score(one.values, one.score)} (n = {len(one.values)})" if one else "–"


def _gain(cells: Cells, rate: float) -> str:
    first, second = (cells.get((method, rate)) for method in (ANNEALED, REFERENCE))
    if first is None or second is None:
        return "–"
    return _difference(first, second)


def _difference(first: Trials, second: Trials) -> str:
    return _points(paired_test(first.by_seed, second.by_seed))


def _points(test: PairedTest) -> str:
    if test.difference is None or test.low is None or test.high is None or test.p is None:
        return "–"
    text = f"{100 * test.difference:+.1f} [{100 * test.low:+.1f}, {100 * test.high:+.1f}]"
    return f"{text.replace('-', '−')}, p = {test.p:.2g}, {test.n} pairs"


def scale_up(found: StudyResults) -> str:
    """The table of the step up in scale, and its stated comparisons."""
    stated = compare_scales([found])
    return f"{to_markdown(found).strip()}\n\nThe stated comparisons:\n\n{stated}"


def compare_scales(found: Sequence[StudyResults]) -> str:
    """The stated comparisons of the step up in scale."""
    by_setting = {setting: entry.trials for (setting, _), entry in found[0].table.entries.items()}
    tests = [
        paired_test(by_setting[first].by_seed, by_setting[second].by_seed)
        if first in by_setting and second in by_setting
        else None
        for first, second in SCALE_PAIRS
    ]
    adjusted = adjust_holm([1.0 if one is None or one.p is None else one.p for one in tests])
    rows = [
        [first, second, "–" if one is None else _points(one), f"{p:.2g}"]
        for (first, second), one, p in zip(SCALE_PAIRS, tests, adjusted, strict=True)
    ]
    return table([["method", "minus", "points of accuracy [95 %]", "p by Holm"], *rows])


def by_length(found: StudyResults) -> str:
    """A table of β for each number of epochs, with the share of the first rate that it leaves."""
    parts = [f"## {found.title}", found.about, _state(found)]
    rows = [
        [str(epochs), f"{beta:g}", f"{beta**epochs:.1%}", _cell(cells[beta]), _lead(cells, beta)]
        for epochs, cells in sorted(_by_length(found).items())
        for beta in sorted(cells)
    ]
    head = ["epochs", "β", "left of the first rate", "test accuracy", "− the smallest β [95 %]"]
    return "\n\n".join([*parts, table([head, *rows])])


def _by_length(found: StudyResults) -> dict[int, dict[float, Trials]]:
    lengths: dict[int, dict[float, Trials]] = {}
    for entry in found.table.entries.values():
        config = entry.trials.runs[0].config
        lengths.setdefault(config.epochs or 0, {})[config.beta or 0.0] = entry.trials
    return lengths


def next_beta(found: Sequence[StudyResults]) -> str:
    """How the second smallest β differs from the smallest, over all lengths and networks."""
    gaps: list[float] = []
    for lengths in map(_by_length, found):
        for cells in lengths.values():
            least, second, *_ = (cells[beta].by_seed for beta in sorted(cells))
            gaps += [value - least[seed] for seed, value in second.items() if seed in least]
    return (
        "The second β of each length − the first, over all lengths and networks: "
        f"{_points(_against_zero(gaps))}."
    )


def _against_zero(gaps: Sequence[float]) -> PairedTest:
    return paired_test(dict(enumerate(gaps)), dict.fromkeys(range(len(gaps)), 0.0))


def _lead(cells: dict[float, Trials], beta: float) -> str:
    return "" if beta == min(cells) else _difference(cells[beta], cells[min(cells)])


def _state(found: StudyResults) -> str:
    machines = "; ".join(found.hardware)
    left = (
        f" {found.missing} of {found.expected} runs are still to be done." if found.missing else ""
    )
    return f"{machines}.{left}"


def times(found: StudyResults) -> str:
    """Seconds of an epoch, without its tests, and the probe's part of it."""
    rows = []
    for (setting, _), entry in found.table.entries.items():
        runs = entry.trials.finished
        steps = [_seconds(run, "data", "step") for run in runs]
        rows.append((setting, steps, median(_seconds(run, "probe") for run in runs)))
    sgd = next(median(steps) for setting, steps, _ in rows if setting == REFERENCE)
    head = ["optimizer", "s an epoch", "runs", "÷ SGD", "probe, s an epoch", "probe's share"]
    lines = [
        [
            name,
            f"{median(steps):.2f}",
            f"{min(steps):.2f} … {max(steps):.2f}",
            f"{median(steps) / sgd:.2f}",
            f"{probe:.3f}",
            f"{probe / median(steps):.1%}",
        ]
        for name, steps, probe in sorted(rows, key=lambda row: median(row[1]))
    ]
    n = max(len(steps) for _, steps, _ in rows)
    text = (
        f"Data and steps, without tests; the median of {n} runs, their range, the first epoch left "
        "out. All runs are probed for their records, but only RMSGD needs it."
    )
    return "\n\n".join([f"## {found.title}", _state(found), text, table([head, *lines])])


def _seconds(run: Run, *clocks: str) -> float:
    return median(sum(getattr(record.seconds, c) for c in clocks) for record in run.epochs[1:])


def ranking(found: dict[str, Any]) -> str:
    """What `rankwise study correlate` found: the verdict, and every score on every family."""
    count = sum(family["networks"] for family in found["families"])
    verdict, *more = found["verdict"]
    parts = [f"## How scores rank {count} networks: `{found['source']}`", f"**{verdict}**", *more]
    for kind, text in (("accuracy", "test accuracy"), ("gap", "generalisation gap")):
        families = [family for family in found["families"] if family[kind]]
        if families:
            head = f"SROCC with {text} [95 %], p adjusted by Holm:"
            parts += [head, _scores(families, kind, found["scores"])]
    parts += [f"{family['name']}: {family['description']}" for family in found["families"]]
    return "\n\n".join(parts)


def _scores(families: Sequence[dict[str, Any]], kind: str, formulas: dict[str, str]) -> str:
    heads = [f"{f['name']} (n = {f['networks']}, {f['groups']} groups)" for f in families]
    names = [ranked["name"] for ranked in families[0][kind]]
    rows = [
        [f"{name}: {formulas[name]}", *(_coefficient(f[kind][place]) for f in families)]
        for place, name in enumerate(names)
    ]
    return table([["score", *heads], *rows])


def _coefficient(ranked: dict[str, Any]) -> str:
    one = ranked["srocc"]
    if one["value"] is None:
        return "–"
    interval = "" if one["low"] is None else f" [{one['low']:.2f}, {one['high']:.2f}]"
    p = "" if ranked["adjusted"] is None else f", p = {ranked['adjusted']:.2g}"
    return f"{one['value']:.2f}{interval}{p}"
