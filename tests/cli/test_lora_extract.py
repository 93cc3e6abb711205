"""`rankwise lora extract`: its table, its folder, and what it refuses."""

import json

import pytest
import torch

from rankwise.cli.lora.extract import parse_rank
from rankwise.errors import ArgumentError

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def networks(tmp_path):
    """A base and a tuned network: two layers changed, of rank 2 and 4, a norm and a bias too."""
    base = {f"layers.{i}.self_attn.q_proj.weight": torch.randn(48, 64) for i in range(3)}
    base |= {"norm.weight": torch.ones(64), "layers.0.self_attn.q_proj.bias": torch.zeros(48)}
    tuned = {name: tensor.clone() for name, tensor in base.items()}
    for place, rank in enumerate((2, 4)):
        product = torch.randn(48, rank) @ torch.randn(rank, 64)
        tuned[f"layers.{place}.self_attn.q_proj.weight"] += 0.1 * product
    tuned["norm.weight"] += 0.1 * torch.rand(64)
    tuned["layers.0.self_attn.q_proj.bias"] += 1
    paths = [tmp_path / "base", tmp_path / "tuned.safetensors"]
    paths[0].mkdir()
    safetensors.save_file(base, paths[0] / "model.safetensors")
    card = "---\nlicense: apache-2.0\ntags: [x]\n---\n# Base\n"
    (paths[0] / "README.md").write_text(card)
    safetensors.save_file(tuned, paths[1])
    return paths


def test_an_adapter_is_described_and_written(run, networks, tmp_path):
    output, record = tmp_path / "adapter", tmp_path / "x.json"
    result = run("lora", "extract", *networks, "-o", output, "--json", record)
    assert result.exit_code == 0, result.stderr
    for text in ("layers.1.self_attn.q_proj", "LoRA on 2 layers", "Stored whole", "Wrote "):
        assert text in result.stdout
    document = json.loads(record.read_text())
    assert [layer["rank"] for layer in document["layers"]] == [2, 4]
    assert document["measured"] > 0.9999
    assert document["bytes"] == (output / "adapter_model.safetensors").stat().st_size
    config = json.loads((output / "adapter_config.json").read_text())
    assert config["bias"] == "all"
    assert config["modules_to_save"] == ["norm"]


def test_the_readme_names_the_base_its_hash_and_its_licence(run, networks, tmp_path):
    import hashlib

    run("lora", "extract", *networks, "-o", tmp_path / "adapter")
    text = (tmp_path / "adapter" / "README.md").read_text()
    content = (networks[0] / "model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() in text
    assert 'license: "apache-2.0"' in text
    assert "PeftModel.from_pretrained" in text


def test_a_dry_run_and_json_on_stdout_write_nothing(run, networks, tmp_path):
    before = sorted(tmp_path.iterdir())
    result = run("lora", "extract", *networks, "--dry-run", "-o", tmp_path / "adapter")
    assert result.exit_code == 0
    assert "Wrote" not in result.stdout
    document = json.loads(run("lora", "extract", *networks, "--dry-run", "--json", "-").stdout)
    assert document["measured"] is None
    assert sorted(tmp_path.iterdir()) == before


def test_sizes_and_types(run, networks, tmp_path):
    options = ["--rank", "16", "--max-rank", "3", "--dtype", "bfloat16", "--max-size", "4kB"]
    result = run("lora", "extract", *networks, "-o", tmp_path / "adapter", *options)
    assert result.exit_code == 0, result.stderr
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    assert file.stat().st_size <= 4000
    stored = safetensors.load_file(file)
    assert {x.dtype for name, x in stored.items() if "lora" in name} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "-o ADAPTER"),
        (["-o", "PLACE/missing/adapter"], "create it first"),
        (["-o", "PLACE/adapter", "--rank", "energy:1.1"], "Expected auto"),
        (["-o", "PLACE/adapter", "--max-size", "1kB"], "max_size of at least"),
        (["-o", "PLACE/adapter", "--max-size", "much"], "Expected a size"),
    ],
)
def test_what_is_refused_leaves_nothing(run, networks, tmp_path, options, message):
    options = [x.replace("PLACE", str(tmp_path)) for x in options]
    before = sorted(tmp_path.iterdir())
    result = run("lora", "extract", *networks, *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_an_input_is_never_overwritten(run, networks):
    files = [networks[1], networks[0] / "model.safetensors", networks[0] / "README.md"]
    contents = [file.read_bytes() for file in files]
    output = networks[0].parent / "a"
    for arguments in (["-o", networks[0]], *(["-o", output, "--json", file] for file in files)):
        result = run("lora", "extract", *networks, *arguments)
        assert result.exit_code == 1
        assert "is an input" in result.stderr
    assert [file.read_bytes() for file in files] == contents
    assert not output.exists()


def test_its_lines_fit_a_terminal(run, networks, without_escapes):
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm"}
    result = run("lora", "extract", *networks, "--dry-run", **terminal)
    lines = without_escapes(result.stdout).splitlines()
    assert len(lines) > 4
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("text", ["", "0", "-1", "energy:", "energy:0", "16.5", "energy:2", "x"])
def test_no_ranks(text):
    with pytest.raises(ArgumentError, match="as rank"):
        parse_rank(text)
