"""What a tensor is, from its name and shape: the kind of its layer, or why it is no weight matrix.

Files and optimizers know nothing else of their tensors. A name is read by its last two steps: that
of the parameter ("weight") and that of the module that owns it ("embed_tokens").
"""

from __future__ import annotations

import re

# A piece of a stack keeps the name of the whole: "gate_up_proj[3]", "weight_ih_l0[i]".
_PIECE = re.compile(r"(\[[^\[\]]*\])+$")
_SEPARATORS = re.compile(r"[./]")
_RECURRENT = re.compile(r"weight_([ih]h|hr)(_l\d+(_reverse)?)?")
_ATTENTION = re.compile(r"in_proj_weight|[qkv]_proj_weight")
_EMBEDDING = re.compile(
    r"(\w+_)?emb(d|ed(ding)?s?)?(_(tokens?|positions?|tables?|matrix|weights?|in|\d+))?|w[tp]e|shared|token_types",
    re.IGNORECASE,
)
# Of a list of layers: these are the layers of a small network that embeds a number or a text.
_EMBEDDING_NETWORK = re.compile(
    r"(time|timestep|label|cond|text|image|img|guidance|vector)\w*", re.I
)
_EXPERTS = re.compile(r"(^|[._/])(experts?|moe|\w+_(ch)?exps)([._/]|$)", re.IGNORECASE)
_ONE_EXPERT = re.compile(r"(expert|moe)\w*[._/]\d+[._/]", re.IGNORECASE)
_CONVOLUTION = re.compile(r"conv|cnn|tdnn|(down|up)_?sampl|wavenet|dilat", re.IGNORECASE)
_MATRIX = re.compile(
    r"linear|proj|dense|(^|_)fc\d*($|_)|gate|router|attn|attention|query|key|value|mlp|ffn|bilinear",
    re.IGNORECASE,
)
# How a parameter of a convolution may be called, as a whole or in parts.
_PLAIN = re.compile(r"weight(_[vg]|_orig|_mask)?|original[01]?|w|kernel", re.IGNORECASE)
_MAX_NAME = 500  # characters at the end of a name that are read; a hostile file has longer ones
_MAX_KERNEL = 32  # of a 1-D convolution with few filters that is not called one

# Parameters that multiply no input as a matrix: the name of the parameter, and what it is.
_NON_WEIGHTS = (
    (r"(\w+_)?bias(es)?(_\d+)?|b_([qkvo]|in|out|mlp)", "several biases in one tensor"),
    (r"\w*bias_table", "a table of biases"),
    (
        r"A_(b_)?logs?|ssm_a|(log_|inv_)?A_(real|imag|re|im)|log_dt|Ds",
        "a state-space layer's rates",
    ),
    (
        r"((cls|class|mask|dist(illation)?|reg(ister)?|storage|query|null|latent|memory|global|"
        r"readout|special|meta|sep|pad|resampler)_)?tokens?",
        "learned tokens",
    ),
    (r"\w*(grid|coords?(_table)?|anchors?|anchor_grid|pos_index)", "a grid of positions"),
    (
        r"\w*(freqs?(_cis)?|inv_freq|timescales?|(cos|sin)(_cached?|_table)?)",
        "a table of frequencies",
    ),
    (r"(\w*_)?mask|mel_(filters|basis|fb)|filterbank|dct_mat|window", "a constant"),
    (
        r"gamma\d*|beta\d*|(\w+_)?scale_shift_table|modulation|(layer_?|res_?)?scales?|lambda_\w+",
        "scales and shifts",
    ),
    (r"time_(mix|maa|decay|first|faaaa)(_[a-z])?|r_k", "per-channel rates of a recurrent layer"),
    (r"\w*prelu\w*|\w*slopes?", "slopes of an activation"),
    (r"vera_lambda_\w+|ia3_l|oft_r|ranknum", "an adapter's scales or rotations"),
)
_NON_WEIGHT = tuple((re.compile(pattern, re.I), reason) for pattern, reason in _NON_WEIGHTS)
# Modules whose `weight` is none of a matrix.
_OWNERS = (
    (
        re.compile(r"(\w+_)?bias(es)?(_table)?|attn_rel_b(_cross)?", re.IGNORECASE),
        "a table of biases",
    ),
    (
        re.compile(r"(cls|class|mask|iou|hf|obj_score|dist|register|query)_tokens?"),
        "learned tokens",
    ),
    (re.compile(r"\w*prelu\d*", re.IGNORECASE), "slopes of an activation"),
    (
        re.compile(r"time_mix_(first|lerp_\w+)"),
        "per-channel rates of a recurrent layer",
    ),
    (
        re.compile(
            r"(\w*_)?(layer|batch|group|rms|instance)?_?norm\d*|"
            r"(\w+_)?(ln|bn)(_?(\d+|[fqkvx]|in|out|pre|post|final|attn|mlp))?",
            re.IGNORECASE,
        ),
        "scales of a norm",
    ),
    (re.compile(r"oft_r|vera_lambda_\w+|ia3_l", re.IGNORECASE), "an adapter's scales or rotations"),
)


