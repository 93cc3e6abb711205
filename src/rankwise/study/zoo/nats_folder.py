"""Networks of NATS-Bench's size search space, from the files that its training script writes.

`arch-NUMBER-seed-SEED.pth`, one for each training of a network, in a folder for each length
(`raw-data-12`, `raw-data-90`), holds a dictionary for each data set: the state dict, and the
accuracies after every epoch. It is read without running code. The archives that can be downloaded
hold the same as compressed pickles, to whose tensors full pickles belong: reading them runs code,
so they are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankwise.checkpoints.pytorch.reader import read_torch_tree
from rankwise.errors import DataError, RankwiseError
from rankwise.lab.size_space import SIZE, name_network
from rankwise.study.zoo.networks import Network, SkippedNetwork, Zoo

_TRIAL = re.compile(r"arch-(\d{6})-seed-(\d+)\.pth")
_PICKLE = "*.pickle.pbz2"
_TEST = "ori-test"  # the data set's own test images, of which x-valid and x-test are halves
_COLUMNS = {
    "checkpoint": "arch-NUMBER-seed-SEED.pth, a state dict for each data set",
    "accuracy": f"after the last epoch, on {_TEST}",
    "train_accuracy": "of the last epoch, during training and with augmentation",
    "group": "the network; its seeds are not independent",
    "family": "data set and epochs",
}


def is_nats_folder(folder: Path) -> bool:
    """Return whether a folder holds files of the benchmark, readable or not."""
    return any(True for _ in _list_trials(folder)) or any(folder.glob(_PICKLE))


def read_nats_folder(folder: Path) -> Zoo:
    """Read the networks of a folder of trials, each as often as there are data sets in its file.

    Raises:
        DataError: If the folder holds the archive of pickles, or no trials.
    """
    trials = list(_list_trials(folder))
    if not trials and any(folder.glob(_PICKLE)):
        raise DataError(
            f"{folder} holds pickles compressed with bzip2, as NATS-Bench's archives do; reading "
            "them runs code that is in them, so they are not opened. Expected files named "
            "arch-000000-seed-0777.pth, as its training script writes them (raw-data-12, "
            "raw-data-90). If you trust the archive, save the weights that its own API returns "
            "with torch.save, and list them with their accuracies in a CSV table."
        )
    if not trials:
        raise DataError(f"{folder} holds no file named as arch-000000-seed-0777.pth.")
    read = [one for path in trials for one in _read_trial(path)]
    networks = tuple(one for one in read if isinstance(one, Network))
    skipped = tuple(one for one in read if isinstance(one, SkippedNetwork))
    return Zoo(str(folder), networks, skipped, _COLUMNS)


def _list_trials(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("arch-*.pth")) if _TRIAL.fullmatch(path.name))


def _read_trial(path: Path) -> Iterator[Network | SkippedNetwork]:
    try:
        tree = read_torch_tree(path)
    except (RankwiseError, OSError) as error:
        yield SkippedNetwork(path.name, str(error))
        return
    names = tree.get("all_dataset_keys") if isinstance(tree, Mapping) else None
    if not isinstance(tree, Mapping) or not isinstance(names, list):
        yield SkippedNetwork(path.name, "lists no data sets under all_dataset_keys")
        return
    for name in names:
        if isinstance(name, str):
            yield _read_training(path, name, tree.get(name))


def _read_training(path: Path, data: str, results: object) -> Network | SkippedNetwork:
    name = f"{path.name}:{data}"
    if not isinstance(results, Mapping) or "net_state_dict" not in results:
        return SkippedNetwork(name, "has no weights")
    epochs = results.get("total_epoch")
    if type(epochs) is not int or not results.get("finish-train"):
        return SkippedNetwork(name, "was not trained to its end")
    accuracy = _get_percent(results.get("valid_acc1es"), f"{_TEST}@{epochs - 1}")
    if accuracy is None:
        return SkippedNetwork(name, "has no test accuracy")
    trained = _get_percent(results.get("train_acc1es"), epochs - 1)
    family = f"nats {data} epochs={epochs}"
    return Network(
        name, path, accuracy, trained, family, _name_group(path), f"{data}.net_state_dict"
    )


def _get_percent(values: object, key: object) -> float | None:
    value = values.get(key) if isinstance(values, Mapping) else None
    if not isinstance(value, int | float) or not 0 <= value <= 100:  # which NaN is not
        return None
    return float(value)


def _name_group(path: Path) -> str:
    found = _TRIAL.fullmatch(path.name)
    number = int(found[1]) if found is not None else SIZE
    return name_network(number) if number < SIZE else path.name.partition("-seed")[0]
