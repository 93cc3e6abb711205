"""A study's file means just these runs, or is refused with a sentence that names the place."""

import subprocess
import sys

import pytest

from rankwise.lab import Config, ConfigError
from rankwise.lab.defaults import resolve
from rankwise.study.grid import read_study
from tests import ROOT

FULL = """
title = "Two nets, two methods"
about = "A sentence."
trials = 3
[options]
epochs = 2
train_size = 1000
data = ["digits", "cifar10"]
seed = 5
[[task]]
network = "resnet8"
width = 0.5
[[task]]
network = "vgg16"
batch-size = 64
[[method]]
label = "SGD, cosine"
optimizer = "sgd"
schedule = "cosine"
tune = { lr = [0.3, 0.1], momentum = [0, 0.9] }
[[method]]
optimizer = "rmsgd"
"""


@pytest.fixture
def study(tmp_path):
    def read(text):
        path = tmp_path / "grid.toml"
        path.write_text(text, encoding="utf-8")
        return read_study(path)

    return read


def test_one_entry_of_each_axis_is_combined_with_one_of_every_other(study):
    found = study(FULL)
    assert (found.name, found.title, found.about) == (
        "grid",
        "Two nets, two methods",
        "A sentence.",
    )
    assert found.trials == 3
    assert [tuple(point.labels.values()) for point in found.points] == [
        (data, task, method)
        for task in ("resnet8 width=0.5", "vgg16 batch_size=64")
        for method in ("SGD, cosine", "rmsgd")
        for data in ("digits", "cifar10")
    ]
    assert all(list(point.labels) == ["data", "task", "method"] for point in found.points)
    assert found.points[0].config == Config(
        network="resnet8",
        width=0.5,
        data="digits",
        optimizer="sgd",
        schedule="cosine",
        epochs=2,
        train_size=1000,
        seed=5,
    )


def test_a_point_without_tuning_has_a_run_for_each_seed(study):
    point = study(FULL).points[2]
    assert point.candidates == ()
    assert [config.seed for config in point.trials()] == [5, 6, 7]
    assert point.trials()[0] == point.config
    assert not any(config.validate for config in point.trials())


def test_a_tuned_point_has_a_candidate_for_each_combination(study):
    point = study(FULL).points[0]
    assert point.tuned == ("lr", "momentum")
    assert [(c.lr, c.momentum) for c in point.candidates] == [
        (0.3, 0.0),
        (0.3, 0.9),
        (0.1, 0.0),
        (0.1, 0.9),
    ]
    assert all(config.validate and config.seed == 5 for config in point.candidates)


def test_the_trials_of_a_tuned_point_follow_from_what_is_chosen(study):
    point = study(FULL).points[0]
    assert point.trials() == ()
    trials = point.trials(point.candidates[1])
    assert [(c.lr, c.momentum, c.seed, c.validate) for c in trials] == [
        (0.3, 0.9, seed, False) for seed in (5, 6, 7)
    ]


def test_a_list_in_an_entry_stands_for_several_entries(study):
    found = study('[[net]]\nlabel = "small"\nnetwork = "resnet8"\nwidth = [0.25, 0.5]\n')
    assert [point.labels for point in found.points] == [
        {"net": "small width=0.25"},
        {"net": "small width=0.5"},
    ]
    assert [point.config.width for point in found.points] == [0.25, 0.5]


def test_an_entry_has_the_last_word_on_an_option(study):
    text = """
    [options]
    lr = [0.1, 0.2]
    train_size = 1000
    tune = { momentum = [0.0, 0.9] }
    [[method]]
    optimizer = "sgd"
    lr = 0.5
    [[method]]
    optimizer = "adam"
    momentum = 0.8
    """
    sgd, *adams = study(text).points
    assert (sgd.config.lr, sgd.tuned, len(sgd.candidates)) == (0.5, ("momentum",), 2)
    assert [(c.config.lr, c.tuned, c.config.momentum) for c in adams] == [
        (0.1, (), 0.8),
        (0.2, (), 0.8),
    ]
    assert sgd.labels == {"lr": "lr=0.5", "method": "sgd lr=0.5"}


