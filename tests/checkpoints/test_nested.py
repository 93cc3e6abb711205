from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rankwise.checkpoints.nested import Selection, number_duplicates, select_weights
from rankwise.errors import CheckpointError


def dotted(size: int = 3, prefix: str = "conv") -> dict[str, Tensor]:
    return {f"{prefix}.weight": torch.ones(size, size), f"{prefix}.bias": torch.ones(size)}


def plain(size: int = 3) -> dict[str, Tensor]:
    return {"weight": torch.ones(size, size), "bias": torch.ones(size)}


OPTIMIZER = {"state": {0: {"exp_avg": torch.ones(3), "step": 1}}, "param_groups": [{"lr": 0.1}]}


def names(selection: Selection) -> list[str]:
    return [name for name, _ in selection.tensors]


@pytest.mark.parametrize(
    "key",
    [
        "state_dict",
        "model_state_dict",
        "model",
        "net",
        "network",
        "module",
        "weights",
        "params",
        "ema",
        "model_ema",
        "state_dict_ema",
        "generator",
        "my_own_name",
    ],
)
def test_the_weights_are_found_under_any_name(key: str) -> None:
    selection = select_weights(
        {"epoch": 3, "args": {"lr": 0.1}, key: dotted(), "best": 0.9, "log": [1, 2]}
    )
    assert names(selection) == ["conv.weight", "conv.bias"]
    (note,) = selection.notes
    assert f"'{key}'" in note


@pytest.mark.parametrize("key", ["state_dict", "model", "net", "params", "ema"])
def test_a_usual_name_is_enough(key: str) -> None:
    assert names(select_weights({"epoch": 3, key: plain()})) == ["weight", "bias"]


def test_a_plain_state_dict_needs_no_note() -> None:
    selection = select_weights(dotted())
    assert names(selection) == ["conv.weight", "conv.bias"]
    assert selection.notes == ()


@pytest.mark.parametrize("average", ["ema", "model_ema", "state_dict_ema", "ema_state_dict", "swa"])
def test_live_weights_come_before_averaged_ones(average: str) -> None:
    live, averaged = dotted(2), dotted(9)
    selection = select_weights({average: averaged, "model": live, "optimizer": OPTIMIZER})
    assert selection.tensors[0][1] is live["conv.weight"]
    choice, optimizer = selection.notes
    assert "from 'model'" in choice
    assert f"'{average}' (2 tensors)" in choice
    assert f"--key {average} " in choice
    assert "'optimizer'" in optimizer
    assert "1 tensor)" in optimizer
    assert select_weights({average: averaged, "model": live}, average).tensors[0][1].shape == (9, 9)


def test_an_average_further_down_is_still_an_average() -> None:
    selection = select_weights(
        {"ema": {"module": dotted(9), "decay": torch.tensor(0.9)}, "net": dotted(2)}
    )
    assert selection.tensors[0][1].shape == (2, 2)
    assert "'ema.module' (2 tensors)" in selection.notes[0]


def test_an_average_alone_is_taken() -> None:
    selection = select_weights({"ema": {"shadow_params": [torch.ones(2), torch.ones(3)]}})
    assert names(selection) == ["0", "1"]
    assert "'ema.shadow_params'" in selection.notes[0]


def test_of_several_the_one_with_the_most_parameters_is_taken() -> None:
    selection = select_weights({"generator": dotted(2), "discriminator": dotted(5)})
    assert selection.tensors[0][1].shape == (5, 5)
    assert "--key generator" in selection.notes[0]


@pytest.mark.parametrize(
    "name",
    ["optimizer", "optimizer_states", "optimizers", "optim", "optim_g", "g_optim", "Optimizer_D"],
)
def test_optimizers_are_left_out_by_name(name: str) -> None:
    selection = select_weights(
        {"model": dotted(), name: {"a.b": torch.ones(99), "c.d": torch.ones(99)}}
    )
    assert names(selection) == ["conv.weight", "conv.bias"]
    assert f"'{name}'" in selection.notes[1]
    assert "2 tensors" in selection.notes[1]


def test_optimizers_are_left_out_by_structure() -> None:
    selection = select_weights({"adam": OPTIMIZER, **dotted()})
    assert names(selection) == ["conv.weight", "conv.bias"]
    (note,) = selection.notes
    assert "'adam'" in note


@pytest.mark.parametrize("tree", [OPTIMIZER, {"optimizer": [torch.ones(3)], "epoch": 1}])
def test_an_optimizer_alone_is_no_model(tree: object) -> None:
    with pytest.raises(CheckpointError, match=r"only an optimizer's state \(1 tensor\)"):
        select_weights(tree)


def test_names_that_only_sound_like_an_optimizer_stay() -> None:
    tree = {"optimal": plain(), "adoptimism": plain(), "optimizer.weight": torch.ones(2)}
    assert len(select_weights(tree, ".").tensors) == 5


def test_layers_are_flattened() -> None:
    tree = {"layer1": plain(), "layer2": {"inner": plain()}, "scale": torch.ones(1), "lr": 0.1}
    assert names(select_weights(tree)) == [
        "layer1.weight",
        "layer1.bias",
        "layer2.inner.weight",
        "layer2.inner.bias",
        "scale",
    ]
    assert select_weights(tree).notes == ()


def test_a_usual_name_among_layers_is_a_layer() -> None:
    assert len(select_weights({"net": plain(), "head": plain()}).tensors) == 4


def test_layers_inside_a_part_are_flattened() -> None:
    tree = {"params": {"dense": plain()}, "step": 3}
    assert names(select_weights(tree)) == ["dense.weight", "dense.bias"]


