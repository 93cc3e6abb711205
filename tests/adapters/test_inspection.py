"""What an adapter's layers use, against the changes that the real peft makes."""

import json

import pytest
import torch

from rankwise.adapters import inspect_adapter, resize_adapter
from rankwise.errors import ArgumentError, CheckpointError
from tests.adapters.lora_models import Net, list_changes, save_lora
from tests.reference.resizing_reference import truncate

peft = pytest.importorskip("peft")
safetensors = pytest.importorskip("safetensors.torch")

CONFIGS = {
    "lora": lambda: peft.LoraConfig(r=8, lora_alpha=12, target_modules=["fc", "conv", "embed"]),
    "rslora": lambda: peft.LoraConfig(r=8, lora_alpha=12, use_rslora=True, target_modules=["fc"]),
    "patterns": lambda: peft.LoraConfig(
        r=8, lora_alpha=12, target_modules=["fc", "out"], alpha_pattern={"^fc": 3, "block.*": 5}
    ),
    "loha": lambda: peft.LoHaConfig(r=3, alpha=9, target_modules=["fc"]),
    "lokr": lambda: peft.LoKrConfig(r=2, alpha=6, target_modules=["fc"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_figures_are_those_of_the_change_that_peft_makes(name, tmp_path):
    torch.manual_seed(3)
    model = save_lora(Net(), CONFIGS[name](), tmp_path)
    if name in ("loha", "lokr"):
        for part, value in model.named_parameters():
            if "hada" in part or "lokr" in part:
                torch.nn.init.normal_(value)
        model.save_pretrained(tmp_path)
    changes = list_changes(model)
    report = inspect_adapter(tmp_path)
    assert {x.module.removeprefix("base_model.model.") for x in report.layers} == set(changes)
    for layer in report.layers:
        module = layer.module.removeprefix("base_model.model.")
        change = changes[module]
        values = torch.linalg.svdvals(change)
        assert layer.used_rank == truncate(change, 0.01)[0]
        assert layer.norm == pytest.approx(float(change.norm()), rel=1e-5)
        assert layer.stable_rank == pytest.approx(
            float((values**2).sum() / values[0] ** 2), rel=1e-4
        )
        assert layer.first_share == pytest.approx(1 / layer.stable_rank)
        if name not in ("loha", "lokr"):
            assert layer.scale == model.get_submodule(layer.module).scaling["default"]
            assert layer.rank == 8
        else:
            assert (layer.rank, layer.scale) == (None, None)
    assert json.loads(report.to_json())["used_rank"] == report.used_rank
    if name not in ("loha", "lokr"):
        resized = resize_adapter(tmp_path)
        assert report.used_rank == sum(layer.new_rank for layer in resized.layers)
        assert report.used_share == pytest.approx(resized.new_bytes / resized.old_bytes)


def test_the_scales_of_an_adapter_in_memory_are_known(tmp_path):
    torch.manual_seed(3)
    model = save_lora(Net(), CONFIGS["patterns"](), tmp_path)
    saved, memory = inspect_adapter(tmp_path), inspect_adapter(model)
    figures = {x.module: (x.scale, x.used_rank, x.norm) for x in saved.layers}
    assert {x.module: (x.scale, x.used_rank, x.norm) for x in memory.layers} == figures
    assert {x.scale for x in memory.layers} == {3 / 8, 5 / 8}
    model.add_adapter("second", peft.LoraConfig(r=2, lora_alpha=7, target_modules=["fc"]))
    assert {x.scale for x in inspect_adapter(model).layers} == {None}


def test_zero_factors_are_named_and_damage_is_no_error(tmp_path):
    tensors = {}
    for place, name in enumerate(("whole", "b", "a", "both", "nan")):
        tensors[f"{name}.lora_A.weight"] = torch.randn(4, 20) * (name not in ("a", "both"))
        tensors[f"{name}.lora_B.weight"] = torch.randn(16, 4) * (name not in ("b", "both"))
        tensors[f"{name}.alpha"] = torch.tensor(float(place + 1))
    tensors["nan.lora_A.weight"][2, 3] = torch.nan
    report = inspect_adapter(tensors)
    found = {layer.module: layer for layer in report.layers}
    assert {name: layer.zero_factors for name, layer in found.items()} == {
        "whole": (),
        "b": ("B",),
        "a": ("A",),
        "both": ("A", "B"),
        "nan": (),
    }
    assert found["nan"].status.value == "not finite"
    assert [layer.is_zero for layer in report.layers] == [False, True, True, True, False]
    assert found["b"].scale == 0.5
    text = report.table(width=80)
    for word in ("B zero", "A and B zero", "not finite", "5 layers (5 lora)"):
        assert word in text
    assert max(map(len, text.splitlines()[:6])) <= 80
    assert json.loads(report.to_json())["layers"][4]["status"] == "not finite"


def test_kohyas_files_are_read(tmp_path):
    tensors = {
        "lora_unet_q.lora_down.weight": torch.randn(4, 8),
        "lora_unet_q.lora_up.weight": torch.randn(8, 4),
        "lora_unet_q.alpha": torch.tensor(2.0),
    }
    safetensors.save_file(tensors, tmp_path / "style.safetensors")
    (layer,) = inspect_adapter(tmp_path / "style.safetensors").layers
    assert (layer.rank, layer.scale, layer.kind) == (4, 0.5, "lora")


def test_the_adapter_of_a_folder_with_a_network_is_taken(tmp_path):
    a = {"x.lora_A.weight": torch.ones(2, 8), "x.lora_B.weight": torch.ones(8, 2)}
    safetensors.save_file(a, tmp_path / "adapter_model.safetensors")
    safetensors.save_file({"fc.weight": torch.ones(4, 4)}, tmp_path / "model.safetensors")
    assert len(inspect_adapter(tmp_path).layers) == 1


def test_what_is_no_adapter_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="without factors of LoRA"):
        inspect_adapter({"fc.weight": torch.ones(4, 4)})
    config = peft.VeraConfig(r=4, target_modules=["fc"])
    torch.manual_seed(0)
    net = torch.nn.ModuleDict({"fc": torch.nn.Linear(8, 8)})
    peft.get_peft_model(net, config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="adapter of the type 'VERA'"):
        inspect_adapter(tmp_path)
    with pytest.raises(ArgumentError, match="below 1"):
        inspect_adapter({}, error=2)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float64])
def test_factors_of_any_floating_type_are_measured(dtype):
    a, b = torch.eye(4, 16).to(dtype), torch.zeros(8, 4).to(dtype)
    (layer,) = inspect_adapter({"x.lora_A.weight": a, "x.lora_B.weight": b}).layers
    assert (layer.zero_factors, layer.is_zero) == (("B",), True)


def test_factors_without_a_direction_are_zero():
    tensors = {"x.lora_A.weight": torch.ones(0, 16), "x.lora_B.weight": torch.ones(8, 0)}
    (layer,) = inspect_adapter(tensors).layers
    assert (layer.rank, layer.used_rank, layer.is_zero) == (0, 0, True)
