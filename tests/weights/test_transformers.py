"""Models as transformers builds and saves them: the same weights in memory and in the file."""

import pytest
import torch

import rankwise
from rankwise import Status

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}


def build(name):
    torch.manual_seed(0)
    t = transformers
    match name:
        case "mixtral":
            return t.MixtralForCausalLM(t.MixtralConfig(**SIZES, num_local_experts=4))
        case "gpt_oss":
            options = {"num_local_experts": 4, "head_dim": 8, "layer_types": ["full_attention"]}
            return t.GptOssForCausalLM(t.GptOssConfig(**SIZES, **options))
        case "granite":
            return t.GraniteMoeForCausalLM(t.GraniteMoeConfig(**SIZES, num_local_experts=4))
        case "mamba":
            config = t.MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=64)
            return t.MambaForCausalLM(config)
        case "t5":
            config = t.T5Config(
                d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=64
            )
            return t.T5ForConditionalGeneration(config)
    raise ValueError(name)


def save(model, folder):
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "granite"])
def test_experts_have_the_same_ranks_in_memory_and_in_the_file(name, tmp_path):
    model = build(name)
    with torch.no_grad():
        for param in model.parameters():
            if param.ndim == 3:  # an expert's own direction, far above the noise
                param.add_(torch.ones_like(param))
    memory = [x for x in rankwise.probe(model).probed if "experts" in x.name or "moe" in x.name]
    stored = [
        x
        for x in rankwise.probe(save(model, tmp_path)).probed
        if any(word in x.name for word in ("experts", "linear"))
    ]
    matrices = {"mixtral": (8, 12), "gpt_oss": (8, 8), "granite": (9, 8)}[name]
    assert (len(memory), len(stored)) == matrices  # Mixtral's file has gate and up by themselves
    ranks = {layer.rank for layer in memory if "experts" in layer.name}
    assert ranks == {layer.rank for layer in stored} == {1.0}


def test_a_mamba_has_no_rank_before_it_is_trained(tmp_path):
    model = build("mamba")
    for target in (model, save(model, tmp_path)):
        result = rankwise.probe(target, split=True)
        assert result.quality == 0.0
        assert result["backbone.layers.0.mixer.A_log"].status is Status.NOT_A_WEIGHT
        assert result["backbone.layers.0.mixer.in_proj.weight"].is_probed
        assert result["backbone.embeddings.weight"].kind == "embedding"


def test_t5_has_one_embedding_and_two_tables_of_biases(tmp_path):
    model = build("t5")
    for target in (model, save(model, tmp_path)):
        result = rankwise.probe(target)
        assert result["shared.weight"].kind == "embedding"
        tables = [layer for layer in result.layers if layer.status is Status.NOT_A_WEIGHT]
        assert len(tables) == 2
        assert all("relative_attention_bias" in layer.name for layer in tables)


def test_a_trainer_of_experts_measures_what_a_probe_does():
    model = build("gpt_oss")
    optimizer = rankwise.RMSGD(model.named_parameters(), lr=0.01)
    loss = model(torch.randint(0, 64, (2, 8)), labels=torch.randint(0, 64, (2, 8))).loss
    loss.backward()
    optimizer.step()
    optimizer.epoch_step()
    expected = {layer.name: layer.stable_rank for layer in rankwise.probe(model).probed}
    measured = {layer.name: layer.stable_rank for layer in optimizer.last_probe.probed}
    assert measured == expected
