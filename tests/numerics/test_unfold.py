import pytest
import torch

from rankwise import plan_unfoldings, unfold


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((20, 30), [(("matrix",), 20, 30)]),
        ((30, 20), [(("matrix",), 20, 30)]),
        ((64, 32, 3, 3), [(("input",), 32, 576), (("output",), 64, 288)]),
        ((64, 32, 3), [(("input",), 32, 192), (("output",), 64, 96)]),
        ((8, 4, 3, 3, 3), [(("input",), 4, 216), (("output",), 8, 108)]),
        ((64, 3, 7, 7), [(("input",), 3, 3136), (("output",), 64, 147)]),
        ((1000, 2, 3, 3), [(("input",), 2, 9000), (("output",), 18, 1000)]),
        ((64, 32, 1, 1), [(("input", "output"), 32, 64)]),
        ((64, 1, 3, 3), [(("output",), 9, 64)]),
        ((1, 64, 3, 3), [(("input",), 9, 64)]),
        ((1, 197, 768), [(("input",), 197, 768)]),
        ((1, 1, 768), []),
        ((1, 30), []),
        ((30, 1), []),
        ((30,), []),
        ((), []),
    ],
)
def test_plan(shape, expected):
    unfoldings = [(u.modes, u.rows, u.columns) for u in plan_unfoldings(shape)]
    assert unfoldings == expected


def test_transposed_convolutions_swap_their_modes():
    assert [(u.modes, u.axis) for u in plan_unfoldings((8, 4, 3, 3), transposed=True)] == [
        (("input",), 0),
        (("output",), 1),
    ]


@pytest.mark.parametrize("mode", ["input", "output"])
def test_one_mode_only(mode):
    assert [u.modes for u in plan_unfoldings((8, 4, 3, 3), modes=mode)] == [(mode,)]
    assert [u.modes for u in plan_unfoldings((8, 4, 1, 1), modes=mode)] == [(mode,)]
    assert [u.modes for u in plan_unfoldings((8, 4), modes=mode)] == [("matrix",)]


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'both', 'input' or 'output', got 'all'"):
        plan_unfoldings((8, 4, 3, 3), modes="all")


def test_unfold_rows_are_slices_along_the_axis():
    weight = torch.randn(5, 4, 3, 2)
    assert torch.equal(unfold(weight, 0)[2], weight[2].flatten())
    assert torch.equal(unfold(weight, 1)[3], weight[:, 3].flatten())


def test_unfold_of_channels_last_is_the_same_matrix():
    weight = torch.randn(5, 4, 3, 2)
    other = weight.to(memory_format=torch.channels_last)
    assert torch.equal(unfold(weight, 1), unfold(other, 1))
