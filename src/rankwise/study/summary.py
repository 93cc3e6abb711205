"""A study's results → tables of text and sentences, whatever format they are written in later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rankwise._table import Cell, Column, Table
from rankwise._text import format_count, join_lines
from rankwise.lab.records import Run
from rankwise.lab.scores import format_mean, format_score, is_falling
from rankwise.study.results import Candidate, SettingComparison, StudyResults, Tuning
from rankwise.study.stats import SIGNIFICANCE, PairedTest
from rankwise.study.table import Entry, StudyTable, Task, Trials, format_options

_SCORE_NAMES = {"frechet": "Fréchet distance"}
_SMALL_P = 0.001  # the digits of a smaller p say nothing
_MAX_WIDTH = 80


def build_tables(results: StudyResults) -> list[Table]:
    """Return a table for each kind of score, and one of the tuning, if there is any."""
    scores = dict.fromkeys(task.score for task in results.table.tasks)
    tables = [_build_score_table(results.table, score) for score in scores]
    started = [t for t in results.tuning if any(c.status != "missing" for c in t.candidates)]
    return [*tables, _build_tuning_table(started)] if started else tables


def _build_score_table(table: StudyTable, score: str) -> Table:
    tasks = [task for task in table.tasks if task.score == score]
    settings = [s for s in table.settings if any((s, task) in table.entries for task in tasks)]
    usual = _usual_n(table)
    unit = " in percent" if _is_percent(score) else ""
    better = "lower" if is_falling(score) else "higher"
    return Table(
        (Column("setting", "left"), *(Column(join_lines(task.label)) for task in tasks)),
        tuple(
            (
                Cell(join_lines(setting)),
                *(_format_entry(table.entries.get((setting, task)), task, usual) for task in tasks),
            )
            for setting in settings
        ),
        f"Test {_SCORE_NAMES.get(score, score)}{unit}, {better} is better",
    )


def _is_percent(score: str) -> bool:
    return format_score([0.0], score).endswith("%")


def _usual_n(table: StudyTable) -> int:
    """Return the number of trials that most entries with a score have; on a tie the larger."""
    sizes = Counter(len(entry.trials.values) for entry in table.entries.values())
    return max((n for n in sizes if n), key=lambda n: (sizes[n], n), default=0)


def _format_entry(entry: Entry | None, task: Task, usual: int) -> Cell:
    if entry is None:
        return Cell("–")
    trials = entry.trials
    over = len(trials.runs) - trials.unfinished  # unfinished runs are counted in the notes
    counts = {"diverged": trials.diverged, "without a score": trials.unscored}
    lost = ", ".join(f"{number} of {over} {why}" for why, number in counts.items() if number)
    if not trials.values or trials.score != task.score:
        return Cell(lost or "–", "bad" if lost else "")
    text = format_score(trials.values, task.score).removesuffix(" %")
    note = lost or (f"n = {len(trials.values)}" if len(trials.values) != usual else "")
    text = f"{text} ({note})" if note else text
    return Cell(text, "best" if entry.mark == "best" else "close" if entry.mark else "")


def _build_tuning_table(tunings: Iterable[Tuning]) -> Table:
    """A tuning that several tasks share is one row."""
    tasks: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    first: dict[tuple[str, tuple[str, ...]], Tuning] = {}
    for tuning in tunings:
        key = (tuning.labels.setting, tuning.runs)
        tasks.setdefault(key, []).append(tuning.labels.task)
        first.setdefault(key, tuning)
    heads = ("setting", "task", "chosen", "score of each value")
    rows = tuple(
        tuple(
            Cell(join_lines(text))
            for text in (
                tuning.labels.setting,
                ", ".join(tasks[key]),
                " ".join(format_options(tuning.best.options)) if tuning.best else "not yet",
                ", ".join(_format_candidate(one, tuning.score) for one in tuning.candidates),
            )
        )
        for key, tuning in first.items()
    )
    caption = "Chosen by the last epoch's score on held-out training data"
    return Table(tuple(Column(head, "left") for head in heads), rows, caption)


def _format_candidate(candidate: Candidate, score: str) -> str:
    values = (f"{v:.12g}" if isinstance(v, float) else str(v) for v in candidate.options.values())
    value = candidate.status if candidate.score is None else _format_score(candidate.score, score)
    return f"{' '.join(values)}: {value}"


def _format_score(value: float, score: str, *, sign: bool = False) -> str:
    """Return a score, or a difference of two, without its unit; shares in percent."""
    text = format_score([abs(value)], score)
    text = text.removesuffix(" %") if text.endswith("%") else f"{abs(value):.4g}"
    return ("−" if value < 0 else "+" if sign else "") + text


def describe_results(results: StudyResults) -> list[str]:
    """Return the sentences below the tables: trials, missing runs, comparisons, hardware."""
    missing = []
    if results.missing:
        text = f"{results.missing} of {format_count(results.expected, 'run')} not finished yet"
        missing = [f"{text}; these results are preliminary."]
    if not results.table.entries:
        return ["There are no runs to show yet.", *missing]
    skipped = 0 if results.tuning else sum(run.config.validate for run in results.runs)
    sentences = [
        _describe_trials(results.table),
        *missing,
        *([f"Skipped {format_count(skipped, 'run')} scored on validation images."] * bool(skipped)),
        *map(describe_comparison, results.comparisons),
        *_describe_tests(results),
        *(f"Hardware: {machine}." for machine in results.hardware),
    ]
    return [join_lines(sentence) for sentence in sentences]


def _describe_trials(table: StudyTable) -> str:
    sizes = {len(e.trials.values) for e in table.entries.values() if e.trials.values}
    n = _usual_n(table)
    how_many = f"n = {n}" if len(sizes) < 2 else f"n = {n} unless a cell says otherwise"
    spread = "Mean" if sizes <= {1} else "Mean ± standard deviation"
    return f"{spread} of the last epoch's score over the finished trials; {how_many}."


def _describe_tests(results: StudyResults) -> list[str]:
    if not results.comparisons:
        return []
    compared = (
        f"Every setting is compared with {results.reference}"
        if results.reference
        else "The best mean of each task is compared with the second; both are selected by the "
        "same scores"
    )
    tests = format_count(max(one.tests for one in results.comparisons), "test")
    return [
        f"{compared}. Runs of one seed share initial weights and batches and are paired. Brackets: "
        f"95 % intervals. {tests}; significant means p < {SIGNIFICANCE} after Holm's adjustment."
    ]


def describe_marks(best: str, close: str) -> str:
    """Return what the two marks mean, as a format shows them."""
    return (
        f"{best}: the best mean of its column; {close}: within one standard deviation of it, "
        "the larger of the two settings'."
    )


def describe_comparison(comparison: SettingComparison) -> str:
    """Return a sentence: both means, the difference and its interval, p, and whether it counts."""
    score, test = comparison.task.score, comparison.test
    first, second = (
        f"{one.setting} {_format_score(one.mean or 0.0, score)}"
        for one in (comparison.first, comparison.second)
    )
    head = f"{comparison.task.label}: {first} against {second}"
    if test.difference is None:
        return f"{head}; no test: {test.reason}."
    points = " points" if _is_percent(score) else ""
    head += f": {_format_score(test.difference, score, sign=True)}{points}"
    seeds = format_count(test.n, "seed")
    if test.p is None or test.low is None or test.high is None:
        return f"{head} over {seeds}; no t-test: {test.reason}{_format_flips(test, '; ')}."
    interval = f"[{_format_score(test.low, score)}, {_format_score(test.high, score)}]"
    adjusted = f" (Holm: {_format_p(comparison.adjusted)})" if comparison.tests > 1 else ""
    equals = "" if test.p < _SMALL_P else "= "
    p = f"p {equals}{_format_p(test.p)}{adjusted}{_format_flips(test, ', ')}"
    verdict = "significant" if comparison.is_significant else "no significant difference"
    return f"{head} {interval}, paired t-test over {seeds}: {p}: {verdict}."


def _format_flips(test: PairedTest, before: str) -> str:
    return "" if test.flips is None else f"{before}sign-flip test {_format_p(test.flips)}"


def _format_p(p: float | None) -> str:
    if p is None:
        return "unknown"
    return f"< {_SMALL_P}" if p < _SMALL_P else f"{p:.2g}"


def format_trials(trials: Sequence[Trials]) -> str:
    """Return settings as a text table: mean ± standard deviation over n trials.

    Example:
        >>> format_trials([])
        'No run has finished yet.'
    """
    if not trials:
        return "No run has finished yet."
    scores = {one.score for one in trials}
    score = scores.pop() if len(scores) == 1 else "score"
    columns = [
        (Column("setting", "left"), [one.setting for one in trials]),
        (Column("n"), [_format_n(one) for one in trials]),
        (Column(f"test {score}"), [format_score(one.values, one.score) for one in trials]),
        (Column("best epoch"), [format_score(one.best, one.score) for one in trials]),
        (Column("S"), [format_mean(one.stable_rank_by_width, ".3f") for one in trials]),
        (Column("s/epoch"), [format_mean(one.seconds, ".2f") for one in trials]),
    ]
    return Table.from_columns(columns).format()


def _format_n(trials: Trials) -> str:
    counts = {"diverged": trials.diverged, "without a score": trials.unscored}
    lost = ", ".join(f"{number} {why}" for why, number in counts.items() if number)
    return f"{len(trials.values)} ({lost})" if lost else str(len(trials.values))


def format_layers(run: Run) -> str:
    """Return a table of a run's layers after its last epoch.

    The columns are rank, s, κ, q, and the rate at the end and at most.
    """
    rows = run.layers()
    last = [row for row in rows if row.epoch == run.epoch]
    highest: dict[str, float] = {}
    for row in rows:
        if row.rate is not None:
            highest[row.name] = max(row.rate, highest.get(row.name, 0.0))
    columns = [
        (Column("layer", "left"), [row.name for row in last]),
        (Column("rank"), [_format_number(row.rank, ".1f") for row in last]),
        (Column("s"), [_format_number(row.stable_rank, ".3f") for row in last]),
        (Column("κ"), [_format_number(row.condition, ".3f") for row in last]),
        (Column("q"), [_format_number(row.quality, ".3f") for row in last]),
        (Column("rate"), [_format_number(row.rate, ".4f") for row in last]),
        (Column("highest"), [_format_number(highest.get(row.name), ".4f") for row in last]),
    ]
    return Table.from_columns(columns).format(_MAX_WIDTH)


def _format_number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"
