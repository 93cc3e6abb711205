"""Follow every page from top to bottom: its Python runs, its commands run or are understood."""

import ast
import re
import shlex
import subprocess
import webbrowser
from itertools import pairwise

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

from rankwise.cli import app
from tests import ROOT
from tests.docs.blocks import PAGES, read_blocks
from tests.docs.given import provide
from tests.docs.names import given_names

# Commands that no test runs, and why. They are read as the command line reads them all the same.
NOT_RUN = {
    r"hf://": "needs the Hugging Face Hub",
    r"--data (cifar|ptb|mnist|stl)": "needs a data set that is not in a package",
    r"^rankwise watch\b": "runs until it is stopped",
    r"^rankwise study run\b": "trains for hours",
    r"^rankwise study export\b": "needs the runs of a study",
    r"^rankwise study correlate studies/": "needs the runs of a study",
    r"^rankwise study import results": "needs the records that export writes",
    r"^rankwise train --config\b": "trains for hours",
    r"--install-completion": "changes the settings of the shell",
    r"^git diff\b": "needs a repository with weights",
    r"raw-data-12": "needs the files of NATS-Bench's training script",
    r"^(pip|make|git clone|cd|python)\b": "installs or builds",
}
OUTPUTS = {"-o", "--out", "--json", "--csv", "--parquet", "--sarif", "--to", "--output"}
CHECK_FOUND = 2


def why_not_run(command):
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), None)


def understand(words):
    """Read a command as the command line does, without running it."""
    command, name = get_command(app), "rankwise"
    while words and (child := getattr(command, "commands", {}).get(words[0])):
        command, (name, *words) = child, words
    command.make_context(name, list(words), resilient_parsing=name == "rankwise")


def run_command(line, folder):
    """Run one line of the shell as a reader would, in a folder."""
    words = shlex.split(line, comments=True)
    if words[0] != "rankwise":
        subprocess.run(["bash", "-ec", line], cwd=folder, check=True)
        return
    inputs = [word for last, word in pairwise(words) if last not in OUTPUTS]
    for word in inputs:
        provide(word, folder)
    given = [
        path
        for word in words[1:]
        for path in (sorted(map(str, folder.glob(word))) if "*" in word else [word])
    ]
    result = CliRunner().invoke(app, given)
    expected = {CHECK_FOUND} if "# exits with 2" in line else {0}
    assert result.exit_code in expected, f"{line}\n{result.output}\n{result.exception!r}"


def run_python(block, names, folder):
    """Run a block of Python; only its imports if the page says why it is not run."""
    text = block.text
    if block.reason:
        imports = (ast.Import, ast.ImportFrom)
        kept = [node for node in ast.parse(text).body if isinstance(node, imports)]
        text = "\n".join(map(ast.unparse, kept))
    for word in re.findall(r'"([\w./-]+)"', text):
        provide(word, folder)
    weights = [weight for weight in names["model"].parameters() if weight.ndim >= 2]
    before = [weight.detach().clone() for weight in weights]
    # Empty lines put the lines of the page into tracebacks.
    exec(compile("\n" * (block.line - 1) + text, block.page, "exec"), names)  # noqa: S102
    if ".backward()" in text:
        after = [weight for weight in names["model"].parameters() if weight.ndim >= 2]
        assert not any(map(torch.equal, before, after)), f"{block.place} leaves a layer untrained"
        source = names.get("scheduler", names["optimizer"])
        assert source.rates()
        assert getattr(source, "last_readings", None) or source.last_probe, block.place


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of the excerpts of trainings
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")  # of the trainers
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # of torch.distributed
def test_a_page_can_be_followed(path, workspace, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    names, section = given_names(path.name, ""), None
    for block in read_blocks(path):
        if block.section != section:
            section = block.section
            names |= given_names(path.name, section)
        if block.language == "python":
            run_python(block, names, workspace)
        for command in block.commands:
            if block.reason or why_not_run(command):
                words = shlex.split(command, comments=True)
                if words[0] == "rankwise":
                    understand(words[1:])
            else:
                run_command(command, workspace)


def test_a_reason_is_needed():
    marked = [block for path in PAGES for block in read_blocks(path) if block.reason]
    assert marked
    for block in marked:
        assert len(block.reason.split()) > 1, block.place
        assert block.language == "python" or block.commands, f"{block.place}: nothing to run"


def test_commands_that_are_not_understood_are_found():
    with pytest.raises(Exception, match="--nothing"):
        understand(["check", "a.pt", "--nothing"])


def test_every_reason_for_commands_is_used():
    lines = [line for path in PAGES for block in read_blocks(path) for line in block.commands]
    unused = {p for p in NOT_RUN if not any(re.search(p, line) for line in lines)}
    assert not unused
    assert len(lines) > len(PAGES)
    assert (ROOT / "README.md") in PAGES
