"""A study's results as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rankwise._table import Cell, Table
from rankwise._text import escape_formula, join_lines
from rankwise.study.results import StudyResults
from rankwise.study.summary import build_tables, describe_marks, describe_results

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&])")
_MARKDOWN_LIST = re.compile(r"^(\d*)([-+.)])(?= )")  # would start a list at the start of a line

_LATEX_HEAD = r"""% \usepackage{booktabs}
% \usepackage[table]{xcolor}
\providecolor{rankwisebest}{HTML}{1A7F37}
\providecolor{rankwiseclose}{HTML}{B35900}
"""
_GREEK_NAMES = (
    *("alpha", "beta", "gamma", "delta", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu"),
    *("xi", "pi", "rho", "sigma", "tau", "chi", "psi", "omega", "Delta", "Sigma", "Omega"),
)
# Characters that are commands in LaTeX, or that its default font lacks. A bracket or a star at the
# start of a row would be read as an argument of the row before.
_LATEX_ESCAPES = {
    **{character: f"\\{character}" for character in "{}$&#%_"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': "''",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "≈": r"$\approx$",
    "ε": r"$\varepsilon$",
    "φ": r"$\varphi$",
    **{
        letter: rf"$\{name}$"
        for letter, name in zip("αβγδζηθκλμνξπρστχψωΔΣΩ", _GREEK_NAMES, strict=True)
    },
}

_CSV_COLUMNS = (
    *("setting", "task", "network", "data", "score", "mean", "sd", "n"),
    *("diverged", "unscored", "unfinished", "mark", "seeds", "values"),
)


def to_markdown(results: StudyResults) -> str:
    """Return tables with the best in bold and what is close to it in italics, and notes.

    Example:
        >>> from rankwise.study import collect_results
        >>> print(to_markdown(collect_results([])))
        - There are no runs to show yet.
        <BLANKLINE>
    """
    parts = [f"## {_escape_markdown(join_lines(results.title))}"] if results.title else []
    parts += [_escape_markdown(join_lines(results.about))] if results.about else []
    parts += map(_format_markdown, build_tables(results))
    marks = [describe_marks("**bold** ★", "*italic* ≈")] if results.table.entries else []
    notes = [*marks, *map(_escape_markdown, describe_results(results))]
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _format_markdown(table: Table) -> str:
    rows = [
        [_escape_markdown(column.title) for column in table.columns],
        ["---" if column.align == "left" else "---:" for column in table.columns],
        *([_format_markdown_cell(cell) for cell in row] for row in table.rows),
    ]
    return f"{table.caption}:\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _format_markdown_cell(cell: Cell) -> str:
    text = _escape_markdown(cell.text)
    if cell.style == "best":
        return f"**{text}** ★"
    return f"*{text}* ≈" if cell.style == "close" else text


def _escape_markdown(text: str) -> str:
    return _MARKDOWN_LIST.sub(r"\1\\\2", _MARKDOWN_SPECIAL.sub(r"\\\1", text))


def to_latex(results: StudyResults) -> str:
    """Return a table for each kind of score, with booktabs' rules and colours; notes below.

    Characters beyond Latin, Greek and the signs used here need XeLaTeX or LuaLaTeX.

    Example:
        >>> from rankwise.study import collect_results
        >>> "There are no runs" in to_latex(collect_results([]))
        True
    """
    title = join_lines(". ".join(filter(None, (results.title, results.about))))
    caption = f"\\caption{{{_escape_latex(title)}}}\n" if title else ""
    marks = [describe_marks("Green and bold", "orange")] if results.table.entries else []
    notes = " ".join(_escape_latex(text) for text in [*marks, *describe_results(results)])
    tables = "\n\\par\\medskip\n".join(map(_format_latex, build_tables(results)))
    return (
        f"{_LATEX_HEAD}\\begin{{table}}\n\\centering\n{caption}{tables}\n\\par\\medskip\n"
        f"{{\\footnotesize\\raggedright {notes}\\par}}\n\\end{{table}}\n"
    )


def _format_latex(table: Table) -> str:
    layout = "".join("l" if column.align == "left" else "c" for column in table.columns)
    heads = " & ".join(_escape_latex(column.title) for column in table.columns)
    rows = "\n".join(f"{' & '.join(map(_format_latex_cell, row))} \\\\" for row in table.rows)
    return (
        f"{_escape_latex(table.caption)}\\par\\smallskip\n\\begin{{tabular}}{{{layout}}}\n"
        f"\\toprule\n{heads} \\\\\n\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}"
    )


def _format_latex_cell(cell: Cell) -> str:
    text = _escape_latex(cell.text)
    if cell.style == "best":
        return rf"\textcolor{{rankwisebest}}{{\textbf{{{text}}}}}"
    return rf"\textcolor{{rankwiseclose}}{{{text}}}" if cell.style == "close" else text


def _escape_latex(text: str) -> str:
    return "".join(_LATEX_ESCAPES.get(character, character) for character in text)


def to_csv(results: StudyResults) -> str:
    """Return a line for each setting and task; shares as 0 … 1, seeds and values with blanks.

    Names that a spreadsheet would read as a formula get an apostrophe in front.

    Example:
        >>> from rankwise.study import collect_results
        >>> to_csv(collect_results([])).split(",")[:3]
        ['setting', 'task', 'network']
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in _list_entries(results):
        lists = {name: " ".join(map(repr, row[name])) for name in ("seeds", "values")}
        names = {
            name: escape_formula(join_lines(value))
            for name, value in row.items()
            if isinstance(value, str)
        }
        writer.writerow({**row, **names, **lists})
    return text.getvalue()


def _list_entries(results: StudyResults) -> Iterator[dict[str, Any]]:
    table = results.table
    for task in table.tasks:
        for setting in table.settings:
            entry = table.entries.get((setting, task))
            if entry is None:
                continue
            trials = entry.trials
            yield {
                "setting": setting,
                "task": task.label,
                "network": task.network,
                "data": task.data,
                "score": trials.score,
                "mean": trials.mean,
                "sd": trials.spread,
                "n": len(trials.values),
                "diverged": trials.diverged,
                "unscored": trials.unscored,
                "unfinished": trials.unfinished,
                "mark": entry.mark,
                "seeds": [run.config.seed for run in trials.finished],
                "values": list(trials.values),
            }


def to_json(results: StudyResults) -> str:
    """Return everything as JSON: entries, tests, tuning, hardware, and how many runs are missing.

    Example:
        >>> import json
        >>> from rankwise.study import collect_results
        >>> json.loads(to_json(collect_results([])))["entries"]
        []
    """
    content = {
        "title": results.title,
        "about": results.about,
        "entries": list(_list_entries(results)),
        "reference": results.reference,
        "comparisons": [
            {
                "task": one.task.label,
                "first": one.first.setting,
                "second": one.second.setting,
                **asdict(one.test),
                "holm": one.adjusted,
                "significant": one.is_significant,
            }
            for one in results.comparisons
        ],
        "tuning": [
            {
                **one.labels._asdict(),
                "score": one.score,
                "candidates": [asdict(candidate) for candidate in one.candidates],
            }
            for one in results.tuning
        ],
        "hardware": list(results.hardware),
        "runs": {"expected": results.expected, "missing": results.missing},
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
