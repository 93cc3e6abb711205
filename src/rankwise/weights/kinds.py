"""The kind of layer that a tensor belongs to, from its name and shape."""

from __future__ import annotations

import re

_RECURRENT = re.compile(r"(^|\.)weight_([ih]h|hr)(_l\d+(_reverse)?)?(\[\w+\])?$")
_EMBEDDING = re.compile(r"emb(ed(ding)?s?)?(_tokens|_positions)?(\.|_|$)|(^|\.)w[tp]e\.", re.I)
_ATTENTION = re.compile(r"(^|\.)(in_proj_weight|[qkv]_proj_weight)(\[\w+\])?$")


def infer_kind(name: str, shape: tuple[int, ...]) -> str:
    """Infer the kind of layer a weight belongs to from its name and shape.

    Example:
        >>> import rankwise
        >>> rankwise.infer_kind("encoder.conv1.weight", (64, 3, 7, 7))
        'conv2d'
        >>> rankwise.infer_kind("rnn.weight_hh_l0", (400, 100))
        'recurrent'
    """
    if len(shape) < 2:
        return "scalar" if not shape else "vector"
    if _EMBEDDING.search(name) and len(shape) < 4:
        return "embedding"
    if len(shape) == 2:
        named = ((_RECURRENT, "recurrent"), (_ATTENTION, "attention"))
        return next((kind for pattern, kind in named if pattern.search(name)), "linear")
    return f"conv{len(shape) - 2}d" if len(shape) < 6 else "tensor"
