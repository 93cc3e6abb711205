from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankwise.checkpoints.naming import unique_names


@given(st.lists(st.sampled_from(["a", "a#2", "a#3", "b", ""])))
def test_every_name_is_used_once_and_first_ones_stay(names: list[str]) -> None:
    result = unique_names(names)
    assert len(set(result)) == len(names)
    for name in set(names):
        assert result[names.index(name)] == name


def test_a_stored_number_is_not_taken() -> None:
    assert unique_names(["a", "a", "a#2"]) == ["a", "a#3", "a#2"]
