"""A table of checkpoints: usual columns, named columns, and a reason for each row left out."""

import pytest

from rankwise.errors import ConfigError, DataError
from rankwise.study.zoo.networks import Columns, SkippedNetwork, read_run_networks, read_table
from tests.lab.runs import epoch, written


@pytest.fixture
def table(tmp_path):
    """Writes a table beside two files that stand for checkpoints."""
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(b"")

    def write(*lines):
        path = tmp_path / "index.csv"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write


def test_usual_names_are_found_and_told(table):
    zoo = read_table(
        table("family,file,accuracy,train_accuracy,group", "f,a.pt,0.5,0.75,g", "f,b.pt,0.6,,h")
    )
    first, second = zoo.networks
    assert (first.name, first.accuracy, first.gap, first.family) == ("a.pt", 0.5, 0.25, "f")
    assert (first.group, second.group, second.gap) == ("g", "h", None)
    assert first.path.is_file()
    assert zoo.columns == {
        "checkpoint": "file",
        "accuracy": "accuracy",
        "train_accuracy": "train_accuracy",
        "group": "group",
        "family": "family",
    }


def test_of_several_accuracies_a_row_has_the_first_that_is_there(table):
    zoo = read_table(
        table("path,acc_published,acc_recorded,acc_measured", "a.pt,90,91,92", "b.pt,80,81,")
    )
    assert [network.accuracy for network in zoo.networks] == [92, 81]
    assert zoo.columns["accuracy"] == "acc_measured, else acc_recorded, else acc_published"


def test_columns_can_be_named(table):
    path = table("x,y,z,w,source,v", "a.pt,50%,60%,f,a/b:c,g")
    zoo = read_table(path, Columns("x", "y", "z", "v", "w"))
    (network,) = zoo.networks
    assert (network.accuracy, network.family, network.group) == (0.5, "f", "g")
    assert network.gap == pytest.approx(0.1)


def test_without_families_and_groups_each_stands_for_itself_in_one(table):
    zoo = read_table(table("file,accuracy", "a.pt,0.5", "b.pt,0.6"))
    assert {network.family for network in zoo.networks} == {"all"}
    assert [network.group for network in zoo.networks] == ["a.pt", "b.pt"]


def test_what_cannot_be_used_is_named_with_its_reason(table):
    zoo = read_table(
        table(
            "file,accuracy,train_accuracy",
            "a.pt,0.5,",
            "missing.pt,0.5,",
            ",0.5,",
            "b.pt,,",
            "b.pt,nan,",
            "b.pt,many,",
            "b.pt,101,",
            "b.pt,0.5,-1",
            "b.pt",
        )
    )
    assert len(zoo.networks) == 1
    assert zoo.skipped == (
        SkippedNetwork("missing.pt", "there is no such file"),
        SkippedNetwork("line 4", "names no checkpoint"),
        SkippedNetwork("b.pt", "has no accuracy"),
        SkippedNetwork("b.pt", "has an invalid accuracy: 'nan'"),
        SkippedNetwork("b.pt", "has an invalid accuracy: 'many'"),
        SkippedNetwork("b.pt", "has an invalid accuracy: '101'"),
        SkippedNetwork("b.pt", "has an invalid train accuracy: '-1'"),
        SkippedNetwork("b.pt", "has no accuracy"),
    )


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        (("a.pt,0.5,", "b.pt,60,"), "1 of 2 accuracies above 1"),
        (
            ("a.pt,0.5,90", "b.pt,0.6,"),
            "0 of 2 accuracies above 1, 1 of 1 train accuracies above 1",
        ),
    ],
    ids=["among tests", "train and test"],
)
def test_shares_and_percents_in_one_family_are_refused(table, rows, counts):
    with pytest.raises(ConfigError, match=f"'all' mixes shares and percents .{counts}"):
        read_table(table("file,accuracy,train_accuracy", *rows))


def test_an_accuracy_of_zero_is_of_either_scale(table):
    zoo = read_table(table("file,accuracy", "a.pt,0", "b.pt,60"))
    assert len(zoo.networks) == 2


def test_families_may_have_scales_of_their_own(table):
    zoo = read_table(table("file,accuracy,family", "a.pt,0.5,f", "b.pt,60,g"))
    assert len(zoo.networks) == 2


