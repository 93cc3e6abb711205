from pathlib import Path

import pytest
import torch

from rankwise.errors import ConfigError, DataError
from rankwise.lab.data import text
from tests import SHARED


def spelled(words: tuple[str, ...], numbers: torch.Tensor) -> list[str]:
    return [words[number] for number in numbers.tolist()]


def test_the_penn_treebank_has_its_well_known_sizes() -> None:
    if not (SHARED / "ptb").is_dir():
        pytest.skip("needs the shared data folder beside the project: Penn TreeBank")
    dataset = text.load_ptb(SHARED)
    assert len(dataset.words) == 10_000
    assert len(dataset.train) == 929_589  # 887,521 words and 42,068 ends of lines
    assert len(dataset.test) == 82_430  # 78,669 words and 3,761 ends of lines
    assert dataset.train.dtype == torch.int64
    assert spelled(dataset.words, dataset.train[:3]) == ["aer", "banknote", "berlitz"]
    assert {"<eos>", "<unk>"} <= set(dataset.words)
    assert int(dataset.test.max()) < 10_000


def write_ptb(folder: Path, words: int) -> None:
    folder.mkdir(parents=True)
    lines = [f"w{number} <unk>\n" for number in range(words - 2)]  # and the end of the line
    (folder / "ptb.train.txt").write_text("".join(lines))
    (folder / "ptb.test.txt").write_text("w1 w0 unheard\n")


@pytest.mark.parametrize("place", ["ptb", "simple-examples/data"])
def test_the_penn_treebank_is_found_in_its_usual_places(tmp_path: Path, place: str) -> None:
    write_ptb(tmp_path / place, 10_000)
    dataset = text.load_ptb(tmp_path)
    assert dataset.name == "ptb"
    assert spelled(dataset.words, dataset.test) == ["w1", "w0", "<unk>", "<eos>"]


def test_a_penn_treebank_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    write_ptb(tmp_path / "ptb", 9_999)
    with pytest.raises(DataError, match="9,999"):
        text.load_ptb(tmp_path)


def test_a_missing_penn_treebank_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"simple-examples\.tgz .* in .*" + tmp_path.name):
        text.load_ptb(tmp_path)


def test_the_last_tenth_of_a_files_lines_is_the_test(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line w{number}\n" for number in range(25)))
    dataset = text.load_text(path)
    assert spelled(dataset.words, dataset.train)[-3:] == ["line", "w22", "<eos>"]
    assert len(dataset.train) == 23 * 3
    assert spelled(dataset.words, dataset.test) == ["line", "<unk>", "<eos>"] * 2


def test_words_are_numbered_by_their_first_occurrence_in_the_training_text(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("b a\nb  c\t\n")
    (tmp_path / "test.txt").write_text("c a d")
    dataset = text.load_text(tmp_path)
    assert dataset.words == ("b", "a", "<eos>", "c", "<unk>")
    assert dataset.train.tolist() == [0, 1, 2, 0, 3, 2]
    assert dataset.test.tolist() == [3, 1, 4, 2]


def test_a_folders_validation_text_serves_where_there_is_no_test(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b\n")
    (tmp_path / "valid.txt").write_text("b b\n")
    assert text.load_text(tmp_path).test.tolist() == [1, 1, 2]


def test_an_unknown_word_that_the_text_already_has_is_not_added_again(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("<unk> a\n")
    (tmp_path / "test.txt").write_text("z\n")
    dataset = text.load_text(tmp_path)
    assert dataset.words == ("<unk>", "a", "<eos>")
    assert dataset.test.tolist() == [0, 2]


def test_a_byte_order_mark_and_foreign_line_ends_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes("\ufeffä b\r\nc\r\n".encode())
    (tmp_path / "test.txt").write_bytes("ä\r\n".encode())
    assert text.load_text(tmp_path).words == ("ä", "b", "<eos>", "c", "<unk>")


def test_text_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("käse\n".encode("latin-1") * 20)
    with pytest.raises(DataError, match=r"latin\.txt is not .* at byte 1\b"):
        text.load_text(path)


def test_a_text_of_few_lines_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("one line of many words\n")
    with pytest.raises(DataError, match="got 1; give a folder"):
        text.load_text(path)


def test_a_missing_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        text.load_text(tmp_path / "nowhere.txt")


def test_a_folder_without_both_texts_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b c\n")
    with pytest.raises(DataError, match="not both"):
        text.load_text(tmp_path)


def test_an_empty_test_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b c\n")
    (tmp_path / "test.txt").write_text("")
    with pytest.raises(DataError, match="4 and 0"):
        text.load_text(tmp_path)


def test_each_column_is_a_piece_of_the_text_in_its_own_order() -> None:
    batches = list(text.iter_text_batches(torch.arange(22), columns=3, length=2))
    inputs = torch.cat([batch.inputs for batch in batches])  # (rows - 1, columns)
    targets = torch.cat([batch.targets for batch in batches])
    assert inputs.t().tolist() == [[*range(6)], [*range(7, 13)], [*range(14, 20)]]
    assert torch.equal(targets, inputs + 1)


@pytest.mark.parametrize("count", [8, 9, 15, 16, 17, 23, 24, 25, 100])
@pytest.mark.parametrize("length", [1, 2, 3, 50])
def test_the_number_of_batches_is_the_one_promised(count: int, length: int) -> None:
    batches = list(text.iter_text_batches(torch.arange(count), columns=4, length=length))
    assert len(batches) == text.count_text_batches(count, 4, length)
    assert sum(len(batch.inputs) for batch in batches) == count // 4 - 1
    assert all(1 <= len(batch.inputs) <= length for batch in batches)


def test_a_start_leaves_out_the_batches_before_it() -> None:
    def after(start: int) -> list[list[list[int]]]:
        batches = text.iter_text_batches(torch.arange(40), columns=2, length=3, start=start)
        return [batch.inputs.tolist() for batch in batches]

    assert after(4) == after(0)[4:]
    assert len(after(4)) == 3


def test_processes_share_the_columns() -> None:
    words = torch.arange(60)
    whole = list(text.iter_text_batches(words, columns=4, length=5))
    parts = [
        list(text.iter_text_batches(words, columns=4, length=5, rank=rank, world=2))
        for rank in (0, 1)
    ]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert torch.equal(batch.inputs, torch.cat([share.inputs for share in shares], 1))
        assert torch.equal(batch.targets, torch.cat([share.targets for share in shares], 1))


def test_columns_that_can_not_be_shared_are_an_error() -> None:
    with pytest.raises(ConfigError, match="multiple of 2"):
        next(text.iter_text_batches(torch.arange(60), columns=3, length=5, world=2))


def test_a_text_too_short_for_the_columns_is_an_error() -> None:
    with pytest.raises(ConfigError, match="7 words"):
        next(text.iter_text_batches(torch.arange(7), columns=4, length=5))
