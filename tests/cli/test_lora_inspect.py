"""`rankwise lora inspect`: its table, its findings, and the same from `rankwise check`."""

import json

import pytest
import torch

safetensors = pytest.importorskip("safetensors.torch")

NAME = "base_model.model.model.layers.{}.self_attn.q_proj"


@pytest.fixture
def adapter(tmp_path):
    tensors = {}
    for place in range(3):
        name = NAME.format(place)
        tensors[f"{name}.lora_A.weight"] = torch.linalg.qr(torch.randn(48, 8)).Q.T.contiguous()
        b = torch.linalg.qr(torch.randn(32, 8)).Q
        strengths = torch.tensor(([1.3] + [1.0] * 7, [1.0] + [1e-4] * 7, [0.0] * 8)[place])
        tensors[f"{name}.lora_B.weight"] = (b * strengths).contiguous()
    folder = tmp_path / "adapter"
    folder.mkdir()
    safetensors.save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "org/base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_used_ranks_scales_and_findings_are_shown(run, adapter):
    result = run("lora", "inspect", adapter)
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[1:4]]
    assert [row[1:4] for row in rows] == [["8", "8", "19"], ["8", "1", ">99"], ["8", "0", "0"]]
    assert rows[2][-2:] == ["B", "zero"]
    for word in ("Used: 9 of 24", "Scale α/r: 2", "org/base", "[adapter-untrained]", "100.00 %"):
        assert word in result.stdout


def test_its_json_holds_the_findings_of_a_check(run, adapter, tmp_path):
    record = json.loads(run("lora", "inspect", adapter, "--json", "-").stdout)
    assert [layer["used_rank"] for layer in record["layers"]] == [8, 1, 0]
    checked = run("check", adapter, "--json", tmp_path / "check.json")
    assert checked.exit_code == 0
    findings = json.loads((tmp_path / "check.json").read_text())["findings"]
    for finding in (*findings, *record["findings"]):
        finding["figures"] = {}
    assert sorted(map(str, findings)) == sorted(map(str, record["findings"]))
    wider = json.loads(run("lora", "inspect", adapter, "--error", "50%", "--json", "-").stdout)
    assert [layer["used_rank"] for layer in wider["layers"]] == [4, 1, 0]


def test_its_lines_fit_a_terminal(run, adapter, without_escapes):
    result = run("lora", "inspect", adapter, FORCE_COLOR="1", COLUMNS="80", TERM="xterm")
    assert max(map(len, without_escapes(result.stdout).splitlines())) <= 80


def test_what_is_no_adapter_is_refused(run, checkpoint, adapter, tmp_path):
    result = run("lora", "inspect", checkpoint)
    assert result.exit_code == 1
    assert "without factors" in result.stderr
    config = adapter / "adapter_config.json"
    before = config.read_bytes()
    assert run("lora", "inspect", adapter, "--json", config).exit_code == 1
    assert config.read_bytes() == before
