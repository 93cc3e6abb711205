"""Tensors in the order of their names, where a file does not tell the network's own order.

Numbers count as numbers, so that layer2 comes before layer10. Among the parts of one module those
that are known to begin a network come first (embeddings, a stem, a first convolution), and those
that end it last (pooling, classifiers, language-model heads). The rest is alphabetical: within a
block, this is not the order in which the parts are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rankwise.weights.tensor import Weights

# Parts of a dotted name, from the first of a network to the last; other names come third.
_HEAD = re.compile(
    r"(\w+_)?(heads?|classifier|logits?|score)|lm_head\w*|cls|fc|embed_out|unembed|proj_out|"
    r"(qa|text|output|final|last)_?(outputs?|projection|proj|layer|linear)|heads?_\w+|conv_(norm_)?out|output(_norm)?"
)
_BEGINNING = re.compile(
    r"\w*embed(s|der|ding|dings)?(_\w+)?|(\w+_)?embd?|w[tp]e|shared|(\w+_)?stem(_\w+)?|(\w+_)?tokens?|"
    r"patch\w*|pos(ition(s|al)?)?(_\w+)?|input_\w+|conv_?[01]|conv_in|weight"
)
_RANKS = (
    (_HEAD, 5),
    (_BEGINNING, 0),
    (re.compile(r"encoder"), 1),
    (re.compile(r"decoder"), 3),
    (re.compile(r"(\w+_)?pooler|ln_f|norm_f|final_\w*norm|ln_out|fc_norm"), 4),
)
_OTHER = 2
_MAX_PART = 100  # a longer part of a name is none of these, and a pattern may take long to say so

Key = tuple[tuple[int, list[tuple[int, str]]], ...]


def sort_names(names: Iterable[str]) -> list[str]:
    """Return the names of tensors as they are listed where the network's own order is not known.

    Example:
        >>> sort_names(["head.weight", "layers.10.weight", "layers.9.weight", "stem.weight"])
        ['stem.weight', 'layers.9.weight', 'layers.10.weight', 'head.weight']
    """
    return sorted(names, key=_make_key)


def sort_weights(weights: Weights) -> Weights:
    """Return the tensors in the order of their names."""
    tensors = sorted(weights.tensors, key=lambda weight: _make_key(weight.name))
    return replace(weights, tensors=tuple(tensors), order="name")


def sort_if_alphabetical(weights: Weights) -> Weights:
    """Return weights as they are, or by name where somebody has evidently sorted them.

    PyTorch lists a module's weight before its bias, and layer 2 before layer 10. A state dict that
    has been through a safetensors file, or a tree of JAX, has them the other way round.
    """
    names = [weight.name for weight in weights.tensors]
    return sort_weights(weights) if _is_alphabetical(names) else weights


def _is_alphabetical(names: Sequence[str]) -> bool:
    if names != sorted(names):
        return False
    known = set(names)
    has_early_bias = any(
        name.endswith(".bias") and f"{name.removesuffix('.bias')}.weight" in known for name in names
    )
    return has_early_bias or names != sorted(names, key=_split_numbers)


def _make_key(name: str) -> Key:
    return tuple((_rank(part), _split_numbers(part)) for part in name.split("."))


def _rank(part: str) -> int:
    if len(part) > _MAX_PART:
        return _OTHER
    return next((rank for pattern, rank in _RANKS if pattern.fullmatch(part)), _OTHER)


def _split_numbers(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts layer2 before layer10."""
    pieces = re.split(r"0*([0-9]+)", text)
    # Of two numbers the one with more digits is larger; int() would refuse very long ones.
    return [(len(piece) if place % 2 else 0, piece) for place, piece in enumerate(pieces)]
