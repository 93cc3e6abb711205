"""How PEFT finds modules by names, and what names and shapes tell of layers."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.adapters.extraction.peft_layout import (
    choose_saved_modules,
    find_special,
    make_lora_options,
)
from rankwise.weights.module import describe_tensor

MODULES = ["fc", "a.fc", "b.fc", "a.b.fc", "myfc", "a_fc", "x.a_fc"]


def find_rank(options, module):
    """The rank that PEFT gives a module: the first pattern that matches its end."""
    patterns = options["rank_pattern"]
    key = next((k for k in patterns if re.match(rf"(.*\.)?({k})$", module)), None)
    return options["r"] if key is None else patterns[key]


def is_target(options, module):
    targets = options["target_modules"]
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in targets)


@given(st.dictionaries(st.sampled_from(MODULES), st.integers(1, 4), min_size=1))
def test_each_module_gets_its_own_rank_and_no_other_one_is_meant(ranks):
    options = make_lora_options(ranks, MODULES)
    assert {m for m in MODULES if is_target(options, m)} == set(ranks)
    assert {m: find_rank(options, m) for m in ranks} == ranks
    assert options["alpha_pattern"] == options["rank_pattern"]
    assert options["lora_alpha"] == options["r"]


def test_the_usual_rank_needs_no_pattern():
    options = make_lora_options({"a.q": 4, "b.q": 4, "c.q": 8}, ["a.q", "b.q", "c.q"])
    assert (options["r"], options["rank_pattern"]) == (4, {"c.q": 8})
    assert options["target_modules"] == ["a.q", "b.q", "c.q"]


@pytest.mark.parametrize(
    ("wanted", "modules", "adapted", "saved"),
    [
        (["a.norm"], ["a", "a.norm", "b.norm"], [], ["a.norm"]),
        (["norm"], ["norm", "a", "a.norm", "prenorm"], [], ["norm", "a.norm", "prenorm"]),
        # What the name means too has a LoRA, or holds other modules: it can't be stored so.
        (["norm"], ["norm", "a", "a.norm"], ["a.norm"], []),
        (["norm"], ["norm", "a.norm", "a.norm.fc"], [], []),
        (["norm"], ["norm", "norm2"], ["norm2"], ["norm"]),
        (["a+b"], ["a+b"], [], []),
    ],
)
def test_modules_that_are_stored_whole(wanted, modules, adapted, saved):
    assert choose_saved_modules(wanted, modules, adapted) == saved


@pytest.mark.parametrize(
    ("shapes", "special"),
    [
        ({"a": (64, 3, 7, 7), "b": (64, 64, 3, 3), "c": (128, 64, 3, 3), "d": (128, 64, 1, 1)}, ""),
        ({"a": (64, 3, 7, 7), "b": (128, 64, 1, 1), "c": (128, 4, 3, 3)}, "c"),
        ({"a": (8, 1, 3, 3), "b": (8, 8, 3, 3)}, ""),
        ({"a": (256, 64, 1, 1), "b": (256, 64, 3, 3)}, "b"),
    ],
)
def test_grouped_convolutions_show_by_their_neighbours(shapes, special):
    weights = [describe_tensor(f"{n}.weight", torch.zeros(s)) for n, s in shapes.items()]
    assert [name.removesuffix(".weight") for name in find_special(weights)] == list(special)


def test_transposed_convolutions_and_attention_show_by_other_tensors():
    shapes = {
        "up.weight": (8, 4, 2, 2),
        "up.bias": (4,),
        "attn.in_proj_weight": (24, 8),
        "attn.out_proj.weight": (8, 8),
        "other.out_proj.weight": (8, 8),
    }
    weights = [describe_tensor(name, torch.zeros(shape)) for name, shape in shapes.items()]
    assert list(find_special(weights)) == ["up.weight", "attn.out_proj.weight"]
