"""Which networks have blocks that repeat, and where each layer stands in their grid."""

import pytest

from rankwise.charts.blocks import (
    LABEL_ROOM,
    arrange_blocks,
    arrange_lines,
    compute_least_width,
    find_block_number,
    name_block,
)


def grid(names):
    """Each layer's column and its label, and its role, by name."""
    cells = arrange_blocks(names)
    return {
        name: (cell["column"], cell["block"], cell["role"])
        for name, cell in zip(names, cells, strict=True)
    }


LLAMA = [
    f"model.layers.{n}.{role}.weight"
    for n in range(12)
    for role in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj")
]
BERT = [
    f"encoder.layer.{n}.{role}.weight"
    for n in range(6)
    for role in ("attention.self.query", "attention.self.key", "intermediate.dense", "output.dense")
]
T5 = [
    f"{side}.block.{n}.layer.{part}"
    for side in ("encoder", "decoder")
    for n in range(4)
    for part in ("0.Attention.q.weight", "0.Attention.k.weight", "1.Dense.wi.weight", "1.Dense.wo")
]
SWIN = [
    f"layers.{stage}.blocks.{n}.{role}.weight"
    for stage, depth in enumerate((2, 2, 6, 2))
    for n in range(depth)
    for role in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
]


def test_blocks_are_columns_in_the_order_of_their_numbers_and_roles_are_rows():
    found = grid(sorted(LLAMA))  # 10 comes before 2
    assert found["model.layers.10.mlp.up_proj.weight"] == (10, "10", "mlp.up_proj")
    assert found["model.layers.2.self_attn.q_proj.weight"] == (2, "2", "self_attn.q_proj")
    assert len({cell["row"] for cell in arrange_blocks(LLAMA)}) == 4


def test_layers_in_no_block_have_a_row_each_above_or_below():
    names = ["embed.weight", *BERT, "pooler.weight", "head.weight"]
    cells = dict(zip(names, arrange_blocks(names), strict=True))
    found = {name: (cell["row"], cell["role"]) for name, cell in cells.items()}
    assert found["embed.weight"] == (0, "#1")
    assert found["encoder.layer.0.output.dense.weight"] == (4, "output.dense")
    assert found["pooler.weight"] == (5, "#26")
    assert found["head.weight"] == (6, "#27")
    assert {cell["column"] for cell in cells.values() if cell["outside"]} == {0}


def test_stacks_are_told_apart():
    found = grid(T5)
    assert found["encoder.block.3.layer.1.Dense.wo"][:2] == (3, "encoder.3")
    assert found["decoder.block.0.layer.1.Dense.wo"][:2] == (4, "decoder.0")
    assert len({role for _, _, role in found.values()}) == 4


@pytest.mark.parametrize(
    ("stacks", "labels"),
    [
        (("text.encoder.layers", "vision.encoder.layers"), ["text.0", "vision.0"]),
        (("layer1", "layer2"), ["layer1.0", "layer2.0"]),
        (("model.tower", "model.tower.deep"), ["0", "deep.0"]),
        (("", "aux"), ["0", "aux.0"]),
    ],
    ids=str,
)
def test_a_label_is_what_distinguishes_stacks(stacks, labels):
    names = [f"{s}.{n}.{r}".lstrip(".") for s in stacks for n in range(3) for r in "qkvo"]
    assert [cell["block"] for cell in arrange_blocks(names)][::12] == labels


def test_the_number_that_fills_the_grid_is_the_blocks():
    found = grid(SWIN)
    assert len({column for column, _, _ in found.values()}) == 12
    assert found["layers.2.blocks.5.attn.qkv.weight"][1:] == ("2.5", "attn.qkv")


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["fc.weight"],
        [f"features.{n}.weight" for n in range(20)],
        [f"layer{s}.{n}.conv{c}.weight" for s in (1, 2, 3) for n in range(3) for c in (1, 2)],
        [*LLAMA[:8], *(f"tower.{'abcdefghijkl'[n]}.weight" for n in range(12))],
        [f"h.{n}.part{n}.weight" for n in range(9)],
        [*BERT, *(name.removesuffix(".weight") for name in BERT)],
    ],
    ids=["none", "one", "stack", "few roles", "mostly outside", "nothing repeats", "one cell"],
)
def test_other_networks_have_no_grid(names):
    assert arrange_blocks(names) is None


RESNET = ["conv1.weight"] + [
    f"layer{stage}.{n}.{part}.weight"
    for stage, depth in enumerate((3, 8, 36, 3), 1)
    for n in range(depth)
    for part in ("conv1", "conv2", "conv3", *(["downsample.0"] if n == 0 else []))
]


def test_many_layers_of_few_roles_are_a_grid_since_bars_would_be_too_many():
    found = grid(RESNET)
    assert found["layer3.35.conv2.weight"] == (46, "layer3.35", "conv2")
    assert len({column for column, _, _ in found.values()}) == 50


def test_layers_without_blocks_fill_lines_in_their_order():
    cells = arrange_lines(120)
    assert [(cell["row"], cell["column"]) for cell in cells] == [divmod(n, 50) for n in range(120)]
    assert cells[100]["role"] == "from #101"


def test_a_map_needs_room_for_every_block():
    assert compute_least_width(arrange_blocks(LLAMA)) == LABEL_ROOM + 12 * 10


@pytest.mark.parametrize(
    ("names", "name", "block"),
    [
        (LLAMA, "model.layers.3.mlp.experts.7.w1.weight", "model.layers.3"),
        (LLAMA, "lm_head.weight", ""),
        (SWIN, "layers.2.blocks.5.attn.qkv.weight", "layers.2.blocks.5"),
        ([f"{n}.{r}" for n in range(3) for r in "qkvo"], "2.q", "2"),
    ],
    ids=["expert", "outside", "second number", "no stack"],
)
def test_a_block_is_named_by_its_stack_and_number(names, name, block):
    assert name_block(name, find_block_number(names)) == block


def test_numbers_of_any_length_are_names():
    assert arrange_blocks([f"h.{'9' * 5000}.{n}.weight" for n in "abcdef"]) is None
