"""Resized adapters as the real peft loads them, against the product and its decomposition."""

import pytest
import torch

from rankwise.adapters import resize_adapter, write_resized
from tests.adapters.lora_models import (
    Net,
    list_changes,
    load_lora,
    run_net,
    save_lora,
)
from tests.reference.resizing_reference import truncate

peft = pytest.importorskip("peft")
pytest.importorskip("safetensors")

LINEAR = ["fc", "out"]
ALL = ["embed", "conv", "conv1d", "fc", "out"]


def make_config(**options):
    return peft.LoraConfig(**{"r": 8, "lora_alpha": 12, "target_modules": ALL, **options})


CONFIGS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"^fc": 6, "block.fc": 12},
        "alpha_pattern": {"^fc": 30, "block.*": 5},
    },
    "patterns of rslora": {
        "use_rslora": True,
        "rank_pattern": {"out": 5},
        "alpha_pattern": {"out": 7},
    },
    "more ranks than inputs": {"r": 40},
    "a regular expression": {"target_modules": r"(block\.)?(fc|out)|embed"},
    "all linear": {"target_modules": "all-linear"},
    "saved modules": {"modules_to_save": ["head"]},
    "biases": {"bias": "all"},
    "biases of its layers": {"bias": "lora_only"},
    "biases of B": {"lora_bias": True, "target_modules": ["fc", "conv"]},
    "dora": {"use_dora": True, "target_modules": ["fc", "conv", "embed"]},
    "grouped": {"target_modules": ["grouped", "conv"]},
}


@pytest.fixture
def base():
    torch.manual_seed(3)
    return Net()