@pytest.mark.parametrize(
    ("lines", "asked", "message"),
    [
        (("name,accuracy", "a,1"), None, "no column for the checkpoint .checkpoint, file, path"),
        (("file,score", "a.pt,1"), None, "Name the column to use with --accuracy"),
        (("file,accuracy", "a.pt,1"), Columns(group="by"), "no column 'by'; it has file, accuracy"),
    ],
    ids=["checkpoint", "accuracy", "named"],
)
def test_a_column_that_is_missing_is_named(table, lines, asked, message):
    with pytest.raises(ConfigError, match=message):
        read_table(table(*lines), asked)


def test_a_table_without_rows_is_refused(table):
    with pytest.raises(DataError, match="has no rows"):
        read_table(table("file,accuracy"))


def test_what_is_not_text_is_refused(tmp_path):
    path = tmp_path / "index.csv"
    path.write_bytes(b"file,accuracy\n\xff\xfe,1\n")
    with pytest.raises(DataError, match="can't be read as CSV in UTF-8"):
        read_table(path)


def test_rows_of_many_cells_and_a_mark_at_the_start_do_no_harm(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"")
    path = tmp_path / "index.csv"
    path.write_bytes(b"\xef\xbb\xbffile,accuracy\na.pt,0.5,more,and more\n")
    assert read_table(path).networks[0].accuracy == 0.5


@pytest.mark.parametrize(
    ("sources", "level", "groups"),
    [
        (
            [f"owner/{n}@abc:save/{file}.pt" for n in range(5) for file in ("best", "last")],
            "repository",
            ["owner/0", "owner/0", "owner/1"],
        ),
        (
            [f"owner/one:nets/{n}/{file}.pt" for n in range(5) for file in ("S", "L")],
            "folder",
            ["owner/one:nets/0", "owner/one:nets/0", "owner/one:nets/1"],
        ),
        (
            [f"owner/one:{n}.pt" for n in range(5)],
            "file",
            ["owner/one:0.pt", "owner/one:1.pt", "owner/one:2.pt"],
        ),
        (
            [f"https://host/{n}/a.pt" for n in range(5)],
            "repository",
            ["https://host/0/a.pt", "https://host/1/a.pt", "https://host/2/a.pt"],
        ),
    ],
    ids=["repositories", "folders", "files", "addresses"],
)
def test_groups_are_the_coarsest_level_with_five(table, sources, level, groups):
    zoo = read_table(table("file,accuracy,source", *(f"a.pt,0.5,{source}" for source in sources)))
    assert zoo.grouping == {"all": level}
    assert [network.group for network in zoo.networks][:3] == groups


def test_networks_of_a_repository_are_a_group(table):
    rows = [f"{name}.pt,0.5,owner/{number}:{name}.pt" for number in range(5) for name in "ab"]
    found = read_table(table("file,accuracy,source", *rows))
    assert [network.group for network in found.networks][:3] == ["owner/0", "owner/0", "owner/1"]
    assert found.grouping == {"all": "repository"}


def test_a_source_that_is_named_is_taken_as_it_is(table):
    lines = "file,accuracy,source", "a.pt,0.5,o/r:a", "b.pt,0.6,o/r:b"
    assert read_table(table(*lines), Columns(group="source")).grouping == {}
    assert read_table(table(*lines)).grouping == {"all": "file"}


def test_the_real_zoo_is_read_whole(zoo):
    found = read_table(zoo / "index.csv")
    assert (len(found.networks), found.skipped) == (98, ())
    assert found.grouping == {
        "arm_ml_kws": "folder",
        "cifar_basecnn_optim": "file",
        "cifar_lenet": "repository",
        "cifar_resnet": "repository",
    }


def test_a_sign_of_percent_makes_a_percentage(table):
    zoo = read_table(table("file,accuracy", "a.pt,0.5%", "b.pt,1.5%"))
    assert [network.accuracy for network in zoo.networks] == pytest.approx([0.005, 0.015])


def test_a_column_that_is_used_and_there_twice_is_refused(table):
    with pytest.raises(ConfigError, match="more than one column 'accuracy'"):
        read_table(table("file,accuracy,accuracy", "a.pt,1,2"))
    assert read_table(table("file,accuracy,note,note", "a.pt,1,2,3")).networks


