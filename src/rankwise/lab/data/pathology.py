"""MHIST and ADP: the paper's two sets of tissue images, given out by their makers on request.

MHIST: Wei et al. (2021), "A Petri Dish for Histopathology Image Analysis".
ADP: Hosseini et al. (2019), "Atlas of Digital Pathology".
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rankwise.errors import DataError
from rankwise.lab.data.pictures import FileList, Split, sampled_statistics, splits_of
from rankwise.lab.data.places import first_existing, homes, missing
from rankwise.lab.data.sets import ImageSet
from rankwise.lab.seeds import seed_for

__all__ = ["ADP_CLASSES", "read_adp", "read_mhist"]

MHIST_CLASSES = ("HP", "SSA")  # hyperplastic polyp, sessile serrated adenoma
MHIST_SIZE = 224
ADP_SIZE = 272
ADP_TABLE = "ADP_EncodedLabels_Release1_Flat.csv"
ADP_PICTURES = "img_res_1um_bicubic"
# The leaves of ADP's tree of tissue types at level 3: E epithelial, C connective, H blood,
# S skeletal, A adipose, M muscular, N nervous, G glandular, T transport vessel.
ADP_CLASSES = (
    *("E.M.S", "E.M.C", "E.T.S", "E.T.C", "C.D.I", "C.D.R", "C.L", "H.E", "H.K", "H.Y", "S.M"),
    *("S.C", "S.R", "A.W", "A.M", "M", "N.P", "N.R", "N.G.M", "G.O", "G.N", "T"),
)
Rows = list[dict[str, str]]


def read_mhist(root: Path) -> ImageSet:
    """Read `ROOT/mhist/annotations.csv` and `ROOT/mhist/images/*.png`; the split is the table's.

    Args:
        root: The folder of all data sets.

    Raises:
        DataError: If the set is missing or its table isn't as it was given out.
    """
    page = "https://bmirds.github.io/MHIST"
    table = _place(root, "mhist", ("mhist", "MHIST"), table="annotations.csv", page=page)
    needed = ("Image Name", "Majority Vote Label", "Partition")
    rows = _table(table, needed)
    labels = {row["Majority Vote Label"] for row in rows}
    partitions = {row["Partition"] for row in rows}
    if labels != set(MHIST_CLASSES) or partitions != {"train", "test"}:
        raise DataError(
            f"Expected the labels HP and SSA and the partitions train and test in {table}, but "
            f"found {sorted(labels)} and {sorted(partitions)}; take the table as it was given out."
        )
    targets = torch.tensor([MHIST_CLASSES.index(row["Majority Vote Label"]) for row in rows])
    names = [row["Image Name"] for row in rows]
    tested = torch.tensor([row["Partition"] == "test" for row in rows])
    train, test, shape = _splits(table.parent / "images", names, targets, tested, MHIST_SIZE)
    mean, std = sampled_statistics(train, shape)
    return ImageSet("mhist", train, test, MHIST_CLASSES, shape, mean, std)


def read_adp(root: Path) -> ImageSet:
    """Read `ROOT/adp/ADP_EncodedLabels_Release1_Flat.csv` and its pictures; several labels each.

    The classes are the 22 leaves at level 3 if the table has them all. Otherwise they are all
    columns of 0 and 1 that have no column below them (`E.M` is above `E.M.S`).

    The split is the one in `splits/train.npy` and `splits/test.npy` (numbers of rows), or in
    `train.csv` and `test.csv` (a column "Patch Names"), if there is one. Otherwise a fifth of the
    pictures, chosen by a hash of the name, is for the test.

    Args:
        root: The folder of all data sets.

    Raises:
        DataError: If the set is missing or its table isn't as it was given out.
    """
    names = ("adp", "ADP", "ADP V1.0 Release")
    page = "https://www.dsp.utoronto.ca/projects/ADP"
    table = _place(root, "adp", names, table=ADP_TABLE, page=page)
    rows = _table(table, ("Patch Names",))
    classes = _adp_classes(table, rows)
    try:
        targets = torch.tensor([[float(row[name]) for name in classes] for row in rows])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Expected 0 or 1 in every label column of {table}, but found something "
            f"else ({error}); take the table as it was given out."
        ) from error
    patches = [row["Patch Names"] for row in rows]
    trained, tested = _adp_split(table.parent, patches)
    chosen = (trained | tested).nonzero()[:, 0]
    patches = [patches[row] for row in chosen.tolist()]
    train, test, shape = _splits(
        table.parent / ADP_PICTURES, patches, targets[chosen], tested[chosen], ADP_SIZE
    )
    mean, std = sampled_statistics(train, shape)
    return ImageSet("adp", train, test, classes, shape, mean, std, multilabel=True)


def _place(root: Path, title: str, names: tuple[str, ...], *, table: str, page: str) -> Path:
    """Where a set's table is."""
    folders = homes(root, names)
    found = first_existing(folders, [table])
    if found is None:
        advice = f"ask for it at {page} and unpack it into {folders[0]}"
        raise missing(title, f"{table} with its pictures beside it", folders, advice)
    return found


