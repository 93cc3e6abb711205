"""`rankwise lora resize`: its table, its files, and what it refuses."""

import json

import pytest
import torch

safetensors = pytest.importorskip("safetensors.torch")

MODULE = "base_model.model.layers.{}.self_attn.q_proj"


@pytest.fixture
def adapter(tmp_path):
    """Two layers of which directions differ in strength, and one that was never trained."""
    tensors = {}
    for place in range(3):
        name = MODULE.format(place)
        b = torch.randn(32, 8) * torch.exp(-2.0 * torch.arange(8.0))
        tensors[f"{name}.lora_A.weight"] = torch.randn(8, 48)
        tensors[f"{name}.lora_B.weight"] = b * (place < 2)
    tensors["base_model.model.head.weight"] = torch.randn(5, 32)
    folder = tmp_path / "adapter"
    folder.mkdir()
    safetensors.save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "modules_to_save": ["head"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_a_smaller_adapter_is_written_and_described(run, adapter, tmp_path):
    result = run("lora", "resize", adapter, "-o", tmp_path / "new", "--json", tmp_path / "x.json")
    assert result.exit_code == 0, result.stderr
    record = json.loads((tmp_path / "x.json").read_text())
    ranks = [layer["new_rank"] for layer in record["layers"]]
    assert ranks[2] == 0
    assert 0 < min(ranks[:2]) <= max(ranks[:2]) < 8
    assert record["new_bytes"] < record["old_bytes"]
    assert record["kept"] > 0.99
    for word in ("layers.0.self_attn.q_proj", "Left out 1 layer", "1 other tensor", "Written to"):
        assert word in result.stdout
    stored = safetensors.load_file(tmp_path / "new" / "adapter_model.safetensors")
    old = safetensors.load_file(adapter / "adapter_model.safetensors")
    kept = "base_model.model.head.weight"
    assert torch.equal(stored[kept], old[kept])
    assert stored[f"{MODULE.format(0)}.lora_A.weight"].shape == (ranks[0], 48)
    assert sum(tensor.nbytes for tensor in stored.values()) == record["new_bytes"]


def test_a_larger_error_and_a_highest_rank_make_it_smaller(run, adapter, tmp_path):
    sizes = []
    for name, options in {"a": [], "b": ["--error", "20%"], "c": ["--max-rank", 1]}.items():
        result = run("lora", "resize", adapter, "-o", tmp_path / name, *options, "--json", "-")
        sizes.append(json.loads(result.stdout)["new_bytes"])
    assert sizes[0] > sizes[1] >= sizes[2]
    again = run("lora", "resize", adapter, "-o", tmp_path / "d", "--max-rank", 1, "--error", "1%")
    assert "lost more than 1 %" in again.stdout


def test_its_lines_fit_a_terminal(run, adapter, tmp_path, without_escapes):
    result = run(
        "lora", "resize", adapter, "-o", tmp_path / "x", FORCE_COLOR="1", COLUMNS="80", TERM="xterm"
    )
    lines = without_escapes(result.stdout).splitlines()
    assert max(map(len, lines)) <= 80
    assert "new" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{adapter}", "-o", "{adapter}"], "is an input"),
        (["{adapter}", "-o", "{place}/a/b"], "create it first"),
        (["{adapter}", "-o", "{place}/x", "--error", "0"], "above 0"),
        (["{adapter}", "-o", "{place}/x", "--error", "100%"], "below 1"),
        (["{adapter}", "-o", "{place}/x", "--max-rank", "0"], "max-rank"),
        (["{place}/nothing", "-o", "{place}/x"], "no such file"),
        (["{adapter}"], "output"),
        (
            ["{adapter}", "-o", "{place}/x", "--json", "{adapter}/adapter_config.json"],
            "is an input",
        ),
    ],
)
def test_what_it_refuses_leaves_no_file(arguments, message, run, adapter, tmp_path):
    before = {path: path.read_bytes() for path in adapter.iterdir()}
    filled = [text.format(adapter=adapter, place=tmp_path) for text in arguments]
    result = run("lora", "resize", *filled)
    assert result.exit_code == 1
    assert message in str(result.stderr) + str(result.exception)
    assert {path: path.read_bytes() for path in adapter.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
