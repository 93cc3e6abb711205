"""Resized adapters of networks of transformers: what they compute, merged and not."""

import pytest
import torch

from rankwise.adapters import resize_adapter, write_resized
from tests.adapters.lora_models import list_changes, load_lora, save_lora
from tests.reference.resizing_reference import truncate

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")


def make_gpt2():
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=60, n_positions=32)
    return transformers.GPT2LMHeadModel(config), ["c_attn", "c_proj", "c_fc"]


def make_llama(*, tied=False):
    config = transformers.LlamaConfig(
        tie_word_embeddings=tied,
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config), ["q_proj", "v_proj", "down_proj", "embed_tokens"]


def make_vit():
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
        num_labels=3,
    )
    return transformers.ViTForImageClassification(config), "all-linear"


def run(model):
    model.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        if hasattr(model, "vit"):
            return model(pixel_values=torch.randn(2, 3, 16, 16, generator=generator)).logits
        tokens = torch.randint(60, (2, 9), generator=generator)
        return model(input_ids=tokens).logits


@pytest.mark.parametrize("make", [make_gpt2, make_llama, make_vit])
@pytest.mark.parametrize("use_rslora", [False, True])
def test_a_resized_adapter_computes_nearly_the_same(make, use_rslora, tmp_path):
    torch.manual_seed(0)
    base, targets = make()
    config = peft.LoraConfig(
        r=12,
        lora_alpha=10,
        target_modules=targets,
        use_rslora=use_rslora,
        fan_in_fan_out=make is make_gpt2,
        modules_to_save=["classifier"] if make is make_vit else None,
    )
    model = save_lora(base, config, tmp_path / "old")
    resized = resize_adapter(tmp_path / "old")
    write_resized(resized, tmp_path / "new")
    loaded = load_lora(base, tmp_path / "new")
    before, after = list_changes(model), list_changes(loaded)
    assert set(before) == set(after)
    for row in resized.layers:
        rank, nearest = truncate(before[row.name], 0.01)
        assert row.new_rank == rank < 12
        torch.testing.assert_close(
            after[row.name], torch.from_numpy(nearest), rtol=1e-4, atol=1e-5 * row.norm
        )
    assert resized.new_bytes < 0.6 * resized.old_bytes
    write_resized(resize_adapter(tmp_path / "old", error=1e-10), tmp_path / "same")
    merged = load_lora(base, tmp_path / "same").merge_and_unload()
    expected = run(model.merge_and_unload())
    torch.testing.assert_close(run(merged), expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(run(base), expected, atol=1e-2)


VARIANTS = {
    "trained tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
    "repeated layers": {"target_modules": ["q_proj"], "layer_replication": [[0, 2], [0, 2]]},
    "some layers": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0, 1]},
    "all but some": {"target_modules": "all-linear", "exclude_modules": ["lm_head", "o_proj"]},
    "tied": {"target_modules": ["q_proj", "embed_tokens", "lm_head"], "ensure_weight_tying": True},
    "MiCA": {"target_modules": "all-linear", "init_lora_weights": "mica"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_lora_load_without_a_warning_and_compute_the_same(name, tmp_path):
    torch.manual_seed(0)
    base, _ = make_llama(tied=name == "tied")
    config = peft.LoraConfig(r=8, lora_alpha=12, **VARIANTS[name])
    zero = ["layers.0.self_attn.q_proj.lora_B"]
    model = save_lora(base, config, tmp_path / "old", zero=zero)
    if name == "tied":  # as peft trains them: one storage for the factors of both
        embedding, head = model.base_model.model.model.embed_tokens, model.base_model.model.lm_head
        head.lora_A["default"].weight.data = embedding.lora_embedding_B["default"].data.T.clone()
        head.lora_B["default"].weight.data = embedding.lora_embedding_A["default"].data.T.clone()
        model.save_pretrained(tmp_path / "old", save_embedding_layers=False)
    resized = resize_adapter(tmp_path / "old", error=1e-6)
    assert [row.name for row in resized.left_out] == ["model.layers.0.self_attn.q_proj"]
    assert resized.new_bytes < resized.old_bytes
    write_resized(resized, tmp_path / "new")
    loaded = load_lora(base, tmp_path / "new")
    expected = run(model)
    assert (run(loaded) - expected).norm() < 0.02 * (run(base) - expected).norm()