def _table(path: Path, needed: tuple[str, ...]) -> Rows:
    """A CSV file's rows; the columns that are needed are checked."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"Expected a CSV file in UTF-8, but {path} can't be read ({error}); take it as it was "
            "given out."
        ) from error
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing or not rows:
        raise DataError(
            f"Expected rows with the columns {', '.join(needed)} in {path}, but "
            f"{'the column ' + missing[0] if missing else 'every row'} is missing; take the table "
            "as it was given out."
        )
    return rows


def _adp_classes(table: Path, rows: Rows) -> tuple[str, ...]:
    columns = tuple(rows[0])
    if set(ADP_CLASSES) <= set(columns):
        return ADP_CLASSES
    binary = [name for name in columns if {row[name] for row in rows} <= {"0", "1"}]
    leaves = [name for name in binary if not any(b.startswith(f"{name}.") for b in binary)]
    if not leaves:
        raise DataError(
            f"Expected label columns of 0 and 1 in {table}, but found none; take the table as it "
            "was given out."
        )
    return tuple(leaves)


def _adp_split(folder: Path, names: list[str]) -> tuple[Tensor, Tensor]:
    """Which rows are for training and which for the test, as two masks."""
    splits, tables = folder / "splits", (folder / "train.csv", folder / "test.csv")
    if (splits / "train.npy").is_file() and (splits / "test.npy").is_file():
        return _numbered(splits / "train.npy", names), _numbered(splits / "test.npy", names)
    if all(table.is_file() for table in tables):
        train, test = (
            {row["Patch Names"] for row in _table(table, ("Patch Names",))} for table in tables
        )
        return torch.tensor([n in train for n in names]), torch.tensor([n in test for n in names])
    # A hash, so that a picture stays in its split when others are added or left out.
    tested = torch.tensor([seed_for("adp", name) % 5 == 0 for name in names])
    return ~tested, tested


def _numbered(path: Path, names: list[str]) -> Tensor:
    mask = torch.zeros(len(names), dtype=torch.bool)
    try:
        mask[torch.from_numpy(np.load(path, allow_pickle=False).astype(np.int64))] = True
    except (OSError, ValueError, IndexError) as error:
        raise DataError(
            f"Expected numbers of rows below {len(names)} in {path}, but it can't be used "
            f"({error}); replace it, or remove it to have a fifth for the test."
        ) from error
    return mask


def _splits(
    folder: Path, names: list[str], targets: Tensor, tested: Tensor, size: int
) -> tuple[Split, Split, tuple[int, int, int]]:
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise DataError(
            f"Expected {len(names)} pictures in {folder}, but {len(absent)} are missing, such as "
            f"{absent[0]}; unpack the set again."
        )
    if not tested.any() or tested.all():
        raise DataError(
            f"Expected pictures for training and for the test in {folder}, but one of the two has "
            "none; take the set as it was given out."
        )
    files = [
        FileList(folder, [names[i] for i in mask.nonzero()[:, 0].tolist()])
        for mask in (~tested, tested)
    ]
    return splits_of(files[0], targets[~tested], files[1], targets[tested], size)