def test_blank_lines_are_passed_over_and_lines_counted_as_in_the_file(table):
    zoo = read_table(table("", "file,accuracy", "", "a.pt,0.5", "", ",0.5"))
    assert len(zoo.networks) == 1
    assert zoo.skipped == (SkippedNetwork("line 6", "names no checkpoint"),)


def test_a_name_that_no_file_can_have_is_left_out(table):
    long = "x" * 5000
    zoo = read_table(table("file,accuracy", f"{long},0.5", "a.pt,0.5"))
    assert zoo.skipped == (SkippedNetwork(long, "there is no such file"),)


def trained(out, value=0.5, train=None, **options):
    record = epoch(1, value=value)
    if train is not None:
        record.train["accuracy"] = train
    folder = written(out, [record], **options)
    (folder.path / "weights.safetensors").write_bytes(b"")
    return folder


def test_a_run_is_its_weights_and_its_last_accuracies(tmp_path):
    folder = trained(tmp_path, 0.5, 0.75, optimizer="sgd", seed=3)
    (network,) = read_run_networks(tmp_path).networks
    assert (network.name, network.accuracy, network.gap) == (folder.path.name, 0.5, 0.25)
    assert network.path == folder.path / "weights.safetensors"
    assert network.family == "resnet20 digits"


def test_trials_of_a_setting_are_a_group_and_settings_are_not(tmp_path):
    for options in ({"seed": 0}, {"seed": 1}, {"seed": 0, "lr": 0.5}):
        trained(tmp_path, optimizer="sgd", **options)
    groups = [network.group for network in read_run_networks(tmp_path).networks]
    assert len(groups) == 3
    assert len(set(groups)) == 2


def test_a_family_is_a_network_on_some_data_whatever_it_was_trained_with(tmp_path):
    trained(tmp_path, optimizer="sgd")
    trained(tmp_path, optimizer="adam", batch_size=32)
    trained(tmp_path, optimizer="adam", width=0.5)
    families = {network.family for network in read_run_networks(tmp_path).networks}
    assert families == {"resnet20 digits", "resnet20 digits width=0.5"}


def test_networks_of_the_search_space_are_ranked_among_those_trained_as_long(tmp_path):
    for network in ("nats:8:8:8:8:8", "nats:8:8:8:8:16"):
        for epochs in (2, 15):
            trained(tmp_path, optimizer="sgd", network=network, epochs=epochs, image_size=12)
    networks = read_run_networks(tmp_path).networks
    families = sorted(network.family for network in networks)
    assert families == [f"nats digits image_size=12 epochs={n}" for n in (15, 15, 2, 2)]
    assert len({network.group for network in networks}) == 4


def test_runs_that_do_not_count_are_named(tmp_path):
    trained(tmp_path, optimizer="sgd")
    gone = written(tmp_path, [epoch(1)], optimizer="sgd", seed=1)
    diverged = trained(tmp_path, optimizer="sgd", seed=2, status="diverged")
    going = trained(tmp_path, optimizer="sgd", seed=3, status=None)
    words = written(tmp_path, [epoch(1, score="perplexity")], optimizer="sgd", seed=4)
    broken = trained(tmp_path, optimizer="sgd", seed=5)
    (broken.path / "config.json").write_text("{")
    found = read_run_networks(tmp_path)
    assert len(found.networks) == 1
    assert found.skipped[:4] == (
        SkippedNetwork(gone.path.name, "has no weights.safetensors"),
        SkippedNetwork(diverged.path.name, "the run is diverged"),
        SkippedNetwork(going.path.name, "the run is unfinished"),
        SkippedNetwork(words.path.name, "has no test accuracy"),
    )
    assert found.skipped[4].name == broken.path.name
    assert "its records can't be read" in found.skipped[4].reason


def test_what_reading_warns_of_is_kept(tmp_path):
    folder = trained(tmp_path, optimizer="sgd")
    with (folder.path / "epochs.jsonl").open("a") as file:
        file.write("broken\n")
    (note,) = read_run_networks(tmp_path).notes
    assert "a broken record is left out" in note


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no runs"):
        read_run_networks(tmp_path)
