"""The lab's runs as networks to rank."""

import pytest

from rankwise.errors import DataError
from rankwise.study.zoo.networks import LeftOut
from rankwise.study.zoo.runs import read_runs
from tests.lab.runs import epoch, written


def trained(out, value=0.5, train=None, **options):
    record = epoch(1, value=value)
    if train is not None:
        record.train["accuracy"] = train
    folder = written(out, [record], **options)
    (folder.path / "weights.safetensors").write_bytes(b"")
    return folder


def test_a_run_is_its_weights_and_its_last_accuracies(tmp_path):
    folder = trained(tmp_path, 0.5, 0.75, optimizer="sgd", seed=3)
    (network,) = read_runs(tmp_path).networks
    assert (network.name, network.accuracy, network.gap) == (folder.path.name, 0.5, 0.25)
    assert network.path == folder.path / "weights.safetensors"
    assert network.family == "resnet20 digits"


def test_trials_of_a_setting_are_a_group_and_settings_are_not(tmp_path):
    for options in ({"seed": 0}, {"seed": 1}, {"seed": 0, "lr": 0.5}):
        trained(tmp_path, optimizer="sgd", **options)
    groups = [network.group for network in read_runs(tmp_path).networks]
    assert len(groups) == 3
    assert len(set(groups)) == 2


def test_a_family_is_a_network_on_some_data_whatever_it_was_trained_with(tmp_path):
    trained(tmp_path, optimizer="sgd")
    trained(tmp_path, optimizer="adam", batch_size=32)
    trained(tmp_path, optimizer="adam", width=0.5)
    families = {network.family for network in read_runs(tmp_path).networks}
    assert families == {"resnet20 digits", "resnet20 digits width=0.5"}


def test_runs_that_do_not_count_are_named(tmp_path):
    trained(tmp_path, optimizer="sgd")
    gone = written(tmp_path, [epoch(1)], optimizer="sgd", seed=1)
    diverged = trained(tmp_path, optimizer="sgd", seed=2, status="diverged")
    going = trained(tmp_path, optimizer="sgd", seed=3, status=None)
    words = written(tmp_path, [epoch(1, score="perplexity")], optimizer="sgd", seed=4)
    broken = trained(tmp_path, optimizer="sgd", seed=5)
    (broken.path / "config.json").write_text("{")
    found = read_runs(tmp_path)
    assert len(found.networks) == 1
    assert found.left_out[:4] == (
        LeftOut(gone.path.name, "has no weights.safetensors"),
        LeftOut(diverged.path.name, "the run is diverged"),
        LeftOut(going.path.name, "the run is unfinished"),
        LeftOut(words.path.name, "has no test accuracy"),
    )
    assert found.left_out[4].name == broken.path.name
    assert "its records can't be read" in found.left_out[4].reason


def test_what_reading_warns_of_is_kept(tmp_path):
    folder = trained(tmp_path, optimizer="sgd")
    with (folder.path / "epochs.jsonl").open("a") as file:
        file.write("broken\n")
    (note,) = read_runs(tmp_path).notes
    assert "a broken record is left out" in note


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no runs"):
        read_runs(tmp_path)
