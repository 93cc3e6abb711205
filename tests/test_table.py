import pytest

from rankwise._table import Cell, Column, Table, align_cells, draw_bar
from rankwise._text import display_width


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "  "), (1.0, "██"), (0.5, "█ "), (1e-9, "▏ "), (9.0, "██"), (float("nan"), "  ")],
)
def test_bar(share, expected):
    assert draw_bar(share, 2) == expected


@pytest.mark.parametrize(
    ("width", "titles"), [(34, ["layer", "shape", "q"]), (29, ["layer", "q"]), (20, ["layer"])]
)
def test_the_column_of_the_lowest_priority_is_dropped_first(width, titles):
    table = Table.from_columns(
        [
            (Column("layer", "left"), ["a" * 20]),
            (Column("shape", priority=1), ["1×2×3"]),
            (Column("q"), ["0.123"]),
        ]
    )
    assert table.format(width).splitlines()[0].split() == titles


def test_wide_names_align_by_display_width():
    table = Table.from_columns(
        [(Column("layer", "left"), ["層層", "abc"]), (Column("q"), ["1", "2"])]
    )
    lines = align_cells(table, 40)
    assert len({display_width("".join(cell.text for cell in line)) for line in lines}) == 1


def test_cells_keep_their_style():
    table = Table.from_columns([(Column("q"), [Cell("1.2", "best"), "2"])])
    assert [[cell.style for cell in line] for line in align_cells(table, 40)] == [
        ["title"],
        ["best"],
        [""],
    ]


def test_unlimited_width_shows_whole_names_that_are_not_absurd():
    table = Table.from_columns([(Column("layer", "left"), ["n" * 300]), (Column("q"), ["1"])])
    assert "n" * 300 in table.format(None)


def test_one_absurd_name_neither_fills_its_row_nor_pads_the_others():
    names = ["a" + "n" * 100_000 + "z", "b" + "n" * 100_000 + "z", "fc.weight"]
    table = Table.from_columns([(Column("layer", "left"), names), (Column("q"), ["1", "2", "3"])])
    head, first, second, short = table.format(None).splitlines()
    assert max(map(len, (first, second))) <= 310
    assert len(head) == len(short) == len("fc.weight  3")
    assert (first[0], second[0]) == ("a", "b")
    assert (first[-1], first[-4]) == ("1", "z")
    assert max(map(len, table.format(80).splitlines())) <= 80


def test_selected_columns_keep_their_cells():
    table = Table.from_columns([(Column(c), [c + "1", c + "2"]) for c in "abc"], caption="letters")
    part = table.select([0, 2])
    assert [column.title for column in part.columns] == ["a", "c"]
    assert part.rows == ((Cell("a1"), Cell("c1")), (Cell("a2"), Cell("c2")))
    assert part.caption == "letters"


def test_a_table_without_rows_has_its_titles():
    assert Table.from_columns([(Column("layer", "left"), []), (Column("q"), [])]).format() == (
        "layer  q"
    )
