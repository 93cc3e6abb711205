"""What a study says, in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise._text import format_count
from rankwise.charts.axes import get_score_name
from rankwise.lab.scores import score_text
from rankwise.study.stats import Correlation
from rankwise.study.table import StudyTable, Task, Trials, is_close

__all__ = ["capital", "correlation_words", "lost", "short_correlation", "verdict"]

_MOST_TASKS = 4
_FEW = 5


def capital(text: str) -> str:
    """A text as the beginning of a sentence; names in it stay as they are."""
    return text[:1].upper() + text[1:]


def lost(found: Sequence[Trials]) -> list[str]:
    """How many runs have no part in the means, by the reason; none where all have."""
    counts = {
        "diverged": sum(one.diverged for one in found),
        "without a score": sum(one.unscored for one in found),
        "unfinished": sum(one.unfinished for one in found),
    }
    return [f"{number} {why}" for why, number in counts.items() if number]


def verdict(table: StudyTable) -> tuple[str, ...]:
    """The whole: what is best on each task, how sure that is, and what is missing."""
    found = [entry.trials for entry in table.entries.values()]
    finished = sum(len(one.values) for one in found)
    if not found:
        return ("There are no runs here.",)
    counts = _counts(found)
    if not finished:
        return (f"No run has finished with a score yet: {counts}.",)
    shown = table.tasks[:_MOST_TASKS]
    words = [_best(task, [e.trials for e in table.column(task)]) for task in shown]
    if len(table.tasks) > len(shown):
        words.append(f"{format_count(len(table.tasks) - len(shown), 'more task')}: see the table.")
    return (*words, f"{capital(counts)}.{_caution(found)}")


def _counts(found: Sequence[Trials]) -> str:
    runs = sum(len(one.runs) for one in found)
    finished = sum(len(one.values) for one in found)
    left = lost(found)
    text = f"{finished} of {format_count(runs, 'run')} finished with a score"
    return f"{text}, {', '.join(left)} and not counted" if left else text


def _caution(found: Sequence[Trials]) -> str:
    trials = max(len(one.values) for one in found)
    if trials == 1:
        return " One trial a setting tells no chance from merit: give more seeds."
    if trials < _FEW:
        return f" With {trials} trials a setting or fewer, standard deviations are rough."
    return ""


def _best(task: Task, column: Sequence[Trials]) -> str:
    """The verdict on a task, whose settings come the best first."""
    scored = [one for one in column if one.values]
    if not scored:
        return f"{task.label}: no trial has finished with a score."
    first = scored[0]
    if len(scored) == 1:
        others = "" if len(column) == 1 else " of those tried"
        return f"{task.label}: only {first.setting} has finished{others}, {_said(first)}."
    return f"{task.label}: {first.setting} is best, {_said(first)}, {_lead(scored)}."


def _said(found: Trials) -> str:
    """A setting's score with its name, spread and n."""
    text = score_text(found.values, found.score)
    return f"{get_score_name(found.score)} {text} (n = {len(found.values)})"


def _lead(scored: Sequence[Trials]) -> str:
    """How far the first is ahead of the second, and whether that says anything."""
    first, second = scored[:2]
    lead = abs((first.mean or 0.0) - (second.mean or 0.0))
    by = f"{100 * lead:.2f} points" if first.score == "accuracy" else f"{lead:.3g}"
    text = score_text(second.values, second.score)
    head = f"{by} ahead of {second.setting} ({text}, n = {len(second.values)})"
    close = sum(is_close(one, first) for one in scored[1:])
    if close:
        others = "one other is" if close == 1 else f"{close} others are"
        return f"{head}; but {others} within a standard deviation, so it does not clearly win"
    if first.spread is None:
        return f"{head}; it has one trial, so that may be chance"
    return f"{head}, which is more than a standard deviation"


def short_correlation(found: Sequence[Correlation], what: str) -> str:
    """How Q ranks, in a sentence; "" where there is nothing to say."""
    ranks = found[1]
    if ranks.value is None:
        return ""
    value = f"Q and {what}: {_coefficient(ranks)} over {_of(ranks)}."
    return f"{value} {_meaning(ranks, what)}"


def _of(found: Correlation) -> str:
    runs = format_count(found.n, "run")
    return runs if found.groups == found.n else f"{runs} of {format_count(found.groups, 'setting')}"


def correlation_words(found: Sequence[Correlation], what: str) -> str:
    """How Q goes with something, by all three coefficients, and what that means."""
    first = found[0]
    if first.value is None:
        return f"No correlation of Q and {what}: {first.reason}."
    values = ", ".join(_coefficient(one) for one in found)
    return f"Q and {what}, over {_of(first)}: {values}. {_meaning(found[1], what)}"


def _coefficient(found: Correlation) -> str:
    if found.value is None:
        return f"{found.name} –"
    text = f"{found.name} {found.value:.2f}"
    if found.low is None or found.high is None:
        return text
    return f"{text} (95 % interval {found.low:.2f} to {found.high:.2f})"


def _meaning(ranks: Correlation, what: str) -> str:
    if ranks.low is None or ranks.high is None:
        return f"No interval: {ranks.reason}."
    if ranks.low <= 0 <= ranks.high:
        return "The interval of the ranks holds 0: this may be chance."
    more = "higher" if ranks.low > 0 else "lower"
    caution = "" if ranks.groups >= 2 * _FEW else " Few settings: the interval is rough."
    return f"Here a higher Q goes with a {more} {what}.{caution}"
