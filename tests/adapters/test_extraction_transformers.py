"""Adapters of transformers' folders: names in memory, classes, tied embeddings, short types."""

import json
import warnings

import pytest
import torch

from rankwise.adapters import ExtractionOptions, extract_adapter, plan_extraction
from rankwise.adapters.extraction.transformers_model import build_model
from tests.adapters.changed_networks import change

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 50,
}
GPT2 = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 50, "n_positions": 16}
WORDS = {"input_ids": torch.tensor([[1, 5, 7, 2], [9, 3, 4, 4]])}
IMAGES = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}

MODELS = {
    "Llama": ("ForCausalLM", SMALL | {"tie_word_embeddings": False}, WORDS),
    "GPT2": ("LMHeadModel", GPT2 | {"tie_word_embeddings": False}, WORDS),
    # Names in files are not those in memory.
    "GPTNeoX": ("ForCausalLM", SMALL, WORDS),
    "Dinov2": (
        "ForImageClassification",
        {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"image_size": 32, "patch_size": 8},
        IMAGES,
    ),
    "Swin": ("ForImageClassification", SWIN | {"window_size": 4}, IMAGES),
    "Bert": ("ForSequenceClassification", SMALL | {"max_position_embeddings": 16}, WORDS),
    # Grouped and depthwise convolutions.
    "RegNet": (
        "ForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
        IMAGES,
    ),
    "ConvNext": (
        "ForImageClassification",
        {"hidden_sizes": [16, 16, 16, 16], "depths": [1, 1, 1, 1]},
        IMAGES,
    ),
}


def build(name):
    head, options, inputs = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, name + head)(config).eval(), inputs


def save(model, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return folder


def load(base, adapter):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.PeftModel.from_pretrained(base, adapter).eval()


def find_distance(one, other, inputs):
    with torch.no_grad():
        return float((one(**inputs)[0] - other(**inputs)[0]).abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_folders_of_models(name, tmp_path):
    base, inputs = build(name)
    tuned = change(base).eval()
    places = [save(base, tmp_path / "base"), save(tuned, tmp_path / "tuned")]
    extraction = extract_adapter(*places, tmp_path / "a", ExtractionOptions(rank=8))
    assert extraction.plan.left_out == ()
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "base")
    model = load(type(base).from_pretrained(tmp_path / "base").eval(), tmp_path / "a")
    assert find_distance(base, tuned, inputs) > 1e-2
    assert find_distance(model, tuned, inputs) < 1e-5
    merged = model.merge_and_unload().eval()
    assert find_distance(merged, tuned, inputs) < 1e-5
    weights = merged.state_dict()
    for key, tensor in tuned.state_dict().items():
        assert torch.allclose(weights[key], tensor, atol=1e-6), key


def test_a_base_without_the_prefix_of_its_head(tmp_path):
    base, _ = build("GPT2")
    tuned = change(base).eval()
    folder = save(base.transformer, tmp_path / "base")  # as gpt2 itself is stored
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["GPT2LMHeadModel"]
    (folder / "config.json").write_text(json.dumps(config))
    plan = plan_extraction(folder, save(tuned, tmp_path / "tuned"))
    assert all(layer.name.startswith("transformer.") for layer in plan.layers)


def test_a_tied_output_layer_changes_once_the_adapter_is_merged(tmp_path):
    torch.manual_seed(0)
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).eval()
    tuned = change(base).eval()
    places = [save(base, tmp_path / "base"), save(tuned, tmp_path / "tuned")]
    extraction = extract_adapter(*places, tmp_path / "a", ExtractionOptions(rank=8))
    assert any("tied" in note for note in extraction.plan.notes)
    assert "merge" in (tmp_path / "a" / "README.md").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "a")
        merged = loaded.merge_and_unload().eval()
    assert find_distance(merged, tuned, WORDS) < 1e-5


def test_bfloat16_networks(tmp_path):
    base, _ = build("Llama")
    short = base.bfloat16()
    tuned = change(short, rank=2, size=0.02).eval()
    places = [save(short, tmp_path / "base"), save(tuned, tmp_path / "tuned")]
    extraction = extract_adapter(*places, tmp_path / "a")
    layers = extraction.plan.layers
    # Rounding to bfloat16 adds no rank, or next to none in such small layers: the change had 2.
    ranks = sorted(layer.rank for layer in layers)
    assert ranks[len(ranks) // 2] == 2
    assert ranks[-1] <= 3
    assert {layer.dtype for layer in layers} == {torch.bfloat16}


def test_a_type_that_only_rounds_is_no_change(tmp_path):
    base, _ = build("Llama")
    save(base, tmp_path / "base")
    tuned = change(base)
    name = "model.layers.0.mlp.up_proj.weight"
    mixed = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
    with torch.no_grad():
        mixed.state_dict()[name].copy_(tuned.state_dict()[name])
    plan = plan_extraction(tmp_path / "base", save(mixed, tmp_path / "mixed"))
    assert [layer.name for layer in plan.layers] == [name]
    assert plan.layers[0].rank == 2


def test_experts_that_become_one_tensor_are_listed(tmp_path):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(num_local_experts=2, num_key_value_heads=2, **SMALL)
    base = transformers.MixtralForCausalLM(config).eval()
    places = [save(base, tmp_path / "base"), save(change(base), tmp_path / "tuned")]
    plan = plan_extraction(*places, ExtractionOptions(rank=8))
    assert all("experts" in item.name for item in plan.left_out)
    assert len(plan.left_out) == 2 * 2 * 3
    assert not any("gate" in layer.name for layer in plan.layers)


def test_without_a_class_names_and_shapes_tell(tmp_path):
    base, _ = build("Bert")
    places = [save(base, tmp_path / "base"), save(change(base), tmp_path / "tuned")]
    for place in places:
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    plan = plan_extraction(*places)
    assert {x.form for x in plan.layers if "embeddings" in x.name} == {"embedding"}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"architectures": [], "model_type": "llama"},
        {"architectures": ["LlamaForCausalLM"], "model_type": "no such type"},
        {"architectures": ["LlamaForCausalLM"], "model_type": 7},
        {"architectures": ["os"], "model_type": "llama"},
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 10**9},
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": "x"},
        {"architectures": ["SwinModel"], "model_type": "swin", "depths": [10**9]},
    ],
)
def test_configurations_that_are_not_built(config):
    assert build_model(config, tensors=100) is None


def test_the_adapter_of_a_module_of_transformers(tmp_path):
    base, inputs = build("Dinov2")
    tuned = change(base).eval()
    extract_adapter(base, tuned, tmp_path / "a", ExtractionOptions(rank=8))
    model = load(base, tmp_path / "a")
    assert find_distance(model, tuned, inputs) < 1e-5
