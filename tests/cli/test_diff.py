import json
import re

import pytest
import torch

from rankwise.api import probe
from rankwise.probes.diff_text import CHANGE_SORT_KEYS


@pytest.fixture
def later(tmp_path, weights):
    path = tmp_path / "later.pt"
    changed = weights | {"conv.weight": weights["fc.weight"][:8, :36].reshape(8, 4, 3, 3)}
    del changed["head.weight"]
    torch.save({f"net.{name}": value for name, value in changed.items()}, path)
    return path


def test_shows_changes_and_who_left(run, checkpoint, later):
    result = run("diff", checkpoint, later)
    assert result.exit_code == 0
    head, row, *words = result.stdout.splitlines()
    assert head.split() == ["layer", "rank", "s", "Δs", "Δκ", "Δq"]
    assert row.startswith("net.conv.weight ")
    assert "1 tensor only in the first: head.weight." in words
    assert "Names were matched across a prefix: the second's gained 'net.'." in words
    assert words[-1].startswith("Signal energy ")
    assert words[-1].count("→") == 4
    assert "\x1b" not in result.stdout


def test_saved_probe_beside_weights(run, saved, checkpoint):
    result = run("diff", saved, checkpoint)
    assert result.exit_code == 0
    assert "No layer changed" in result.stdout


def test_weights_are_probed_like_the_saved_side(run, checkpoint, tmp_path, weights):
    probe(weights, p=1.0).save(tmp_path / "one.json")
    assert "No layer changed" in run("diff", tmp_path / "one.json", checkpoint).stdout


def test_saved_probes_of_different_exponents(run, saved, tmp_path, weights):
    probe(weights, p=1.0).save(tmp_path / "one.json")
    result = run("diff", saved, tmp_path / "one.json")
    assert result.exit_code == 1
    assert "p = 2" in result.stderr
    assert "p = 1" in result.stderr


def test_json_to_stdout(run, checkpoint, later):
    document = json.loads(run("diff", checkpoint, later, "--json", "-").stdout)
    assert document["renamed_prefix"] == "+net."
    assert len(document["changes"]) == 6


def test_help_names_everything_to_sort_by(run):
    words = set(run("diff", "--help").stdout.replace(",", " ").split())
    assert set(CHANGE_SORT_KEYS) <= words


def test_nothing_in_common(run, checkpoint, tmp_path):
    torch.save({"other": torch.ones(4, 5)}, tmp_path / "other.pt")
    result = run("diff", checkpoint, tmp_path / "other.pt")
    assert result.exit_code == 1
    assert result.stderr.startswith("rankwise: The two have no layer in common")


def test_colours_say_up_and_down_not_good_and_bad(run, checkpoint, later, without_escapes):
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color"}
    result = run("diff", checkpoint, later, "--sort", "-quality", **terminal)
    assert "\x1b[36m" in result.stdout
    assert "\x1b[33m" in result.stdout
    assert not {"\x1b[31m", "\x1b[32m"} & set(re.findall("\x1b\\[[0-9]+m", result.stdout))
    assert max(map(len, without_escapes(result.stdout).splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["--sort", "noise"], ["--top", "0"]])
def test_bad_options(run, checkpoint, arguments):
    result = run("diff", checkpoint, checkpoint, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("rankwise: ")
