"""Text as word numbers, and its batches: parallel columns, cut into windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from rankwise.errors import ConfigError, DataError
from rankwise.lab.data.dataset import Batch, TextDataset
from rankwise.lab.data.files import list_folders, missing_error

END = "<eos>"  # added at the end of each line
UNKNOWN = "<unk>"
PTB_WORDS = 10_000
PTB_FOLDERS = ("ptb", "simple-examples/data")
TEST_SHARE = 10  # the last tenth of a single file's lines is the test


def load_ptb(root: Path) -> TextDataset:
    """Load the Penn TreeBank in Mikolov's form, `ptb.train.txt` and `ptb.test.txt`.

    They are looked for in `ROOT/ptb/` and in `ROOT/simple-examples/data/`, where the original
    archive unpacks them. The validation file is not used.
    """
    folders = list_folders(root, PTB_FOLDERS)
    files = ("ptb.train.txt", "ptb.test.txt")
    folder = next((f for f in folders if all((f / file).is_file() for file in files)), None)
    if folder is None:
        raise missing_error(
            "ptb",
            folders,
            files=" and ".join(files),
            advice=f"unpack simple-examples.tgz (Mikolov's language-model files) in {root}",
        )
    train, test = (_read_lines(folder / file) for file in files)
    dataset = _make_dataset("ptb", train, test)
    if len(dataset.words) != PTB_WORDS:
        raise DataError(
            f"Expected {PTB_WORDS:,} different words in {folder / files[0]}, but it has "
            f"{len(dataset.words):,}; put Mikolov's complete file there, or use text:PATH for a "
            "text of your own."
        )
    return dataset


def load_text(path: Path) -> TextDataset:
    """Load `text:PATH`: a UTF-8 file, or a folder with `train.txt` and `test.txt` or `valid.txt`.

    Words are separated by whitespace; "<eos>" is added at the end of each line. The vocabulary
    is that of the training text, in the order of first occurrence, and "<unk>". The last tenth of
    the lines of a single file is the test.
    """
    if path.is_dir():
        test = next((t for t in (path / "test.txt", path / "valid.txt") if t.is_file()), None)
        if test is None or not (path / "train.txt").is_file():
            raise DataError(
                f"Expected train.txt and test.txt (or valid.txt) in {path}, but not both "
                "exist; add them, or give a single text file."
            )
        return _make_dataset(f"text:{path}", _read_lines(path / "train.txt"), _read_lines(test))
    lines = _read_lines(path)
    if len(lines) < TEST_SHARE:
        raise DataError(
            f"Expected at least {TEST_SHARE} lines in {path}, the last tenth of which is the test, "
            f"got {len(lines)}; give a folder with train.txt and test.txt instead."
        )
    end = len(lines) - len(lines) // TEST_SHARE
    return _make_dataset(f"text:{path}", lines[:end], lines[end:])


def count_text_batches(words: int, columns: int, length: int) -> int:
    """Count the batches of a text.

    Example:
        >>> count_text_batches(20, columns=2, length=4)  # 10 rows, 9 of which have a next one
        3
    """
    rows = words // columns
    if rows < 2:
        raise ConfigError(
            f"Expected a text of at least two words for each of the {columns} columns, got "
            f"{words} words; use a smaller batch or a longer text."
        )
    return -(-(rows - 1) // length)


def iter_text_batches(
    words: Tensor,
    *,
    columns: int,
    length: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str = "cpu",
) -> Iterator[Batch]:
    """Iterate over a text in order, all columns in parallel.

    The text (N,) is cut into `columns` pieces, the global batch size; the remainder is dropped. A
    batch has `length` words of each piece, the last one perhaps fewer: inputs and next words are
    (T, B), where B is `columns / world`. The first batch is number `start`.

    Example:
        >>> batches = iter_text_batches(torch.arange(10), columns=2, length=2)
        >>> [batch.inputs.tolist() for batch in batches]
        [[[0, 5], [1, 6]], [[2, 7], [3, 8]]]
    """
    if columns % world:
        raise ConfigError(
            f"Expected a batch size that {world} processes can share evenly, got {columns}; choose "
            f"a multiple of {world}."
        )
    count = count_text_batches(len(words), columns, length)
    rows, share = len(words) // columns, columns // world
    text = words[: rows * columns].view(columns, rows)[rank * share : (rank + 1) * share]
    text = text.t().contiguous().to(device)  # (rows, B)
    for first in range(start * length, count * length, length):
        last = min(first + length, rows - 1)
        yield Batch(text[first:last], text[first + 1 : last + 1])


def _read_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"Expected a text file, but {path} can't be read ({error.strerror}); give an existing "
            "file, as in text:PATH."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"Expected a text in UTF-8, but {path} is not UTF-8 ({error.reason} at byte "
            f"{error.start:,}); convert it to UTF-8."
        ) from error
    return text.removesuffix("\n").split("\n") if text else []


def _make_dataset(name: str, train_lines: list[str], test_lines: list[str]) -> TextDataset:
    numbers: dict[str, int] = {}
    train = [numbers.setdefault(word, len(numbers)) for word in _iter_words(train_lines)]
    unknown = numbers.setdefault(UNKNOWN, len(numbers))
    test = [numbers.get(word, unknown) for word in _iter_words(test_lines)]
    if len(train) < 2 or len(test) < 2:
        raise DataError(
            f"Expected at least two words for training and for the test in {name}, got "
            f"{len(train)} and {len(test)}; give a longer text."
        )
    return TextDataset(name, torch.tensor(train), torch.tensor(test), tuple(numbers))


def _iter_words(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from line.split()
        yield END
