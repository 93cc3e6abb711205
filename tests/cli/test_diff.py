import json
import re

import pytest
import torch

from rankwise.adapters.deltas.change_text import ROW_SORT_KEYS
from rankwise.api import probe
from rankwise.probes.diff_text import CHANGE_SORT_KEYS


@pytest.fixture
def later(tmp_path, weights):
    path = tmp_path / "later.pt"
    changed = weights | {"conv.weight": weights["fc.weight"][:8, :36].reshape(8, 4, 3, 3)}
    del changed["head.weight"]
    torch.save({f"net.{name}": value for name, value in changed.items()}, path)
    return path


def plant(rows, columns, rank):
    return torch.randn(rows, rank) @ torch.randn(rank, columns)


@pytest.fixture
def tuned(tmp_path, weights):
    path = tmp_path / "tuned.pt"
    changed = {
        **weights,
        "fc.weight": weights["fc.weight"] + plant(24, 40, 2),
        "fc.bias": torch.ones(24),
        "head.weight": weights["head.weight"] + plant(12, 40, 1),
        "extra.weight": torch.ones(4, 4),
    }
    del changed["conv.bias"]
    torch.save(changed, path)
    return path


def test_leads_with_what_changed_and_how_much_of_it_is_of_low_rank(run, checkpoint, tuned):
    result = run("diff", checkpoint, tuned)
    assert result.exit_code == 0
    summary, table, others = result.stdout.split("\n\n")
    assert summary.startswith("Warning: 1 tensor holds NaN or infinity: broken.weight")
    assert "3 of 5 tensors changed, the weights by" in summary
    assert "a LoRA with the rank of each layer has 180 parameters (720 B)" in summary
    head, *rows = table.splitlines()
    assert head.split() == ["layer", "change", "rank", "low-rank", "LoRA", "Δs"]
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["fc.weight", "head.weight"]
    assert [row[3] for row in cells] == ["2", "1"]
    assert "1 tensor is only in the tuned network: extra.weight." in others
    assert "1 tensor is only in the base: conv.bias." in others
    assert "\x1b" not in result.stdout
    assert "evil\\x1b[31m\\x0a\\u202e[bold red]x[/]" in others


def test_sorts_and_cuts_by_the_change(run, checkpoint, tuned):
    lines = run("diff", checkpoint, tuned, "--sort", "rank", "--top", "1").stdout.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("layer "))
    assert lines[place + 1].startswith("head.weight ")
    assert lines[place + 2] == "… 1 more layer"


def test_globs_choose_what_is_compared(run, checkpoint, tuned):
    result = run("diff", checkpoint, tuned, "--include", "fc.*", "--exclude", "*.bias")
    assert result.stdout.startswith("1 of 1 tensor changed")
    result = run("diff", checkpoint, tuned, "--include", "no.*")
    assert result.exit_code == 1
    assert "include 'no.*' matches no tensor" in result.stderr


def test_globs_and_a_saved_probe_do_not_go_together(run, saved, checkpoint):
    result = run("diff", saved, checkpoint, "--include", "fc.*")
    assert result.exit_code == 1
    assert "is a saved probe" in result.stderr


def test_the_same_file_twice(run, checkpoint):
    result = run("diff", checkpoint, checkpoint, "--exclude", "broken.*")
    assert result.exit_code == 0
    assert result.stdout.startswith("Nothing changed: 6 tensors are the same.")
    assert "Both are the same" in result.stdout


def test_an_adapter_is_refused_with_what_to_do(run, checkpoint, tmp_path):
    names = ("base_model.model.fc.lora_A.weight", "base_model.model.fc.lora_B.weight")
    torch.save(
        dict(zip(names, (torch.ones(2, 40), torch.ones(24, 2)), strict=True)), tmp_path / "a.pt"
    )
    result = run("diff", checkpoint, tmp_path / "a.pt")
    assert result.exit_code == 1
    assert "an adapter of 1 layer, not a network" in result.stderr
    assert "merge_and_unload" in result.stderr


def test_saved_probes_show_metrics_and_who_left(run, saved, later, tmp_path):
    run("probe", later, "--json", tmp_path / "later.json")
    result = run("diff", saved, tmp_path / "later.json")
    assert result.exit_code == 0
    head, row, *words = result.stdout.splitlines()
    assert head.split() == ["layer", "rank", "s", "Δs", "Δκ", "Δq"]
    assert row.startswith("net.conv.weight ")
    assert "1 tensor only in the first: head.weight." in words
    assert "Names were matched across a prefix: the second's gained 'net.'." in words
    assert words[-1].startswith("Signal energy ")
    assert words[-1].count("→") == 4


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
    assert document["weights"]["counts"]["changed"] == 1
    assert document["weights"]["counts"]["missing"] == 1


def test_json_of_saved_probes_has_no_weights(run, saved, checkpoint):
    document = json.loads(run("diff", saved, checkpoint, "--json", "-").stdout)
    assert document["weights"] is None


def test_help_names_everything_to_sort_by(run):
    words = set(run("diff", "--help").stdout.replace(",", " ").split())
    assert set(CHANGE_SORT_KEYS) | set(ROW_SORT_KEYS) <= words


def test_nothing_in_common(run, checkpoint, tmp_path):
    torch.save({"other": torch.ones(4, 5)}, tmp_path / "other.pt")
    result = run("diff", checkpoint, tmp_path / "other.pt")
    assert result.exit_code == 1
    assert result.stderr.startswith("rankwise: The two have no layer in common")


def test_colours_say_up_and_down_not_good_and_bad(run, checkpoint, tuned, without_escapes):
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color"}
    forth = run("diff", checkpoint, tuned, "--sort", "-change", **terminal).stdout
    back = run("diff", tuned, checkpoint, "--sort", "-quality", **terminal).stdout
    assert "\x1b[36m" in forth
    assert "\x1b[33m" in back
    assert not {"\x1b[31m", "\x1b[32m"} & set(re.findall("\x1b\\[[0-9]+m", forth + back))
    assert max(map(len, without_escapes(forth + back).splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["--sort", "noise"], ["--top", "0"]])
def test_bad_options(run, checkpoint, arguments):
    result = run("diff", checkpoint, checkpoint, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("rankwise: ")
