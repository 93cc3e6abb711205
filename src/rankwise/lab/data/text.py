"""Running text as numbers of words, and its batches: parallel columns, cut into windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from rankwise.errors import ConfigError, DataError
from rankwise.lab.data.places import homes
from rankwise.lab.data.sets import Batch, TextSet

__all__ = ["END", "UNKNOWN", "batches_of_text", "read_ptb", "read_text", "text_batches"]

END = "<eos>"  # stands at the end of each line
UNKNOWN = "<unk>"
PTB_WORDS = 10_000
PTB_FOLDERS = ("ptb", "simple-examples/data")
TEST_SHARE = 10  # the last tenth of a single file's lines is the test


def read_ptb(root: Path) -> TextSet:
    """Read the Penn TreeBank in Mikolov's form, `ptb.train.txt` and `ptb.test.txt`.

    They are looked for in `ROOT/ptb/` and in `ROOT/simple-examples/data/`, as the original archive
    unpacks. The validation file is not used: nothing is chosen by it here.

    Args:
        root: The folder of all data sets.

    Raises:
        DataError: If the files are missing or don't have the well-known 10,000 words.
    """
    for folder in homes(root, PTB_FOLDERS):
        if (folder / "ptb.train.txt").is_file() and (folder / "ptb.test.txt").is_file():
            break
    else:
        raise DataError(
            f"Expected the Penn TreeBank as {root / 'ptb'}/ptb.train.txt and ptb.test.txt, but "
            "they are not there; unpack simple-examples.tgz (Mikolov's language-model files) in "
            f"{root}, or put the two files there."
        )
    train, test = (_lines(folder / f"ptb.{part}.txt") for part in ("train", "test"))
    found = _text_set("ptb", train, test)
    if len(found.words) != PTB_WORDS:
        raise DataError(
            f"Expected {PTB_WORDS:,} different words in {folder / 'ptb.train.txt'}, but found "
            f"{len(found.words):,}; put Mikolov's whole file there, or use text:PATH for your own."
        )
    return found


def read_text(path: Path) -> TextSet:
    """Read `text:PATH`: a UTF-8 file, or a folder with `train.txt` and `test.txt` or `valid.txt`.

    Words are what stands between blanks; "<eos>" is added at the end of each line. The vocabulary
    is that of the training text, in the order of the words' first occurrence, and "<unk>". Of a
    single file the last tenth of the lines is the test.

    Args:
        path: The file or the folder.

    Raises:
        DataError: If there is no such text, it isn't UTF-8, or it is too short.
    """
    if path.is_dir():
        test = next((t for t in (path / "test.txt", path / "valid.txt") if t.is_file()), None)
        if test is None or not (path / "train.txt").is_file():
            raise DataError(
                f"Expected train.txt and test.txt (or valid.txt) in {path}, but not both are "
                "there; add them, or give a single text file."
            )
        return _text_set(f"text:{path}", _lines(path / "train.txt"), _lines(test))
    lines = _lines(path)
    if len(lines) < TEST_SHARE:
        raise DataError(
            f"Expected at least {TEST_SHARE} lines in {path}, the last tenth being the test, but "
            f"found {len(lines)}; give a folder with train.txt and test.txt instead."
        )
    kept = len(lines) - len(lines) // TEST_SHARE
    return _text_set(f"text:{path}", lines[:kept], lines[kept:])


def batches_of_text(count: int, columns: int, length: int) -> int:
    """How many batches a text of `count` words gives.

    Example:
        >>> batches_of_text(20, columns=2, length=4)  # 10 rows, 9 of which have a next one
        3
    """
    rows = count // columns
    if rows < 2:
        raise ConfigError(
            f"Expected a text of at least two words for each of the {columns} columns, but it has "
            f"{count} words; take a smaller batch or a longer text."
        )
    return -(-(rows - 1) // length)


def text_batches(
    words: Tensor,
    *,
    columns: int,
    length: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str = "cpu",
) -> Iterator[Batch]:
    """Go through a text in its own order, all columns at once.

    Args:
        words: The text as numbers, (N,). It is cut into `columns` pieces that are read side by
            side; what is left at the end is dropped.
        columns: How many pieces: the global batch size.
        length: Words of a piece per batch; the last batch may be shorter.
        start: How many batches to leave out at the beginning.
        rank: Which process this is.
        world: How many processes share the columns.
        device: Where the batches are needed.

    Yields:
        Inputs (T, B) and the words that follow them, (T, B), where B is `columns / world`.

    Raises:
        ConfigError: If the columns can't be shared equally, or the text is too short.

    Example:
        >>> batches = text_batches(torch.arange(10), columns=2, length=2)
        >>> [batch.inputs.tolist() for batch in batches]
        [[[0, 5], [1, 6]], [[2, 7], [3, 8]]]
    """
    if columns % world:
        raise ConfigError(
            f"Expected a batch size that {world} processes can share equally, but it is {columns}; "
            f"choose a multiple of {world}."
        )
    count = batches_of_text(len(words), columns, length)
    rows, share = len(words) // columns, columns // world
    laid = words[: rows * columns].view(columns, rows)[rank * share : (rank + 1) * share]
    laid = laid.t().contiguous().to(device)  # (rows, B)
    for first in range(start * length, count * length, length):
        last = min(first + length, rows - 1)
        yield Batch(laid[first:last], laid[first + 1 : last + 1])


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"Expected a text file, but {path} can't be read ({error.strerror}); give an existing "
            "file, as in text:PATH."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"Expected a text in UTF-8, but {path} is not ({error.reason} at byte "
            f"{error.start:,}); convert it to UTF-8."
        ) from error
    return text.removesuffix("\n").split("\n") if text else []


def _text_set(name: str, train: list[str], test: list[str]) -> TextSet:
    numbers: dict[str, int] = {}
    learned = [numbers.setdefault(word, len(numbers)) for word in _words(train)]
    unknown = numbers.setdefault(UNKNOWN, len(numbers))
    tested = [numbers.get(word, unknown) for word in _words(test)]
    if len(learned) < 2 or len(tested) < 2:
        raise DataError(
            f"Expected words for training and for the test in {name}, but found {len(learned)} and "
            f"{len(tested)}; give a longer text."
        )
    return TextSet(name, torch.tensor(learned), torch.tensor(tested), tuple(numbers))


def _words(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from line.split()
        yield END