def test_tensors_beside_the_weights_are_counted() -> None:
    tree = {
        "state_dict": dotted(),
        "rng": torch.ones(5),
        "callbacks": {"stop": {"best": torch.ones(1)}},
    }
    note = select_weights(tree).notes[-1]
    assert "2 tensors" in note
    assert "--key . " in note
    assert len(select_weights(tree, ".").tensors) == 4


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (torch.ones(2), ["tensor"]),
        ([torch.ones(2), torch.ones(3)], ["0", "1"]),
        ((torch.ones(2), 3, None, torch.ones(3)), ["0", "3"]),
        ({0: torch.ones(2), b"\xff": torch.ones(2)}, ["0", "\\xff"]),
        ({0: torch.ones(2), "0": torch.ones(2)}, ["0", "0#2"]),
        ({(1, 2): torch.ones(2)}, ["tuple 0"]),
        ({10**5000: torch.ones(2)}, ["int 0"]),
        ({"checkpoint": {"deep": {"state_dict": dotted()}}}, ["conv.weight", "conv.bias"]),
    ],
)
def test_other_shapes(tree: object, expected: list[str]) -> None:
    assert names(select_weights(tree)) == expected


@pytest.mark.parametrize("tree", [{}, [], None, 3, "text", {"a": {"b": [1, "c", None]}}, {1, 2}])
def test_without_tensors_there_is_an_error(tree: object) -> None:
    with pytest.raises(CheckpointError, match="no tensors"):
        select_weights(tree)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a", ["conv.weight", "conv.bias"]),
        ("a.state_dict", ["conv.weight", "conv.bias"]),
        ("a.state_dict.conv.weight", ["conv.weight"]),
        ("with.dots", ["w"]),
        ("list.1", ["x.weight", "x.bias"]),
        ("optimizer", ["state.0.exp_avg"]),
        (".", None),
    ],
)
def test_keys(key: str, expected: list[str] | None) -> None:
    tree = {
        "a": {"state_dict": dotted(), "epoch": 3},
        "with": {"dots": 3},
        "with.dots": {"w": torch.ones(2)},
        "list": [1, dotted(prefix="x")],
        "optimizer": OPTIMIZER,
    }
    selected = names(select_weights(tree, key))
    assert selected == expected if expected else len(selected) == 5


@pytest.mark.parametrize(
    "key", ["", "no", "model.no", "model.conv.weight.no", "model..", "epoch", " "]
)
def test_a_wrong_key_tells_what_there_is(key: str) -> None:
    tree = {"model": dotted(), "ema": dotted(), "optimizer": OPTIMIZER, "epoch": 3}
    with pytest.raises(CheckpointError, match="there is 'model', 'ema', 'optimizer'") as caught:
        select_weights(tree, key)
    assert f"'{key}'" in str(caught.value)


def test_a_key_of_a_part_with_parts() -> None:
    tree = {"best": {"model": dotted(2), "ema": dotted(9), "optimizer": OPTIMIZER}, "epoch": 3}
    selection = select_weights(tree, "best")
    assert selection.tensors[0][1].shape == (2, 2)
    choice, optimizer = selection.notes
    assert "'best.model'" in choice
    assert "--key best.ema " in choice
    assert "'best.optimizer'" in optimizer


def test_a_key_for_a_bare_tensor() -> None:
    with pytest.raises(CheckpointError, match="a single tensor"):
        select_weights(torch.ones(2), "model")


def test_hostile_names_are_shown_safely() -> None:
    tree = {"\x1b[31m\n": dotted(2), "\u202e": dotted(3)}
    assert all(note.isprintable() for note in select_weights(tree).notes)
    with pytest.raises(CheckpointError) as caught:
        select_weights(tree, "\x1b")
    assert str(caught.value).isprintable()


def test_cycles_end() -> None:
    tree: dict[str, object] = {"model": dotted()}
    tree["self"] = tree
    tree["list"] = [tree, [tree]]
    assert names(select_weights(tree)) == ["conv.weight", "conv.bias"]


def test_the_same_part_under_two_names_is_seen_twice() -> None:
    shared = plain()
    assert (
        len(select_weights({"encoder": {"emb": shared}, "decoder": {"emb": shared}}).tensors) == 4
    )


def test_depth_ends() -> None:
    tree: object = dotted()
    for _ in range(10_000):
        tree = [tree]
    with pytest.raises(CheckpointError, match="no tensors"):
        select_weights(tree)


def test_what_lies_too_deep_is_still_found_elsewhere() -> None:
    shared = {"inner": dotted()}
    deep: object = shared
    for _ in range(63):
        deep = [deep]
    assert names(select_weights({"deep": deep, "shared": shared})) == ["conv.weight", "conv.bias"]


def test_a_structure_that_unfolds_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.checkpoints.nested._MAX_ITEMS", 10_000)
    tree: object = [torch.ones(1)]
    for _ in range(60):
        tree = [tree, tree]
    with pytest.raises(CheckpointError, match="more than 10000 items"):
        select_weights(tree)


def test_a_structure_without_tensors_may_unfold() -> None:
    tree: object = [1]
    for _ in range(60):
        tree = [tree, tree]
    assert names(select_weights({"model": dotted(), "x": tree})) == ["conv.weight", "conv.bias"]


@given(st.lists(st.sampled_from(["a", "a#2", "a#3", "b", ""])))
def test_every_name_is_used_once_and_first_ones_stay(names: list[str]) -> None:
    result = number_duplicates(names)
    assert len(set(result)) == len(names)
    for name in set(names):
        assert result[names.index(name)] == name


def test_a_stored_number_is_not_taken() -> None:
    assert number_duplicates(["a", "a", "a#2"]) == ["a", "a#3", "a#2"]
