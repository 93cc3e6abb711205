"""What a study found as LaTeX, for a paper."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise._text import join_lines
from rankwise.study.findings import Findings
from rankwise.study.layout import Cell, Sheet, legend, notes, sheets

__all__ = ["to_latex"]

_HEAD = r"""% \usepackage{booktabs}
% \usepackage[table]{xcolor}
\providecolor{rankwisebest}{HTML}{1A7F37}
\providecolor{rankwiseclose}{HTML}{B35900}
"""
_LEGEND = legend("Green and bold", "orange")

# Letters that act in LaTeX, or that its first font has not. A bracket or a star that begins a row
# would be read as an argument of the row before.
_LETTERS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
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
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "ζ": r"$\zeta$",
    "η": r"$\eta$",
    "θ": r"$\theta$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "ν": r"$\nu$",
    "ξ": r"$\xi$",
    "π": r"$\pi$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "φ": r"$\varphi$",
    "χ": r"$\chi$",
    "ψ": r"$\psi$",
    "ω": r"$\omega$",
    "Δ": r"$\Delta$",
    "Σ": r"$\Sigma$",
    "Ω": r"$\Omega$",
}
_ESCAPES = str.maketrans(_LETTERS)


def to_latex(found: Findings) -> str:
    """A table for each kind of score, with booktabs' rules and colours; notes below.

    Letters beyond Latin, Greek and the signs used here need XeLaTeX or LuaLaTeX.

    Args:
        found: What to show.

    Example:
        >>> from rankwise.study.findings import findings
        >>> "There are no runs" in to_latex(findings([]))
        True
    """
    tables = [_table(sheet) for sheet in sheets(found)]
    said = ". ".join(filter(None, (found.title, found.about)))
    caption = f"\\caption{{{_escaped(join_lines(said))}}}\n" if said else ""
    marks = [_LEGEND] if found.table.entries else []
    lines = " ".join(_escaped(text) for text in [*marks, *notes(found)])
    body = "\n\\par\\medskip\n".join(tables)
    return (
        f"{_HEAD}\\begin{{table}}\n\\centering\n{caption}{body}\n\\par\\medskip\n"
        f"{{\\footnotesize\\raggedright {lines}\\par}}\n\\end{{table}}\n"
    )


def _table(sheet: Sheet) -> str:
    columns = "l" * sheet.words + "c" * (len(sheet.heads) - sheet.words)
    heads = " & ".join(_escaped(head) for head in sheet.heads)
    rows = "\n".join(f"{_row(row)} \\\\" for row in sheet.rows)
    return (
        f"{_escaped(sheet.caption)}\\par\\smallskip\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n"
        f"{heads} \\\\\n\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}"
    )


def _row(cells: Sequence[Cell]) -> str:
    return " & ".join(_cell(cell) for cell in cells)


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    if cell.mark == "best":
        return rf"\textcolor{{rankwisebest}}{{\textbf{{{text}}}}}"
    return rf"\textcolor{{rankwiseclose}}{{{text}}}" if cell.mark == "close" else text


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
