"""Folders in the layout of NATS-Bench's training script, written here as it writes them."""

import bz2
import os
import pickle
import re
from collections import OrderedDict

import numpy as np
import pytest
import torch

from rankwise.cli.study.ranking import _read_zoo
from rankwise.errors import DataError
from rankwise.lab.networks import NetworkSpec, build_network
from rankwise.lab.size_space import name_network
from rankwise.study.zoo.nats_folder import is_nats_folder, read_nats_folder
from rankwise.study.zoo.networks import Columns
from rankwise.study.zoo.scores import measure_networks

DATA = ("cifar10-valid", "cifar10", "cifar100", "ImageNet16-120")


def training(number, data, epochs=12, accuracy=70.0):
    """What the script keeps of a network on a data set."""
    torch.manual_seed(number)
    network = build_network(name_network(number), NetworkSpec(classes=10))
    count = sum(np.prod(p.size()) for p in network.parameters()) / 1e6
    assert isinstance(count, np.float64)  # as there, which a restricted loader knows nothing of
    sets = ("ori-test", "x-valid") if data != "cifar10" else ("ori-test",)
    evaluated = {f"{name}@{epoch}": accuracy - 11 + epoch for name in sets for epoch in range(12)}
    return {
        "flop": np.float32(3.2),
        "param": count,
        "arch_config": OrderedDict(name="infer.shape.tiny", channels="8:8:8:8:8", num_classes=10),
        "opt_config": OrderedDict(LR=0.1, epochs=epochs, nesterov=True, xshape=(1, 3, 32, 32)),
        "total_epoch": epochs,
        "train_losses": dict.fromkeys(range(epochs), 0.5),
        "train_acc1es": {epoch: 80.0 + epoch for epoch in range(epochs)},
        "valid_acc1es": evaluated,
        "learning_rates": dict.fromkeys(range(epochs), 0.1),
        "net_state_dict": network.state_dict(),
        "net_string": "DynamicShapeTinyNet(…)",
        "finish-train": True,
    }


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def write(request, tmp_path):
    def write(number, seed=777, data=DATA, **changes):
        path = tmp_path / "raw-data-12" / f"arch-{number:06d}-seed-{seed:04d}.pth"
        path.parent.mkdir(exist_ok=True)
        content = {"info": "Python  Version  : 3.7", "all_dataset_keys": list(data)}
        content |= {name: training(number, name) | changes for name in data}
        torch.save(content, path, _use_new_zipfile_serialization=request.param)
        return path

    return write


def test_a_file_is_a_network_for_each_data_set(write):
    path = write(284)
    assert is_nats_folder(path.parent)
    zoo = read_nats_folder(path.parent)
    assert zoo.skipped == ()
    assert [one.name for one in zoo.networks] == [f"{path.name}:{data}" for data in DATA]
    assert [one.family for one in zoo.networks] == [f"nats {data} epochs=12" for data in DATA]
    network = zoo.networks[1]
    assert (network.accuracy, network.train_accuracy) == (70.0, 91.0)
    assert (network.group, network.key) == ("nats:8:8:40:32:40", "cifar10.net_state_dict")


def test_seeds_of_a_network_are_one_group(write):
    write(0, 777, data=("cifar10",))
    write(0, 888, data=("cifar10",))
    folder = write(1, 777, data=("cifar10",)).parent
    groups = [one.group for one in read_nats_folder(folder).networks]
    assert groups == ["nats:8:8:8:8:8"] * 2 + ["nats:8:8:8:8:16"]


def test_each_is_measured_by_its_own_weights(write):
    path = write(5, data=("cifar10", "cifar100"))
    content = torch.load(path, weights_only=False)
    weights = content["cifar100"]["net_state_dict"]
    weights["stem.conv.weight"] = 2 * weights["stem.conv.weight"]
    torch.save(content, path)
    found, skipped = measure_networks(read_nats_folder(path.parent).networks)
    assert skipped == []
    first, second = (one.scores for one in found)
    assert first["log_parameters"] == second["log_parameters"]
    assert first["log_frobenius"] < second["log_frobenius"]
    assert len(found[0].shapes) == 24


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"finish-train": False}, "was not trained to its end"),
        ({"total_epoch": "12"}, "was not trained to its end"),
        ({"valid_acc1es": {}}, "has no test accuracy"),
        ({"valid_acc1es": {"ori-test@11": float("nan")}}, "has no test accuracy"),
        ({"valid_acc1es": {"ori-test@11": 7000.0}}, "has no test accuracy"),
        ({"valid_acc1es": None}, "has no test accuracy"),
    ],
    ids=["unfinished", "epochs", "none", "nan", "range", "type"],
)
def test_what_does_not_count_is_named_with_the_reason(write, changes, reason):
    path = write(3, data=("cifar10",), **changes)
    zoo = read_nats_folder(path.parent)
    assert (zoo.networks, zoo.skipped) == ((), ((f"{path.name}:cifar10", reason),))


def test_files_that_hold_something_else_are_named(write):
    folder = write(0, data=("cifar10",)).parent
    torch.save({"all_dataset_keys": ["cifar10"]}, folder / "arch-000001-seed-0777.pth")
    torch.save([1, 2], folder / "arch-000002-seed-0777.pth")
    (folder / "arch-000003-seed-0777.pth").write_bytes(b"no checkpoint at all")
    torch.save({"cifar10": {}}, folder / "other.pth")
    zoo = read_nats_folder(folder)
    assert len(zoo.networks) == 1
    reasons = {one.name: one.reason for one in zoo.skipped}
    assert reasons["arch-000001-seed-0777.pth:cifar10"] == "has no weights"
    assert reasons["arch-000002-seed-0777.pth"] == "lists no data sets under all_dataset_keys"
    assert "arch-000003-seed-0777.pth" in reasons
    assert len(reasons) == 3


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_nothing_in_a_file_is_run(write, tmp_path):
    path = write(0, data=("cifar10",), machine=Payload(tmp_path / "ran"))
    (skipped,) = read_nats_folder(path.parent).skipped
    assert "which could run code; nothing was run" in skipped.reason
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["NATS-sss-v1_0-50262-simple", "NATS-sss-v1_0-50262-full"])
def test_archives_of_pickles_are_refused_unopened(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    for file in ("meta", "000000"):
        with bz2.open(folder / f"{file}.pickle.pbz2", "wb") as opened:
            pickle.dump(Payload(tmp_path / "ran"), opened)
    assert is_nats_folder(folder)
    with pytest.raises(DataError, match=re.escape("arch-000000-seed-0777.pth")) as refused:
        _read_zoo(folder, tmp_path, Columns())
    assert "they are not opened" in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_other_folders_are_none_of_the_benchmark(tmp_path):
    assert not is_nats_folder(tmp_path)
    with pytest.raises(DataError, match="holds no file named"):
        read_nats_folder(tmp_path)


def test_the_command_takes_such_a_folder(write, tmp_path):
    folder = write(0, data=("cifar10",)).parent
    assert len(_read_zoo(folder, tmp_path, Columns()).networks) == 1
