"""docs/lab.md says what the code does."""

import re

import pytest
from tools.lab_tables import written

from rankwise.lab.config import from_mapping
from tests import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "lab.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code():
    assert written(PAGE) == PAGE


def test_the_toml_example_is_understood(tmp_path):
    from rankwise.lab.config import read_toml

    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    file = tmp_path / "experiment.toml"
    file.write_text(block, encoding="utf-8")
    options = read_toml(file)
    assert options.pop("trials") == 5
    assert from_mapping(options, "the page").cutout


@pytest.mark.parametrize("command", re.findall(r"rankwise (train .*?)(?:\s+#.*)?$", PAGE, re.M))
def test_the_commands_are_understood(command):
    import shlex

    from rankwise.lab.defaults import resolve

    words = shlex.split(command)[1:]
    options = dict(zip(words[::2], words[1::2], strict=True))
    numbers = {"--epochs": int, "--trials": int, "--seed": int, "--beta": float}
    given = {
        name[2:]: numbers.get(name, str)(value)
        for name, value in options.items()
        if name not in ("--trials", "--config")
    }
    assert resolve(from_mapping(given, "the page"))