@pytest.mark.parametrize("name", CONFIGS)
def test_peft_loads_the_nearest_changes_of_the_least_ranks(name, base, tmp_path):
    model = save_lora(base, make_config(**CONFIGS[name]), tmp_path / "old")
    resized = resize_adapter(tmp_path / "old")
    write_resized(resized, tmp_path / "new")
    before, after = list_changes(model), list_changes(load_lora(base, tmp_path / "new"))
    rows = {row.name: row for row in resized.layers}
    assert set(before) == set(after)
    for layer, change in before.items():
        rank, nearest = truncate(change, 0.01)
        assert rows[layer].new_rank == rank < rows[layer].rank
        assert rows[layer].norm == pytest.approx(float(change.norm()), rel=1e-5)
        torch.testing.assert_close(
            after[layer], torch.from_numpy(nearest), rtol=1e-4, atol=1e-5 * float(change.norm())
        )
        lost = float((after[layer] - change).norm() / change.norm()) ** 2
        assert 1 - rows[layer].kept == pytest.approx(lost, rel=1e-3)
    total = sum(float(change.norm()) ** 2 for change in before.values())
    if "grouped" not in name:
        lost = sum(float((after[k] - v).norm()) ** 2 for k, v in before.items())
        assert 1 - resized.kept == pytest.approx(lost / total, rel=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_without_an_error_worth_naming_the_model_computes_the_same(name, base, tmp_path):
    model = save_lora(base, make_config(**CONFIGS[name]), tmp_path / "old", decay=3.0)
    write_resized(resize_adapter(tmp_path / "old", error=1e-9), tmp_path / "new")
    loaded = load_lora(base, tmp_path / "new")
    assert any(
        a.shape != b.shape
        for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True)
    )
    torch.testing.assert_close(run_net(loaded), run_net(model), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(run_net(loaded), run_net(base), atol=1e-2)


@pytest.mark.parametrize("name", ["plain", "dora", "biases", "biases of B", "saved modules"])
def test_layers_without_a_change_are_left_out_where_nothing_else_is_stored(name, base, tmp_path):
    zero = ["block.fc.lora_B", "model.fc.lora_B", "conv.lora_B"]
    model = save_lora(base, make_config(**CONFIGS[name]), tmp_path / "old", zero=zero)
    resized = resize_adapter(tmp_path / "old")
    write_resized(resized, tmp_path / "new")
    left_out = {row.name for row in resized.left_out}
    keeps_all = name in ("dora", "biases", "biases of B")
    assert left_out == (set() if keeps_all else {"block.fc", "fc", "conv"})
    loaded = load_lora(base, tmp_path / "new")
    assert set(list_changes(loaded)) == set(list_changes(model)) - left_out
    write_resized(resize_adapter(tmp_path / "old", error=1e-9), tmp_path / "same")
    torch.testing.assert_close(
        run_net(load_lora(base, tmp_path / "same")), run_net(model), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_short_types_are_kept_and_their_rounding_counts(dtype, base, tmp_path):
    model = save_lora(base, make_config(), tmp_path / "old", dtype=dtype)
    resized = resize_adapter(tmp_path / "old")
    assert {tensor.dtype for tensor in resized.factors.values()} == {dtype}
    assert all(0.99 <= row.kept < 1 and row.new_rank < row.rank for row in resized.layers)
    write_resized(resized, tmp_path / "new")
    before = list_changes(model.double())
    after = list_changes(load_lora(base, tmp_path / "new").double())
    for row in resized.layers:
        lost = float((after[row.name] - before[row.name]).norm() / before[row.name].norm()) ** 2
        assert 1 - row.kept == pytest.approx(lost, rel=1e-3)


def test_an_error_below_the_rounding_keeps_the_factors_bit_for_bit(base, tmp_path):
    model = save_lora(base, make_config(), tmp_path / "old", dtype=torch.bfloat16)
    resized = resize_adapter(tmp_path / "old", error=1e-12)
    assert all(row.new_rank == row.rank and row.kept == 1 for row in resized.layers)
    stored = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    assert all(torch.equal(resized.factors[name], tensor) for name, tensor in stored.items())


def test_a_highest_rank_goes_before_the_error(base, tmp_path):
    save_lora(base, make_config(), tmp_path / "old", decay=0.1)
    resized = resize_adapter(tmp_path / "old", max_rank=2)
    assert {row.new_rank for row in resized.layers} == {2}
    assert all(row.kept < 0.99 for row in resized.layers)
    write_resized(resized, tmp_path / "new")
    assert load_lora(base, tmp_path / "new").peft_config["default"].r == 2


def test_an_attention_and_its_output_projection_keep_one_rank(tmp_path):
    base = torch.nn.Sequential(torch.nn.MultiheadAttention(32, 4, batch_first=True))
    config = peft.LoraConfig(r=8, lora_alpha=4, target_modules=["0"], alpha_pattern={"0": 6})
    model = save_lora(base, config, tmp_path / "old")
    resized = resize_adapter(tmp_path / "old")
    assert [row.name for row in resized.layers] == ["0.base_layer.out_proj", "0"]
    assert len({row.new_rank for row in resized.layers}) == 1
    assert resized.layers[0].new_rank < 8
    write_resized(resized, tmp_path / "new")
    loaded = load_lora(base, tmp_path / "new")
    x = torch.randn(2, 5, 32)
    expected, found = (m.merge_and_unload()[0](x, x, x)[0] for m in (model, loaded))
    torch.testing.assert_close(found, expected, rtol=0.2, atol=0.1)
    assert not torch.allclose(found, base[0](x, x, x)[0], atol=0.1)


def test_an_adapter_of_tensors_that_torch_saved_becomes_safetensors(base, tmp_path):
    model = save_lora(base, make_config(), tmp_path / "old")
    model.save_pretrained(tmp_path / "bin", safe_serialization=False, save_embedding_layers=False)
    assert (tmp_path / "bin" / "adapter_model.bin").is_file()
    write_resized(resize_adapter(tmp_path / "bin"), tmp_path / "new")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    write_resized(resize_adapter(tmp_path / "old"), tmp_path / "other")
    first, second = (list_changes(load_lora(base, tmp_path / n)) for n in ("new", "other"))
    assert all(torch.equal(first[name], second[name]) for name in second)
    # A file of tensors is taken as well as its folder, and resizing again changes nothing.
    again = resize_adapter(tmp_path / "new" / "adapter_model.safetensors")
    assert all(row.new_rank == row.rank for row in again.layers if row.kept == 1)
