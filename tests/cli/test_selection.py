import json
import re

import pytest
import torch

from tests.checks.networks import plant


@pytest.fixture
def model(tmp_path):
    weights = {f"blocks.{i}.fc.weight": plant(32, 48, seed=i) for i in range(8)}
    weights["head.weight"] = plant(10, 48, seed=9)
    path = tmp_path / "model.pt"
    torch.save(weights, path)
    return path


def test_the_table_shows_the_chosen_quarter_within_80_columns(run, model):
    result = run("select", model)
    assert result.exit_code == 0
    assert len(re.findall(r"^blocks\.\d\.fc\.weight", result.stdout, re.MULTILINE)) == 2
    assert "Chose 2 of 8 layers (25 % of their parameters)" in result.stdout
    assert "Did not compete: 1 no other of its role and shape." in result.stdout


def test_every_format_is_for_machines_alone(run, model):
    names = run("select", model, "--format", "list").stdout.splitlines()
    options = json.loads(run("select", model, "--format", "peft").stdout)
    assert [f"{name}.weight" for name in options["target_modules"]] == names
    regex = run("select", model, "--format", "regex").stdout.strip()
    assert all(re.fullmatch(regex, name) for name in options["target_modules"])
    yaml = run("select", model, "--format", "axolotl").stdout.splitlines()
    assert len(yaml) == 1 + len(names)


@pytest.mark.parametrize(("budget", "count"), [("50%", 4), ("0.5", 4), ("100 %", 8), ("1", 8)])
def test_a_budget_is_a_percentage_or_a_share(run, model, budget, count):
    names = run("select", model, "--budget", budget, "--format", "list").stdout.splitlines()
    assert len(names) == count


@pytest.mark.parametrize("budget", ["0", "25", "-5%", "half", "%", "nan", "1e-1"])
def test_another_budget_is_an_error(run, model, budget):
    result = run("select", model, f"--budget={budget}")
    assert result.exit_code == 1
    assert "Expected a share" in result.stderr


def test_a_layer_without_siblings_competes_where_names_are_given(run, model):
    result = run("select", model, "--include", "head*", "--format", "list")
    assert result.stdout == "head.weight\n"


def test_a_saved_probe_is_as_good_as_the_checkpoint(run, model, tmp_path):
    run("probe", model, "--json", tmp_path / "probe.json")
    chosen = run("select", tmp_path / "probe.json", "--format", "list").stdout
    assert chosen == run("select", model, "--format", "list").stdout


def test_json_beside_another_format_needs_a_file(run, model, tmp_path):
    result = run("select", model, "--json", "-", "--format", "list")
    assert (result.exit_code, result.stdout) == (1, "")
    result = run("select", model, "--json", tmp_path / "out.json", "--format", "list")
    assert result.exit_code == 0
    assert len(json.loads((tmp_path / "out.json").read_text())["layers"]) == 8


def test_an_input_is_not_overwritten(run, model):
    before = model.read_bytes()
    assert run("select", model, "--json", model).exit_code == 1
    assert model.read_bytes() == before
