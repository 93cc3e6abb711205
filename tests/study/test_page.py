"""docs/study.md says what the code does."""

import ast
import re
import shlex

import pytest
from typer.main import get_command

from rankwise.cli import app
from rankwise.study.grid import read_study
from tests import ROOT

PAGE = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    rankwise (study .*?)(?:\s+#.*)?$", PAGE, re.M)


def test_the_study_is_understood(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "study.toml").write_text(block, encoding="utf-8")
    study = read_study(tmp_path / "study.toml")
    assert len(study.cells) == 2 * 2 * 3
    assert {c.data for cell in study.cells for c in cell.candidates} == {"cifar10"}


def test_what_the_python_example_imports_is_there():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    lines = [node for node in ast.parse(block).body if isinstance(node, ast.ImportFrom)]
    exec("\n".join(map(ast.unparse, lines)), {})  # noqa: S102
    assert len(lines) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_understood(command):
    _, name, *words = shlex.split(command)
    found = get_command(app).commands["study"].commands[name]
    assert found.make_context(name, words, resilient_parsing=False).params
