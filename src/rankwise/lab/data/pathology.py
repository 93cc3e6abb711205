"""MHIST and ADP: the paper's two datasets of tissue images, available from their authors.

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
from rankwise.lab.data.dataset import ImageDataset
from rankwise.lab.data.decoding import FileList, LabelledImages, load_image_files
from rankwise.lab.data.files import list_folders, require_file
from rankwise.lab.reproducibility import derive_seed

MHIST_CLASSES = ("HP", "SSA")  # hyperplastic polyp, sessile serrated adenoma
MHIST_SIZE = 224
ADP_SIZE = 272
ADP_TABLE = "ADP_EncodedLabels_Release1_Flat.csv"
ADP_IMAGES = "img_res_1um_bicubic"
# The leaves of ADP's tree of tissue types at level 3: E epithelial, C connective, H blood,
# S skeletal, A adipose, M muscular, N nervous, G glandular, T transport vessel.
ADP_CLASSES = (
    *("E.M.S", "E.M.C", "E.T.S", "E.T.C", "C.D.I", "C.D.R", "C.L", "H.E", "H.K", "H.Y", "S.M"),
    *("S.C", "S.R", "A.W", "A.M", "M", "N.P", "N.R", "N.G.M", "G.O", "G.N", "T"),
)
Rows = list[dict[str, str]]


def load_mhist(root: Path) -> ImageDataset:
    """Load `ROOT/mhist/annotations.csv` and `ROOT/mhist/images/*.png`, with the table's split."""
    page = "https://bmirds.github.io/MHIST"
    table = _find_table(root, "mhist", ("mhist", "MHIST"), table="annotations.csv", page=page)
    rows = _read_table(table, ("Image Name", "Majority Vote Label", "Partition"))
    labels = {row["Majority Vote Label"] for row in rows}
    partitions = {row["Partition"] for row in rows}
    if labels != set(MHIST_CLASSES) or partitions != {"train", "test"}:
        raise DataError(
            f"Expected the labels HP and SSA and the partitions train and test in {table}, got "
            f"{sorted(labels)} and {sorted(partitions)}; use the original table."
        )
    targets = torch.tensor([MHIST_CLASSES.index(row["Majority Vote Label"]) for row in rows])
    is_test = torch.tensor([row["Partition"] == "test" for row in rows])
    files = table.parent / "images", [row["Image Name"] for row in rows]
    train, test = _split_files(*files, targets, ~is_test, is_test)
    return load_image_files("mhist", train, test, MHIST_CLASSES, size=MHIST_SIZE)


def load_adp(root: Path) -> ImageDataset:
    """Load `ROOT/adp/ADP_EncodedLabels_Release1_Flat.csv` and its images; several labels each.

    The classes are the 22 leaves at level 3 if the table has them all. Otherwise they are all
    columns of 0 and 1 that have no column below them (`E.M` is above `E.M.S`).

    The split is read from `splits/train.npy` and `splits/test.npy` (row numbers), or from
    `train.csv` and `test.csv` (a column "Patch Names"), if they exist. Otherwise a fifth of the
    images, selected by a hash of the name, is for testing.
    """
    names = ("adp", "ADP", "ADP V1.0 Release")
    page = "https://www.dsp.utoronto.ca/projects/ADP"
    table = _find_table(root, "adp", names, table=ADP_TABLE, page=page)
    rows = _read_table(table, ("Patch Names",))
    classes = _find_adp_classes(table, rows)
    try:
        targets = torch.tensor([[float(row[name]) for name in classes] for row in rows])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Expected 0 or 1 in every label column of {table}, but there is something else "
            f"({error}); use the original table."
        ) from error
    patches = [row["Patch Names"] for row in rows]
    is_train, is_test = _read_adp_split(table.parent, patches)
    train, test = _split_files(table.parent / ADP_IMAGES, patches, targets, is_train, is_test)
    return load_image_files("adp", train, test, classes, size=ADP_SIZE, multilabel=True)


def _find_table(root: Path, name: str, names: tuple[str, ...], *, table: str, page: str) -> Path:
    folders = list_folders(root, names)
    return require_file(
        name,
        folders,
        [table],
        files=f"{table} and its images",
        advice=f"request it at {page} and unpack it into {folders[0]}",
    )


def _read_table(path: Path, columns: tuple[str, ...]) -> Rows:
    """Read the rows of a CSV file and check that it has the columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"Expected a CSV file in UTF-8, but {path} can't be read ({error}); use the original "
            "table."
        ) from error
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing or not rows:
        raise DataError(
            f"Expected rows with the columns {', '.join(columns)} in {path}, but "
            f"{'the column ' + missing[0] if missing else 'every row'} is missing; use the "
            "original table."
        )
    return rows


def _find_adp_classes(table: Path, rows: Rows) -> tuple[str, ...]:
    columns = tuple(rows[0])
    if set(ADP_CLASSES) <= set(columns):
        return ADP_CLASSES
    binary = [name for name in columns if {row[name] for row in rows} <= {"0", "1"}]
    leaves = [name for name in binary if not any(b.startswith(f"{name}.") for b in binary)]
    if not leaves:
        raise DataError(
            f"Expected label columns of 0 and 1 in {table}, but there are none; use the original "
            "table."
        )
    return tuple(leaves)


def _read_adp_split(folder: Path, names: list[str]) -> tuple[Tensor, Tensor]:
    """Return which rows are for training and which for testing, as two masks."""
    splits, tables = folder / "splits", (folder / "train.csv", folder / "test.csv")
    if (splits / "train.npy").is_file() and (splits / "test.npy").is_file():
        return _read_mask(splits / "train.npy", names), _read_mask(splits / "test.npy", names)
    if all(table.is_file() for table in tables):
        train, test = (
            {row["Patch Names"] for row in _read_table(table, ("Patch Names",))} for table in tables
        )
        return torch.tensor([n in train for n in names]), torch.tensor([n in test for n in names])
    # With a hash, an image stays in its split when others are added or removed.
    is_test = torch.tensor([derive_seed("adp", name) % 5 == 0 for name in names])
    return ~is_test, is_test


def _read_mask(path: Path, names: list[str]) -> Tensor:
    mask = torch.zeros(len(names), dtype=torch.bool)
    try:
        mask[torch.from_numpy(np.load(path, allow_pickle=False).astype(np.int64))] = True
    except (OSError, ValueError, IndexError) as error:
        raise DataError(
            f"Expected row numbers below {len(names)} in {path}, but it can't be used ({error}); "
            "replace it, or remove it to use a fifth for testing."
        ) from error
    return mask


def _split_files(
    folder: Path, names: list[str], targets: Tensor, is_train: Tensor, is_test: Tensor
) -> tuple[LabelledImages, LabelledImages]:
    """Return the images of the two splits; a row in both is for testing."""
    is_train &= ~is_test
    used = [names[row] for row in (is_train | is_test).nonzero()[:, 0].tolist()]
    missing = [name for name in used if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"Expected {len(used)} images in {folder}, but {len(missing)} are missing, such as "
            f"{missing[0]}; unpack the dataset again."
        )
    if not is_test.any() or not is_train.any():
        raise DataError(
            f"Expected training and test images in {folder}, but one of the two splits is empty; "
            "use the original table."
        )
    train, test = (
        LabelledImages(
            FileList(folder, [names[row] for row in mask.nonzero()[:, 0].tolist()]), targets[mask]
        )
        for mask in (is_train, is_test)
    )
    return train, test
