"""The five jobs of docs/checkpoint-jobs.md, on a fine-tuned network: what their commands give."""

import json
import shlex

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from rankwise.cli import app
from tests import ROOT
from tests.docs.blocks import read_blocks

peft = pytest.importorskip("peft")

PAGE = ROOT / "docs" / "checkpoint-jobs.md"
JOBS = [
    "Check it",
    "Compare it with its base",
    "Extract a LoRA",
    "Shrink a LoRA",
    "Choose layers to fine-tune",
]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.head = nn.Linear(64, 10)
        for layer in self.layers:  # as training leaves it: strong directions, and noise
            layer.weight.data += 0.3 * torch.randn(64, 6) @ torch.randn(6, 64) / 8

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def fine_tune(network):
    """Change three layers: strongly in 4 directions, and weakly in one more."""
    for place in (1, 4, 6):
        left, right = torch.randn(64, 5), torch.randn(5, 64)
        left[:, 4] *= 0.02
        network.layers[place].weight.data += 0.02 * left @ right


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each command of the page gave, in a folder with the two networks that it names."""
    folder = tmp_path_factory.mktemp("jobs")
    network = Network()
    save_file(network.state_dict(), folder / "base.safetensors")
    fine_tune(network)
    save_file(network.state_dict(), folder / "tuned.safetensors")
    done = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in read_blocks(PAGE):
            for command in block.commands:
                result = CliRunner().invoke(app, shlex.split(command)[1:])
                assert result.exit_code == 0, f"{command}\n{result.output}\n{result.exception!r}"
                done[command] = (block.section, result.output)
    return folder, done


def test_every_job_has_commands_and_the_table_names_them(results):
    _, done = results
    assert list(dict.fromkeys(section for section, _ in done.values())) == JOBS
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    named = [line.rpartition(" | `")[2].removesuffix("` |") for line in table[1:]]
    assert len(named) == len(JOBS)
    assert set(named) <= set(done)


def test_check_and_diff_say_what_changed(results):
    _, done = results
    with_base = "rankwise check tuned.safetensors --base base.safetensors"
    assert "equal those of the base" in done[with_base][1]
    text = done["rankwise diff base.safetensors tuned.safetensors"][1]
    for place in (1, 4, 6):
        assert f"layers.{place}.weight" in text


def test_the_extracted_and_the_smaller_lora_turn_the_base_into_the_tuned_network(results):
    folder, _ = results
    base, tuned = Network(), Network()
    tuned.load_state_dict(load_file(folder / "tuned.safetensors"))
    x = torch.randn(32, 64)
    sizes = []
    for name, error in (("adapter", 0.05), ("smaller", 0.15)):
        model = peft.PeftModel.from_pretrained(Network(), folder / name)
        with torch.no_grad():
            lost = float((model(x) - tuned(x)).norm() / (base(x) - tuned(x)).norm())
        assert lost < error
        sizes.append((folder / name / "adapter_model.safetensors").stat().st_size)
    assert sizes[1] < sizes[0]


def test_the_options_for_peft_make_a_lora(results):
    _, done = results
    options = json.loads(done["rankwise select base.safetensors --budget 25% --format peft"][1])
    model = peft.get_peft_model(Network(), peft.LoraConfig(**options))
    wrapped = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    assert len(wrapped) == len(options["target_modules"]) == 2
