"""Every kind of finding about an adapter: on its fault, and not on a healthy adapter."""

import json

import pytest
import torch

import rankwise
from rankwise.checks import KINDS

safetensors = pytest.importorskip("safetensors.torch")

MODULE = "base_model.model.layers.{}.q_proj"
FIRST = f"{MODULE.format(0)}.lora"


def plant_adapter(layers=3, rank=8, *, decay=0.2):
    """Factors whose directions all count, the first most."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for place in range(layers):
        a = torch.linalg.qr(torch.randn(64, rank, generator=generator)).Q.T
        b = torch.linalg.qr(torch.randn(48, rank, generator=generator)).Q
        tensors[f"{MODULE.format(place)}.lora_A.weight"] = a.contiguous()
        strengths = torch.exp(-decay * torch.arange(rank))
        tensors[f"{MODULE.format(place)}.lora_B.weight"] = (b * strengths).contiguous()
    return tensors


def save(folder, tensors, **options):
    folder.mkdir(exist_ok=True)
    safetensors.save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, **options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def fill(factors, value=0.0):
    def change(tensors):
        for factor in factors:
            tensors[f"{MODULE.format(0)}.lora_{factor}.weight"][:] = value

    return change


def zero_all(tensors):
    for name in tensors:
        if "lora_B" in name:
            tensors[name].zero_()


def weaken(share):
    """Leave the first direction so strong that it carries a share of the squares."""

    def change(tensors):
        b = tensors[f"{MODULE.format(0)}.lora_B.weight"]
        b[:, 1:] *= ((1 / share - 1) / float((b[:, 1:] ** 2).sum())) ** 0.5

    return change


def weaken_all(tensors):
    for name in tensors:
        if "lora_B" in name:
            tensors[name][:, 4:] *= 1e-3


FAULTS = [
    (fill("B"), ("adapter-untrained", "warning", FIRST)),
    (fill("A"), ("adapter-untrained", "warning", FIRST)),
    (fill("AB"), ("adapter-untrained", "error", FIRST)),
    (zero_all, ("adapter-untrained", "error", None)),
    (weaken(0.995), ("adapter-one-direction", "note", FIRST)),
    (weaken(0.99995), ("adapter-one-direction", "warning", FIRST)),
    (weaken_all, ("adapter-unused-rank", "note", None)),
    (fill("B", torch.nan), ("not-finite", "error", FIRST)),
]


@pytest.mark.parametrize(("break_it", "expected"), FAULTS)
def test_a_fault_is_found(break_it, expected, tmp_path):
    tensors = plant_adapter()
    break_it(tensors)
    result = rankwise.check(save(tmp_path / "a", tensors))
    found = [(f.kind, f.severity.value, f.layer) for f in result]
    assert expected in found
    kinds = {kind for kind, _, _ in found} - {"adapter-unused-rank"}
    assert kinds <= {expected[0]}
    # Rates of false alarms were measured on networks alone.
    assert not any(f.confidence for f in result if KINDS[f.kind].is_of_adapters)


def test_a_healthy_adapter_has_no_findings(tmp_path):
    assert not list(rankwise.check(save(tmp_path / "a", plant_adapter())))
    assert not list(rankwise.check(save(tmp_path / "b", plant_adapter(1, 1), r=1)))


def test_all_layers_zero_are_one_finding(tmp_path):
    tensors = plant_adapter()
    zero_all(tensors)
    (finding,) = rankwise.check(save(tmp_path / "a", tensors))
    assert finding.message == "All 3 layers of the adapter are zero: it changes nothing."


def test_without_its_configuration_the_scale_is_not_known(tmp_path):
    safetensors.save_file(plant_adapter(), tmp_path / "adapter_model.safetensors")
    (finding,) = rankwise.check(tmp_path)
    assert (finding.kind, finding.severity.value) == ("adapter-unknown-scale", "note")