def infer_kind(name: str, shape: tuple[int, ...]) -> str:
    """Infer the kind of layer a weight belongs to from its name and shape.

    "stack" is a tensor with one matrix for each index of its first axes, as fused experts are.

    Example:
        >>> import rankwise
        >>> rankwise.infer_kind("encoder.conv1.weight", (64, 3, 7, 7))
        'conv2d'
        >>> rankwise.infer_kind("rnn.weight_hh_l0", (400, 100))
        'recurrent'
        >>> rankwise.infer_kind("mlp.experts.gate_up_proj", (8, 256, 64))
        'stack'
    """
    if len(shape) < 2:
        return "scalar" if not shape else "vector"
    if (len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)) and _is_embedding(name):
        return "embedding"
    if len(shape) == 2:
        last = _split_name(name)[-1]
        named = ((_RECURRENT, "recurrent"), (_ATTENTION, "attention"))
        return next((kind for pattern, kind in named if pattern.fullmatch(last)), "linear")
    if _is_stack(name, shape):
        return "stack"
    return f"conv{len(shape) - 2}d" if len(shape) < 6 else "tensor"


def find_role(name: str) -> str:
    """Return a name without its numbers.

    Example:
        >>> from rankwise.weights.kinds import find_role
        >>> find_role("layers.12.attn.q_proj.weight")
        'layers.#.attn.q_proj.weight'
    """
    return re.sub(r"\d+", "#", name)


def find_non_weight(name: str, shape: tuple[int, ...]) -> str:
    """Return what a tensor of two or more dimensions is if it is no weight matrix, else "".

    Example:
        >>> find_non_weight("mixer.A_log", (1536, 16))
        "a state-space layer's rates"
        >>> find_non_weight("mixer.in_proj.weight", (3072, 768))
        ''
    """
    if len(shape) < 2:
        return ""
    *owners, last = _split_name(name)
    for pattern, reason in _NON_WEIGHT:
        if pattern.fullmatch(last):
            return reason
    if len(shape) > 3 and shape[0] == 1 and _EMBEDDING.fullmatch(last):
        return "a grid of position embeddings"
    if owners and last.lower() in ("weight", "gamma", "scale"):
        return next((why for pattern, why in _OWNERS if pattern.fullmatch(owners[-1])), "")
    return ""


def is_weight_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is a weight that can be measured: a matrix, a stack, a convolution.

    Example:
        >>> is_weight_matrix("experts.gate_up_proj_bias", (8, 256))
        False
    """
    return len(shape) >= 2 and not find_non_weight(name, shape)


def is_expert(name: str) -> bool:
    """Return whether a tensor belongs to the experts of a mixture.

    Example:
        >>> is_expert("model.layers.0.mlp.experts.3.w1.weight")
        True
    """
    return bool(_EXPERTS.search(name[-_MAX_NAME:]))


def _split_name(name: str) -> list[str]:
    """Return the steps of a name; the ":0" of TensorFlow and the label of a piece do not count."""
    return _SEPARATORS.split(_PIECE.sub("", name[-_MAX_NAME:]).removesuffix(":0"))


def _is_embedding(name: str) -> bool:
    *owners, last = _split_name(name)
    if _EMBEDDING.fullmatch(last):
        return True
    if last not in ("weight", "kernel") or not owners:
        return False
    while owners and owners[-1].isdecimal():
        owners.pop()
        if owners and _EMBEDDING_NETWORK.fullmatch(owners[-1]):
            return False
    return bool(owners) and _EMBEDDING.fullmatch(owners[-1]) is not None


def _is_stack(name: str, shape: tuple[int, ...]) -> bool:
    name = name[-_MAX_NAME:]
    if _CONVOLUTION.search(name):
        return False
    if is_expert(name) and not _ONE_EXPERT.search(name):
        return True
    if len(shape) != 3:
        return False
    *owners, last = _split_name(name)
    if not _PLAIN.fullmatch(last) or (owners and _MATRIX.search(owners[-1])):
        return True
    # Kernels are short, or at least no longer than there are filters; experts are few.
    return shape[2] > max(_MAX_KERNEL, shape[0]) and shape[0] > 1 and shape[1] > 1
