"""Weights → the parts that are stacked in them: gates, q, k and v, gate and up, attention heads."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from rankwise.weights.attention import Attention, read_attention
from rankwise.weights.parts import Config
from rankwise.weights.tensor import Weight

Split = Literal["stacks", "heads"]
ByName = Mapping[str, Weight]

_GATES = {3: "rzn", 4: "ifgo"}
_RECURRENT = re.compile(r"(?P<head>.*\bweight_)[ih]h(?P<tail>(_l\d+(_reverse)?)?)")
_OWNER = r"(^|.*[./])"  # what may come before the last step of a name
_WEIGHT = r"(\.weight)?(\[\d+(,\d+)*\])?"  # and after it
_FUSED = re.compile(
    rf"{_OWNER}(in_proj_weight|(?P<stem>qkv(_proj|_linear)?|to_qkv|W?w?qkv|attn_qkv|c_attn|in_proj|"
    rf"query_key_value|linear_qkv){_WEIGHT})"
)
_GATE_UP = re.compile(rf"{_OWNER}(gate_up_proj|gate_and_up_proj|w13(_weight)?){_WEIGHT}")
_QUERY = re.compile(
    rf"{_OWNER}(q_proj|q_b_proj|query|wq|to_q|q_lin|q|q_proj_weight|kv_b_proj|query_proj|(cross_)?attn_q(_b)?|attn_kv_b){_WEIGHT}"
)
_KEY_VALUE = re.compile(
    rf"{_OWNER}([kv]_proj|key|value|w[kv]|to_[kv]|[kv]_lin|[kv]|[kv]_proj_weight|(key|value)_proj|"
    rf"(cross_)?attn_[kv])"
    rf"{_WEIGHT}"
)
_OUTPUT = re.compile(
    rf"{_OWNER}((self_attn|attn|attention|self_attention|SelfAttention|EncDecAttention|encoder_attn)"
    rf"\.(o_proj|out_proj|c_proj|dense|output\.dense|out_lin|o|wo|Wo|proj|to_out(\.0)?)|o_proj|"
    rf"(cross_)?attn_out(put)?)"
    rf"{_WEIGHT}"
)
# State-space mixers call their input projection as attention does, and have these next to it.
_MIXER = ("A_log", "conv1d.weight", "x_proj.weight", "dt_bias", "D")
# Models that store q, k and v of one head after another, and of one group of heads.
_BY_HEAD = ("gpt_neox", "gpt_neox_japanese", "bloom", "persimmon", "fuyu", "falcon")
_BY_GROUP = ("internlm2", "megatron", "nemotron")
_UNKNOWN_ORDER = ("codegen",)  # interleaved over the processes that it was trained on
_NO_HEADS = "heads were not split: no config.json says how many there are"
_NO_FIT = "heads were not split: no projection fits the heads that its configuration names"


class _Cut(NamedTuple):
    """A part of a weight: of each of `blocks` equal blocks along an axis, some rows."""

    label: str
    axis: int
    start: int
    size: int
    blocks: int = 1


def split_weights(
    weights: Iterable[Weight], config: Config, how: Split
) -> tuple[list[Weight], tuple[str, ...]]:
    """Split weights into the parts that are stacked in them; return also notes for the user.

    "stacks" are recurrent gates, q, k and v in one matrix, and gate and up projections in one;
    "heads" splits these too, and every attention projection into its heads.

    Example:
        >>> import torch
        >>> from rankwise.weights.module import describe_tensor
        >>> weight = describe_tensor("attn.q_proj.weight", torch.zeros(64, 32))
        >>> heads, _ = split_weights([weight], {"num_attention_heads": 2}, "heads")
        >>> [(head.name, head.shape) for head in heads]
        [('attn.q_proj.weight[head 0]', (32, 32)), ('attn.q_proj.weight[head 1]', (32, 32))]
    """
    weights = list(weights)
    by_name = {weight.name: weight for weight in weights}
    pieces = [piece for weight in weights for piece in _split_stack(weight, by_name, config)]
    if how == "stacks":
        return pieces, ()
    heads = [head for piece in pieces for head in _split_heads(piece, config)]
    if len(heads) > len(pieces):
        return heads, ()
    is_known = any(read_attention(config, weight.name) for weight in weights)
    return heads, (_NO_FIT if is_known else _NO_HEADS,)


def _split_stack(weight: Weight, by_name: ByName, config: Config) -> list[Weight]:
    if weight.obstacle is not None or len(weight.shape) != 2:
        return [weight]
    cuts = list(_find_cuts(weight, by_name, config))
    return [_cut(weight, cut) for cut in cuts] or [weight]


def _find_cuts(weight: Weight, by_name: ByName, config: Config) -> Iterator[_Cut]:
    if weight.gates:
        yield from _cut_evenly(weight, 0, weight.gates)
    elif match := _RECURRENT.fullmatch(weight.name):
        hidden = _find_hidden_size(match["head"], match["tail"], by_name)
        if hidden and weight.shape[0] % hidden == 0:
            yield from _cut_evenly(weight, 0, _GATES.get(weight.shape[0] // hidden, ""))
    elif match := _FUSED.fullmatch(weight.name):
        if not _is_mixer(weight.name, by_name):
            attention = read_attention(config, weight.name)
            yield from _cut_attention(weight, match["stem"] or "in_proj_weight", attention)
    elif _GATE_UP.fullmatch(weight.name):
        yield from _cut_gate_up(weight, by_name, config)


def _cut_evenly(weight: Weight, axis: int, labels: Sequence[str]) -> Iterator[_Cut]:
    if labels and weight.shape[axis] % len(labels) == 0:
        size = weight.shape[axis] // len(labels)
        yield from (_Cut(label, axis, i * size, size) for i, label in enumerate(labels))


def _find_hidden_size(head: str, tail: str, by_name: ByName) -> int:
    """Return a recurrent layer's width: `weight_hr`'s columns where the output is projected."""
    for sibling in ("hr", "hh"):
        weight = by_name.get(f"{head}{sibling}{tail}")
        if weight is not None and len(weight.shape) == 2:
            return weight.shape[1]
    return 0


def _is_mixer(name: str, by_name: ByName) -> bool:
    owner = name.removesuffix(".weight").rpartition(".")[0]
    prefix = f"{owner}." if owner else ""
    return any(prefix + sibling in by_name for sibling in _MIXER)


def _cut_attention(weight: Weight, stem: str, attention: Attention | None) -> Iterator[_Cut]:
    """Find q, k and v in one matrix, in the order in which the model stores them."""
    axis = weight.output_axis
    side = weight.shape[axis]
    if attention is None:
        # Three equal parts; of `query_key_value` it is not known whether heads alternate.
        if side == 3 * weight.shape[1 - axis] and stem not in ("query_key_value", "linear_qkv"):
            yield from _cut_evenly(weight, axis, "qkv")
        return
    heads, kv_heads = attention.heads, attention.kv_heads
    if attention.model_type in _UNKNOWN_ORDER or heads % kv_heads or side % (heads + 2 * kv_heads):
        return
    size = side // (heads + 2 * kv_heads)
    if attention.head_size not in (None, size):
        return
    blocks = _count_blocks(stem, attention)
    q, kv = heads * size // blocks, kv_heads * size // blocks
    yield _Cut("q", axis, 0, q, blocks)
    yield _Cut("k", axis, q, kv, blocks)
    yield _Cut("v", axis, q + kv, kv, blocks)


def _count_blocks(stem: str, attention: Attention) -> int:
    """Return how often q, k and v alternate: for each head, for each group of heads, or once."""
    is_falcon = attention.model_type == "falcon"
    if is_falcon and attention.config.get("multi_query") is True:
        is_new = attention.config.get("new_decoder_architecture") is True
        return attention.kv_heads if is_new else 1
    if attention.model_type in _BY_HEAD and attention.kv_heads == attention.heads:
        return attention.heads
    if stem in ("wqkv", "linear_qkv") or attention.model_type in (*_BY_GROUP, "falcon"):
        return attention.kv_heads
    return 1


def _cut_gate_up(weight: Weight, by_name: ByName, config: Config) -> Iterator[_Cut]:
    axis = weight.output_axis
    side = weight.shape[axis]
    if side % 2:
        return
    stored = weight.group or weight.name
    # gpt-oss alternates their rows, and is the one that has biases in its experts.
    alternates = config.get("model_type") == "gpt_oss" or f"{stored}_bias" in by_name
    if alternates and weight.group is not None:
        yield from (_Cut(label, axis, i, 1, side // 2) for i, label in enumerate(("gate", "up")))
    else:
        yield from _cut_evenly(weight, axis, ("gate", "up"))


def _split_heads(weight: Weight, config: Config) -> list[Weight]:
    if weight.obstacle is not None or len(weight.shape) != 2:
        return [weight]
    attention = read_attention(config, weight.name)
    place = None if attention is None else _find_heads(weight, attention)
    if place is None:
        return [weight]
    axis, heads = place
    labels = [f"head {i}" for i in range(heads)]
    group = weight.group or weight.name
    cuts = _cut_evenly(weight, axis, labels)
    return [dataclasses.replace(_cut(weight, cut), group=group) for cut in cuts]


def _find_heads(weight: Weight, attention: Attention) -> tuple[int, int] | None:
    """Return the axis along which a projection's heads lie, and how many there are."""
    name, out = weight.name, weight.output_axis
    part = name.rpartition("[")[2]
    if part in ("q]", "k]", "v]"):  # cut out of a fused projection
        axis, heads = out, attention.heads if part == "q]" else attention.kv_heads
    elif _QUERY.fullmatch(name):
        axis, heads = out, attention.heads
    elif _KEY_VALUE.fullmatch(name):
        axis, heads = out, attention.kv_heads
    elif _OUTPUT.fullmatch(name):
        axis, heads = 1 - out, attention.heads
    else:
        return None
    side = weight.shape[axis]
    size = None if attention.is_latent else attention.head_size
    is_whole = side % heads == 0 and side // heads > 1 and size in (None, side // heads)
    return (axis, heads) if is_whole and heads > 1 else None


def _cut(weight: Weight, cut: _Cut) -> Weight:
    shape = list(weight.shape)
    shape[cut.axis] = cut.size * cut.blocks

    def load() -> Tensor:
        if cut.axis == 0 and cut.blocks == 1:
            return weight.load_slice(cut.start, cut.size)
        whole, axis = weight.load(), cut.axis
        sides = (*whole.shape[:axis], cut.blocks, -1, *whole.shape[axis + 1 :])
        blocks = whole.reshape(sides)
        return blocks.narrow(cut.axis + 1, cut.start, cut.size).flatten(cut.axis, cut.axis + 1)

    return dataclasses.replace(
        weight,
        name=f"{weight.name}[{cut.label}]",
        shape=tuple(shape),
        load=load,
        load_rows=None,
        gates="",
        identity=(weight.identity, cut.label) if weight.identity else None,
        parameters=None,
    )
