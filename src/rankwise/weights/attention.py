"""How many attention heads a network has, as its configuration says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from rankwise.weights.parts import Config

_MAX_COUNT = 65_536  # heads, or numbers in one: a larger one is a damaged or hostile file's
# Where the configuration of a part of a model is, by what the names of its tensors contain.
_PARTS = (
    (re.compile(r"vision|visual|image_encoder|img_"), ("vision_config", "vision_cfg")),
    (re.compile(r"audio|speech"), ("audio_config", "speech_config")),
    (re.compile(r""), ("text_config", "llm_config", "language_config", "thinker_config")),
)
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "n_kv_heads",
    "multi_query_group_num",
    "kv_n_heads",
)
_HEAD_SIZE = ("head_dim", "d_kv", "attention_head_size", "kv_channels")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
_MAX_NAME = 500


class Attention(NamedTuple):
    """The attention of a network: numbers of heads, and how wide one is."""

    heads: int
    kv_heads: int  # of keys and values, which several heads of queries may share
    head_size: int | None  # None where the configuration does not say
    is_latent: bool  # MLA: keys and values are projected from a latent vector
    model_type: str
    config: Config


def read_attention(config: Config, name: str) -> Attention | None:
    """Return what a configuration says about the attention that a tensor belongs to.

    The configuration comes from an untrusted file: whatever is not a plausible number counts as
    not said.

    Example:
        >>> read_attention({"num_attention_heads": 32, "num_key_value_heads": 8}, "q_proj").kv_heads
        8
    """
    name = name[-_MAX_NAME:]
    part = _find_part(config, name)
    side = "encoder" if "encoder" in name else "decoder" if "decoder" in name else ""
    heads = _find_count(part, (f"{side}_attention_heads", f"{side}_heads")) if side else None
    heads = heads or _find_count(part, _HEADS)
    if heads is None:
        return None
    kv_heads = _find_count(part, _KV_HEADS) or heads
    if part.get("multi_query") is True and part.get("new_decoder_architecture") is not True:
        kv_heads = 1
    size, width = _find_count(part, _HEAD_SIZE), _find_count(part, _WIDTH)
    if size is None and width is not None and width % heads == 0:
        size = width // heads
    model_type = part.get("model_type") or config.get("model_type")
    return Attention(
        heads,
        kv_heads,
        size,
        _find_count(part, ("kv_lora_rank",)) is not None,
        model_type if isinstance(model_type, str) else "",
        part,
    )


def _find_part(config: Config, name: str) -> Config:
    for pattern, keys in _PARTS:
        if pattern.search(name):
            parts = (config.get(key) for key in keys)
            found = next((part for part in parts if isinstance(part, Mapping)), None)
            return config if found is None else found
    return config


def _find_count(config: Config, keys: tuple[str, ...]) -> int | None:
    values = (config.get(key) for key in keys)
    counts = (v for v in values if type(v) is int and 0 < v <= _MAX_COUNT)
    return next(counts, None)
