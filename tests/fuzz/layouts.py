"""Small networks: plain ones, quantised ones, adapters and stacks, as their writers store them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random

from tests.fuzz.tensors import Stored, make_tensor

# The tensors, and what config.json says.
Network = tuple[list[Stored], dict[str, object]]
Layout = Callable[[Random], Network]
_Shapes = Mapping[str, tuple[str | int, ...]]


def _make(rng: Random, shapes: _Shapes, prefix: str = "") -> list[Stored]:
    return [
        make_tensor(rng, prefix + name, str(dtype), *map(int, shape))
        for name, (dtype, *shape) in shapes.items()
    ]


def _plain(rng: Random) -> Network:
    choices: tuple[_Shapes, ...] = (
        {"conv.weight": ("F32", 4, 3, 2, 2), "fc.weight": ("F32", 5, 7), "fc.bias": ("F32", 5)},
        {"layers.0.weight": ("F16", 6, 5), "layers.1.weight": ("BF16", 5, 6), "n": ("I64", 3)},
        {"a.weight": ("F64", 3, 8), "bn.running_mean": ("F32", 3), "bn.steps": ("I64",)},
        {"w": ("F32", 4, 4)},
        {"fc.weight_g": ("F32", 4, 1), "fc.weight_v": ("F32", 4, 6)},
        {"fc.weight_orig": ("F32", 4, 6), "fc.weight_u": ("F32", 4), "fc.weight_v": ("F32", 6)},
        {"fc.weight_orig": ("F32", 4, 6), "fc.weight_mask": ("F32", 4, 6)},
        {
            "parametrizations.weight.original0": ("F32", 4, 1),
            "parametrizations.weight.original1": ("F32", 4, 6),
        },
    )
    return _make(rng, rng.choice(choices)), {}


def _quantised(method: str, **settings: object) -> dict[str, object]:
    return {"model_type": "llama", "quantization_config": {"quant_method": method, **settings}}


def _fp8(rng: Random) -> Network:
    scale = rng.choice(
        (("weight_scale_inv", 1, 1), ("weight_scale", 8, 1), ("weight_scale",), ("scale", 2, 4))
    )
    parts = {"weight": ("F8_E4M3", 8, 16), str(scale[0]): ("F32", *scale[1:])}
    if rng.random() < 0.3:
        parts["input_scale"] = ("F32",)
    config = _quantised("fp8", weight_block_size=rng.choice(([128, 128], [4, 4], None)), fmt="e4m3")
    return _make(rng, parts, "model.layers.0.q_proj."), config


def _gptq(rng: Random) -> Network:
    bits = rng.choice((2, 4, 8))
    per, groups = 32 // bits, 2
    parts = {
        "qweight": ("I32", 32 // per, 16),
        "qzeros": ("I32", groups, 16 // per),
        "scales": ("F16", groups, 16),
        "g_idx": ("I32", 32),
    }
    config = _quantised("gptq", bits=bits, group_size=16, desc_act=False, sym=True)
    return _make(rng, parts, "model.layers.0.q_proj."), config


def _awq(rng: Random) -> Network:
    parts = {"qweight": ("I32", 32, 2), "qzeros": ("I32", 2, 2), "scales": ("F16", 2, 16)}
    config = _quantised("awq", bits=4, group_size=16, version="gemm", zero_point=True)
    return _make(rng, parts, "model.layers.0.q_proj."), config


def _mxfp4(rng: Random) -> Network:
    parts = {
        "gate_up_proj_blocks": ("U8", 2, 6, 2, 16),
        "gate_up_proj_scales": ("U8", 2, 6, 2),
        "gate_up_proj_bias": ("BF16", 2, 6),
    }
    return _make(rng, parts, "model.layers.0.mlp.experts."), _quantised("mxfp4")


def _nf4(rng: Random) -> Network:
    kind = rng.choice(("nf4", "fp4"))
    nested = rng.random() < 0.5
    state: dict[str, object] = {
        "quant_type": kind,
        "blocksize": 64,
        "dtype": rng.choice(("bfloat16", "float16", "float32")),
        "shape": [8, 16],
    }
    parts: dict[str, tuple[str | int, ...]] = {
        "weight": ("U8", 64, 1),
        "weight.absmax": ("U8" if nested else "F32", 2),
        "weight.quant_map": ("F32", 16),
    }
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.01}
        parts |= {"weight.nested_absmax": ("F32", 1), "weight.nested_quant_map": ("F32", 256)}
    tensors = _make(rng, parts, "model.q_proj.")
    text = json.dumps(state)
    if rng.random() < 0.3:  # the JSON inside a tensor
        text = text.replace(*rng.choice((("8", "-8"), ("[", "[["), ("64", "0"), ('"', "'"))), 1)
    name = f"model.q_proj.weight.quant_state.bitsandbytes__{kind}"
    tensors.append(Stored(name, "U8", (len(text),), text.encode()))
    return tensors, _quantised("bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type=kind)


def _int8(rng: Random) -> Network:
    parts = {"weight": ("I8", 8, 16), "SCB": ("F32", 8), "weight_format": ("U8",)}
    return _make(rng, parts, "model.q_proj."), _quantised("bitsandbytes", load_in_8bit=True)


def _compressed(rng: Random) -> Network:
    choices: tuple[tuple[str, _Shapes], ...] = (
        (
            "pack-quantized",
            {
                "weight_packed": ("I32", 8, 4),
                "weight_scale": ("BF16", 8, 2),
                "weight_shape": ("I64", 2),
                "weight_zero_point": ("I32", 1, 2),
            },
        ),
        ("float-quantized", {"weight": ("F8_E4M3", 8, 16), "weight_scale": ("BF16", 8, 1)}),
        ("int-quantized", {"weight": ("I8", 8, 16), "weight_scale": ("F32", 8, 1)}),
        (
            "nvfp4-pack-quantized",
            {
                "weight_packed": ("U8", 8, 16),
                "weight_scale": ("F8_E4M3", 8, 2),
                "weight_global_scale": ("F32", 1),
            },
        ),
    )
    kind, parts = rng.choice(choices)
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    tensors = _make(rng, parts, "model.q_proj.")
    shape = (8).to_bytes(8, "little") + (32).to_bytes(8, "little")
    tensors = [
        Stored(t.name, t.dtype, t.shape, shape) if t.name.endswith("_shape") else t for t in tensors
    ]
    return tensors, _quantised("compressed-tensors", format=kind, config_groups=groups)


def _experts(rng: Random) -> Network:
    choices: tuple[_Shapes, ...] = (
        {"mlp.experts.gate_up_proj": ("F32", 3, 4, 8), "mlp.experts.down_proj": ("F32", 3, 4, 4)},
        {f"moe.experts.{i}.w1.weight": ("F32", 4, 5) for i in range(3)},
        {"block.ffn.experts.w1": ("BF16", 2, 5, 4), "router.weight": ("F32", 2, 5)},
    )
    config = {"num_local_experts": 3, "num_experts": 3, "hidden_size": 4, "intermediate_size": 4}
    return _make(rng, rng.choice(choices), "model.layers.0."), dict(config)


def _recurrent(rng: Random) -> Network:
    parts: _Shapes = {
        "rnn.weight_ih_l0": ("F32", 12, 4),
        "rnn.weight_hh_l0": ("F32", 12, rng.choice((3, 4))),
        "rnn.bias_ih_l0": ("F32", 12),
    }
    return _make(rng, parts), {}


def _attention(rng: Random) -> Network:
    choices: tuple[_Shapes, ...] = (
        {
            "self_attn.q_proj.weight": ("F32", 8, 8),
            "self_attn.k_proj.weight": ("F32", 4, 8),
            "self_attn.o_proj.weight": ("F32", 8, 8),
        },
        {"attn.c_attn.weight": ("F32", 6, 18), "attn.c_proj.weight": ("F32", 6, 6)},
        {"attention.query_key_value.weight": ("F32", 24, 8)},
        {"attn.in_proj_weight": ("F32", 18, 6), "attn.out_proj.weight": ("F32", 6, 6)},
        {"attn.qkv.weight": ("F16", 18, 6)},
        {"self_attn.qkv_proj.weight": ("F32", 16, 8), "self_attn.o_proj.weight": ("F32", 8, 8)},
    )
    config = {
        "model_type": rng.choice(("llama", "gpt2", "gpt_neox", "bert", "phi3", "t5")),
        "hidden_size": 8,
        "num_attention_heads": rng.choice((2, 4)),
        "num_key_value_heads": 2,
        "head_dim": rng.choice((2, 4)),
        "n_head": 2,
        "n_embd": 6,
    }
    return _make(rng, rng.choice(choices), "model.layers.0."), dict(config)


def _adapter_config(kind: str, **settings: object) -> dict[str, object]:
    return {
        "peft_type": kind,
        "base_model_name_or_path": "base",
        "target_modules": ["q_proj"],
        "r": 2,
        "lora_alpha": 4,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_rslora": False,
        "fan_in_fan_out": False,
        **settings,
    }


_LORA = "base_model.model.layers.0.q_proj."


def _lora(rng: Random) -> Network:
    choices: tuple[_Shapes, ...] = (
        {"lora_A.weight": ("F32", 2, 6), "lora_B.weight": ("F32", 5, 2)},
        {"lora_A.default.weight": ("F16", 2, 6), "lora_B.default.weight": ("F16", 5, 2)},
        {"lora_down.weight": ("F32", 2, 6), "lora_up.weight": ("F32", 5, 2), "alpha": ("F32",)},
        {"lora_embedding_A": ("F32", 2, 9), "lora_embedding_B": ("F32", 5, 2)},
        {"lora_A.weight": ("F32", 2, 3, 2, 2), "lora_B.weight": ("F32", 5, 2, 1, 1)},
        {
            "lora_A.weight": ("F32", 2, 6),
            "lora_B.weight": ("F32", 5, 2),
            "lora_magnitude_vector": ("F32", 5),
            "base_layer.weight": ("F32", 5, 6),
        },
    )
    return _make(rng, rng.choice(choices), _LORA), _adapter_config("LORA")


def _adalora(rng: Random) -> Network:
    parts: _Shapes = {
        "lora_A": ("F32", 3, 6),
        "lora_B": ("F32", 5, 3),
        "lora_E": ("F32", 3, 1),
        "ranknum": ("F32",),
    }
    return _make(rng, parts, _LORA), _adapter_config("ADALORA", target_r=2, init_r=3)


def _loha(rng: Random) -> Network:
    parts: dict[str, tuple[str | int, ...]] = {
        "hada_w1_a": ("F32", 5, 2),
        "hada_w1_b": ("F32", 2, 6),
        "hada_w2_a": ("F32", 5, 2),
        "hada_w2_b": ("F32", 2, 6),
        "alpha": ("F32",),
    }
    if rng.random() < 0.3:
        parts |= {"hada_t1": ("F32", 2, 2, 3, 3), "hada_t2": ("F32", 2, 2, 3, 3)}
    return _make(rng, parts, _LORA), _adapter_config("LOHA", alpha=4)


def _lokr(rng: Random) -> Network:
    choices: tuple[_Shapes, ...] = (
        {"lokr_w1": ("F32", 2, 3), "lokr_w2": ("F32", 4, 2)},
        {"lokr_w1": ("F32", 2, 3), "lokr_w2_a": ("F32", 4, 2), "lokr_w2_b": ("F32", 2, 5)},
        {
            "lokr_w1_a": ("F32", 2, 2),
            "lokr_w1_b": ("F32", 2, 3),
            "lokr_t2": ("F32", 2, 2, 3, 3),
            "lokr_w2_a": ("F32", 2, 4),
            "lokr_w2_b": ("F32", 2, 5),
        },
    )
    return _make(rng, rng.choice(choices), _LORA), _adapter_config("LOKR", decompose_factor=-1)


PLAIN: tuple[Layout, ...] = (_plain, _plain, _plain, _recurrent, _attention, _experts, _lora)
QUANTISED: tuple[Layout, ...] = (_fp8, _gptq, _awq, _mxfp4, _nf4, _int8, _compressed)
ADAPTERS: tuple[Layout, ...] = (_lora, _lora, _adalora, _loha, _lokr)
STACKS: tuple[Layout, ...] = (_experts, _recurrent, _attention, _attention)