def test_options_alone_are_a_study_of_one_point(study):
    found = study("[options]\nepochs = 1\n")
    assert [point.labels for point in found.points] == [{}]
    assert (found.title, found.trials) == ("grid", 1)


def test_points_may_share_candidates(study):
    text = '[[m]]\nlabel = "a"\ntune = { lr = [1, 2] }\n[[m]]\nlabel = "b"\ntune = { lr = [2, 3] }'
    first, second = study("[options]\ntrain_size = 1000\n" + text).points
    assert first.candidates[1] == second.candidates[0]


def test_where_runs_and_data_are_changes_no_run(study):
    found = study(FULL)
    placed = found.with_folders(out="elsewhere", data_root="there")
    configs = [config for point in placed.points for config in (point.config, *point.candidates)]
    assert {(config.out, config.data_root) for config in configs} == {("elsewhere", "there")}
    assert [resolve(point.config).name for point in placed.points] == [
        resolve(point.config).name for point in found.points
    ]
    assert found.with_folders() == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "asks for no runs"),
        ("trials = 3", "asks for no runs"),
        ("trials = 0\n[options]\nepochs = 1", "expected trials of 1 or more, got 0"),
        ("trials = true\n[options]\nepochs = 1", "trials should be int, got True"),
        ("title = 3\n[options]\nepochs = 1", "title should be str, got 3"),
        ("options = 3", "options should be a table, got 3"),
        ("epochs = 3", "'epochs' to be an axis.* belongs in .options."),
        ("trails = 3", "'trails' to be an axis.* Did you mean trials"),
        ("task = []", "the axis 'task' is empty"),
        ("[task]\nepochs = 1", "'task' to be an axis"),
        ("[options]\noptimiser = 'sgd'", r"\[options\]: there is no option 'optimiser'. Did you"),
        ("[options]\nlabel = 'all'", r"\[options\] has no label"),
        ("[options]\nlr = 'fast'", r"\[options\]: lr should be float, got 'fast'"),
        ("[options]\nlr = [0.1, 'fast']", "lr should be float, got 'fast'"),
        ("[options]\nlr = []", "lr is an empty list"),
        ("[options]\nlr = [[0.1]]", "lr should be float"),
        ("[options]\nseed = [0, 1]", "seed should be int, the first trial's"),
        ("[options]\ndevices = 2", "expected devices = 1, got 2"),
        ("[[m]]\nlabel = 'a'\ntune = { lr = [1, 2] }", "a: .*train_size"),
        ("[options]\nlr = -1.0", "Expected lr to be above 0"),
        ("[options]\noptimizer = ['sgd', 'none']", "none: There is no optimizer 'none'"),
        ("[[m]]\n[[m]]\nlrr = 1", r"\[\[m\]\] no. 2: there is no option 'lrr'"),
        ("[[m]]\nlabel = 3", r"\[\[m\]\] no. 1: label should be a name, got 3"),
        ("[[m]]\nlabel = ' '", "label should be a name"),
        ("[[m]]\nlabel = 'a'\nlr = 1\n[[m]]\nlabel = 'a'", "are called 'a'"),
        ("[[m]]\nlr = 1\n[[m]]\nlabel = 'b'\nlr = 1.0", "b and lr=1 share a run"),
        ("trials = 2\n[[m]]\nseed = 0\n[[m]]\nseed = 1", "seed=1 and seed=0 share a run"),
        ("[options]\nlr = [1, 1.0]", "share a run"),
        ("[options]\nlr = [1, 2]\n[[lr]]\nepochs = 1", "'lr' is an axis and a list"),
        ("[[m]]\ntune = 3", "tune should be as"),
        ("[[m]]\ntune = { lr = 0.1 }", "tune lr should be a list, got 0.1"),
        ("[[m]]\ntune = { lr = [] }", "tune: lr is an empty list"),
        ("[[m]]\ntune = { lrr = [1] }", "tune: there is no option 'lrr'"),
        ("[[m]]\ntune = { seed = [1, 2] }", "seed can't be tuned: it is not a tunable"),
        ("[[m]]\ntune = { out = ['a', 'b'] }", "out can't be tuned"),
        ("[[m]]\nlr = 1\ntune = { lr = [1] }", "lr can't be tuned: it has a value here already"),
        (
            "[options]\ntrain_size = 1000\n[[m]]\nlabel = 'a'\ntune = { lr = [1, 2] }\n"
            "[[m]]\nlabel = 'b'\ntune = { lr = [2, 1] }",
            "b and a share a run",
        ),
        ("trials = 100000\n[options]\nepochs = 1", "asks for 100000 runs; expected 10000 at most"),
        (f"[[m]]\nlr = {[*range(1, 200)]}\nwidth = {[*range(1, 200)]}", "asks for 39601 runs"),
        ("[options", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_refused_by_file_and_key(study, tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        study(text)
    assert str(tmp_path / "grid.toml") in str(caught.value)


TUNED_ELSEWHERE = """
[options]
epochs = 4
train_size = 1000
data = ["digits", "cifar10"]
[tuning]
data = "digits"
epochs = 2
[[method]]
label = "SGD"
optimizer = "sgd"
tune = { lr = [0.3, 0.1] }
"""


def test_candidates_have_the_options_of_tuning_and_trials_their_own(study):
    digits, cifar = study(TUNED_ELSEWHERE).points
    assert digits.candidates == cifar.candidates
    assert {(c.data, c.epochs, c.validate) for c in cifar.candidates} == {("digits", 2, True)}
    assert {(c.data, c.epochs, c.lr) for c in cifar.trials(cifar.candidates[0])} == {
        ("cifar10", 4, 0.3)
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("lr = 0.1", "lr is tuned, and has a value in"),
        ("epochs = [1, 2]", "one value each"),
        ('label = "x"', "one value each"),
        ("seed = 3", "seed can't differ"),
        ('out = "x"', "out can't differ"),
    ],
)
def test_what_tuning_can_not_have_is_refused(study, line, told):
    text = TUNED_ELSEWHERE.replace("epochs = 2", line)
    with pytest.raises(ConfigError, match=told):
        study(text)


def test_points_that_differ_by_their_seed_alone_are_refused(study):
    text = "[[m]]\nlr = 0.1\n[[m]]\nlr = 0.1\nseed = 10\n"
    with pytest.raises(ConfigError, match="share a run, or differ by their seeds only"):
        study(text)


def test_a_huge_grid_of_values_to_tune_is_refused_before_it_is_laid_out(study):
    values = ", ".join(f"{n / 1000}" for n in range(1, 101))
    text = f"""
    [options]
    train_size = 100
    batch_size = [{", ".join(str(n) for n in range(1, 51))}]
    tune = {{ lr = [{values}], weight_decay = [{values}] }}
    """
    with pytest.raises(ConfigError, match="expected 10000 at most"):
        study(text)


def test_trials_are_not_scored_on_training_images(study):
    with pytest.raises(ConfigError, match="validate belongs to tuning"):
        study("[options]\ntrain_size = 100\nvalidate = true\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('optimizer = "sgd"\nbeta = 0.9', "sgd has no option beta"),
        ('network = "resnet7"', "There is no network 'resnet7'. Did you mean"),
        ('network = "lstm1"', "digits is images, and lstm1 is for text"),
        ('data = "ptb"', "ptb is text, and resnet20 is for images"),
        ("lr = " + "9" * 400, "should be float"),
        ("batch-size = 2\nbatch_size = 4", "given twice"),
    ],
    ids=["beta", "network", "text network", "text", "huge", "twice"],
)
def test_what_no_worker_could_run_is_refused_before_anything_is_trained(study, line, told):
    with pytest.raises(ConfigError, match=told):
        study(f"[options]\n{line}\n")


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = " + "9" * 5000])
def test_toml_that_no_reader_takes_is_a_sentence(study, text):
    with pytest.raises(ConfigError, match="is not valid TOML"):
        study(text)


def test_a_study_and_its_table_import_no_network():
    code = (
        "import sys\n"
        "from rankwise.study import collect_results, read_study\n"
        "collect_results([], read_study(sys.argv[1]))\n"
        "print([name for name in sys.modules if name.startswith('rankwise.lab.networks')])\n"
    )
    path = ROOT / "studies" / "cpu" / "beta.toml"
    command = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"
