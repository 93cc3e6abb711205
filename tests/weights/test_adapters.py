"""Adapters against the changes that the real peft computes."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import rankwise
from rankwise import Status

peft = pytest.importorskip("peft")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 32)
        self.conv = nn.Conv2d(8, 12, 3)

    def forward(self, x):
        return self.fc(x)


def save_adapter(config, folder, seed=0):
    """Return the model with random factors, saved as peft saves it."""
    torch.manual_seed(seed)
    model = peft.get_peft_model(Net(), config)
    for param in model.parameters():
        if param.requires_grad:
            torch.nn.init.normal_(param, std=0.3)
    model.save_pretrained(folder)
    return model


def get_change(model, layer):
    module = next(m for n, m in model.named_modules() if n.endswith(f"model.{layer}"))
    return module.get_delta_weight("default").detach().double().flatten(1)


CONFIGS = {
    "lora": lambda: peft.LoraConfig(r=4, lora_alpha=12, target_modules=["fc", "conv"]),
    "rslora": lambda: peft.LoraConfig(
        r=4, lora_alpha=12, use_rslora=True, target_modules=["fc", "conv"]
    ),
    "patterns": lambda: peft.LoraConfig(
        r=4,
        lora_alpha=12,
        target_modules=["fc", "conv"],
        rank_pattern={"fc": 6},
        alpha_pattern={"fc": 30},
    ),
    "loha": lambda: peft.LoHaConfig(r=3, alpha=9, target_modules=["fc", "conv"]),
    "loha, cores": lambda: peft.LoHaConfig(
        r=3, alpha=9, target_modules=["fc", "conv"], use_effective_conv2d=True
    ),
    "lokr": lambda: peft.LoKrConfig(r=2, alpha=6, target_modules=["fc", "conv"]),
    "lokr, both": lambda: peft.LoKrConfig(
        r=2, alpha=6, target_modules=["fc", "conv"], decompose_both=True
    ),
    "lokr, cores": lambda: peft.LoKrConfig(
        r=2, alpha=6, target_modules=["fc", "conv"], use_effective_conv2d=True
    ),
    "lokr, whole": lambda: peft.LoKrConfig(r=64, alpha=6, target_modules=["fc", "conv"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_singular_values_are_those_of_the_change_that_peft_makes(name, tmp_path):
    model = save_adapter(CONFIGS[name](), tmp_path)
    result = rankwise.probe(tmp_path, spectra=True)
    rows = {layer.name.split(".")[-2]: layer for layer in result.probed}
    assert set(rows) == {"fc", "conv"}
    for layer, row in rows.items():
        change = get_change(model, layer)
        expected = torch.linalg.svdvals(change).numpy()
        assert row.shape == tuple(change.shape)
        np.testing.assert_allclose(
            row.modes[0].spectrum.values, expected, rtol=1e-6, atol=1e-6 * expected[0]
        )
    others = {layer.status for layer in result.layers if not layer.is_probed}
    assert others == {Status.MERGED}


def test_adalora_is_one_layer_with_its_diagonal(tmp_path):
    config = peft.AdaLoraConfig(
        init_r=6, target_r=4, lora_alpha=12, target_modules=["fc"], total_step=9
    )
    model = save_adapter(config, tmp_path)
    (row,) = rankwise.probe(tmp_path, spectra=True).probed
    change = get_change(model, "fc")
    expected = torch.linalg.svdvals(change).numpy()
    np.testing.assert_allclose(row.modes[0].spectrum.values, expected, rtol=1e-4, atol=1e-5)
    assert all(layer.kind != "linear" for layer in rankwise.probe(tmp_path).probed)


def test_dora_is_noted_and_its_norms_are_no_layer(tmp_path):
    config = peft.LoraConfig(r=4, use_dora=True, target_modules=["fc"])
    save_adapter(config, tmp_path)
    result = rankwise.probe(tmp_path)
    (row,) = result.probed
    assert "DoRA" in row.reason
    assert {layer.status for layer in result.layers} == {Status.PROBED, Status.MERGED}


@pytest.mark.parametrize("name", ["lora", "loha", "lokr"])
def test_adapters_in_memory_are_found_beside_their_base(name, tmp_path):
    model = save_adapter(CONFIGS[name](), tmp_path)
    result = rankwise.probe(model, spectra=True)
    kinds = {layer.kind for layer in result.probed}
    assert kinds == {"linear", "conv2d", name}
    row = next(x for x in result.probed if x.kind == name and ".fc." in f".{x.name}.")
    expected = torch.linalg.svdvals(get_change(model, "fc")).numpy()
    scale = expected[0] / row.modes[0].spectrum.values[0]  # α/r is not known in memory
    np.testing.assert_allclose(
        scale * np.array(row.modes[0].spectrum.values), expected, rtol=1e-6, atol=1e-6
    )


def test_kohya_scales_by_its_stored_alpha():
    torch.manual_seed(0)
    down, up = torch.randn(4, 32), torch.randn(24, 4)
    tensors = {
        "lora_unet_to_q.lora_down.weight": down,
        "lora_unet_to_q.lora_up.weight": up,
        "lora_unet_to_q.alpha": torch.tensor(2.0),
    }
    result = rankwise.probe(tensors)
    (row,) = result.probed
    expected = torch.linalg.matrix_norm(up.double() @ down.double(), ord=2) * 2.0 / 4
    assert row.spectral_norm == pytest.approx(float(expected), rel=1e-9)
    assert result["lora_unet_to_q.alpha"].status is Status.MERGED


@pytest.mark.parametrize(
    "config",
    ["[]", '{"lora_alpha": "x"}', '{"lora_alpha": NaN}', '{"alpha_pattern": {"(a+)+$": 1}}', "{"],
)
def test_a_damaged_configuration_scales_by_one(config, tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    a, b = torch.randn(4, 32), torch.randn(24, 4)
    save_file(
        {"fc.lora_A.weight": a, "fc.lora_B.weight": b}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(config)
    (row,) = rankwise.probe(tmp_path).probed
    expected = torch.linalg.matrix_norm(b.double() @ a.double(), ord=2)
    assert row.spectral_norm == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(
    "tensors",
    [
        {
            "x.hada_w1_a": (8, 2),
            "x.hada_w1_b": (3, 8),
            "x.hada_w2_a": (8, 2),
            "x.hada_w2_b": (2, 8),
        },
        {
            "x.hada_w1_a": (8, 2),
            "x.hada_w1_b": (2, 8),
            "x.hada_w2_a": (7, 2),
            "x.hada_w2_b": (2, 8),
        },
        {"x.lokr_w1": (4, 4)},
        {"x.lokr_w1": (4, 4), "x.lokr_w2_a": (4, 2), "x.lokr_w2_b": (3, 4)},
        {"x.lora_A.weight": (4, 8), "x.lora_B.weight": (8, 3)},
    ],
)
def test_factors_that_do_not_fit_are_no_change(tensors):
    result = rankwise.probe({name: torch.randn(shape) for name, shape in tensors.items()})
    assert not [layer for layer in result.layers if layer.kind in ("lora", "loha", "lokr")]


def test_an_adapter_of_nan_is_not_finite():
    tensors = {
        "fc.lora_A.weight": torch.full((2, 8), torch.nan),
        "fc.lora_B.weight": torch.ones(8, 2),
    }
    result = rankwise.probe(tensors)
    assert result["fc.lora"].status is Status.NOT_FINITE
    assert json.loads(result.to_json())
