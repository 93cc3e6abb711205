"""The blocks of code of a page: Python, and commands in fences or indented by four spaces."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INDENTED = "indented"  # a block without a fence; its lines without `rankwise` may be output
SHELLS = {"bash", "console", "sh", "shell", INDENTED}
_FENCE = re.compile(r"^ *```(\w*)\s*$")
_MARK = re.compile(r"^<!-- not run: (?P<reason>.+) -->$")


@dataclass(frozen=True)
class Block:
    """A block of code, the line on which it begins, and why it is not run, if it is not."""

    page: str
    line: int
    section: str
    language: str
    text: str
    reason: str

    @property
    def place(self) -> str:
        """Where to look: page and line."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a block of the shell: without prompts and output, with joined lines."""
        if self.language not in SHELLS:
            return []
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        elif self.language == INDENTED:
            lines = [line for line in lines if line.startswith("rankwise ")]
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def read_blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in their order.

    A comment `<!-- not run: REASON -->` on the line before a block says why no test runs it.
    """
    page = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    blocks: list[Block] = []
    section = reason = language = ""
    body: list[str] | None = None
    start = 0
    lines = [*path.read_text(encoding="utf-8").splitlines(), ""]
    indented = False
    for number, line in enumerate(lines, 1):
        if body is not None:
            inside = line.startswith("    ") or not line.strip() if indented else "```" not in line
            if inside and number < len(lines):
                body.append(line[4:] if indented else line)
                continue
            blocks.append(Block(page, start, section, language, "\n".join(body).rstrip(), reason))
            body, reason = None, ""
            if not indented:
                continue
        if fence := _FENCE.match(line):
            body, start, language, indented = [], number + 1, fence[1], False
        elif line.startswith("    ") and not lines[number - 2].strip():
            body, start, language, indented = [line[4:]], number, INDENTED, True
        elif mark := _MARK.match(line):
            reason = mark["reason"]
        elif line.startswith("#"):
            section = line.strip("# ")
        elif line.strip():
            reason = ""
    return blocks
