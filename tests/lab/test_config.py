"""What a run is asked to do, from Python and from TOML."""

import dataclasses
import itertools
import math
import re
import subprocess
import sys
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

import rankwise
from rankwise.lab import Config, ConfigError
from rankwise.lab.config import from_mapping, read_toml
from rankwise.lab.defaults import resolve

KINDS = get_type_hints(Config)
WHERE = ("accelerator", "devices", "workers", "data_root", "out", "log")
NAMES = [field.name for field in fields(Config)]
WHAT = [name for name in NAMES if name not in WHERE]


def another(name):
    """A value of the right type that is not the default."""
    present = getattr(Config(), name)
    kind = next(kind for kind in (get_args(KINDS[name]) or (KINDS[name],)))
    if kind is bool:
        return not present
    return {int: 7, float: 0.375, str: "other"}[kind]


def in_toml(value):
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.parametrize("sign", ["-", "_"])
@pytest.mark.parametrize("name", NAMES)
def test_every_option_can_be_set_in_toml(tmp_path, name, sign):
    path = tmp_path / "run.toml"
    path.write_text(f"{name.replace('_', sign)} = {in_toml(another(name))}\n", encoding="utf-8")
    found = from_mapping(read_toml(path), str(path))
    assert found == Config(**{name: another(name)})
    assert found != Config()


def test_all_options_go_to_toml_and_back(tmp_path):
    asked = Config(**{name: another(name) for name in NAMES})
    path = tmp_path / "run.toml"
    lines = (f"{name} = {in_toml(value)}" for name, value in dataclasses.asdict(asked).items())
    path.write_text("\n".join(lines), encoding="utf-8")
    assert from_mapping(read_toml(path), str(path)) == asked


def test_an_unknown_option_is_named_with_what_is_near():
    with pytest.raises(ConfigError, match=r"mine: there is no option 'optimiser'.*optimizer\?"):
        from_mapping({"optimiser": "sgd"}, "mine")
    with pytest.raises(ConfigError, match="`rankwise train --help` lists them"):
        from_mapping({"zzz": 1}, "mine")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", True, "int"),
        ("epochs", 2.0, "int"),
        ("lr", "0.1", "float"),
        ("lr", True, "float"),
        ("cutout", 1, "bool"),
        ("network", 18, "str"),
        ("precision", 32, "str"),
        ("seed", None, "int"),
        ("batch-size", [128], "int"),
    ],
)
def test_a_wrong_type_is_refused(name, value, expected):
    sentence = f"here: {name} should be {expected}, got {value!r}."
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        from_mapping({name: value}, "here")


def test_an_int_stands_for_a_float():
    found = from_mapping({"lr": 1, "width": 2}, "here")
    assert (found.lr, found.width) == (1.0, 2.0)
    assert type(found.lr) is type(found.width) is float
    assert found.name == Config(lr=1.0, width=2.0).name


def test_changes_are_checked_too():
    assert Config().with_(seed=3) == Config(seed=3)
    with pytest.raises(ConfigError, match="seed should be int"):
        Config().with_(seed="3")
    with pytest.raises(ConfigError, match="no option"):
        Config().with_(sed=3)


@pytest.mark.parametrize("content", [b"lr = ", b"lr = 1\nlr = 2", b"\xff\xfe", b"= 3"])
def test_what_is_no_toml_is_named(tmp_path, content):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        read_toml(path)


def test_without_a_reader_of_toml_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomllib" if sys.version_info >= (3, 11) else "tomli", None)
    with pytest.raises(rankwise.MissingExtraError, match="pip install tom"):
        read_toml(tmp_path / "run.toml")


def test_the_command_line_can_be_imported_without_the_packages_of_the_lab():
    missing = ("tomli", "tomllib", "lightning_fabric", "pytorch_optimizer", "sklearn", "PIL")
    code = f"import sys; sys.modules |= dict.fromkeys({missing}); import rankwise.cli"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name", WHAT)
def test_a_run_has_another_name_if_it_is_another_run(name):
    assert Config(**{name: another(name)}).name != Config().name


@pytest.mark.parametrize("name", WHERE)
def test_a_run_keeps_its_name_wherever_it_is(name):
    assert Config(**{name: another(name)}).name == Config().name
    assert name not in Config().identity()


def test_an_option_that_leaves_runs_as_they_were_changes_no_name():
    """Also one that None stands for in all runs it applies to, as for ζ."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(Config):
        warmup: int = dataclasses.field(default=0, metadata=METADATA)
        polish: str | None = dataclasses.field(default=None, metadata=METADATA)
        sharpness: float | None = dataclasses.field(
            default=None, metadata={**METADATA, "constant": 2.0}
        )

    for options in ({}, {"optimizer": "sgd", "lr": 0.1}, {"network": "lstm1", "epochs": 3}):
        given = {**Config(**options).identity()}
        assert Later(**given).name == Later(**given, sharpness=2.0).name == Config(**options).name
        assert Later(**given, warmup=1).name != Config(**options).name
        assert Later(**given, sharpness=1.0).name != Config(**options).name


METADATA = {"help": "", "constant": None, "where": False}


def test_runs_that_differ_have_names_that_differ():
    """Also where options that None stands for, or that follow from others, are given."""
    choices = {
        "network": ("resnet8", "wgan", "lstm1"),
        "optimizer": ("rmsgd", "sgd"),
        "epochs": (None, 15, 250),
        "lr": (None, 0.03, 0.1),
        "beta": (None, 0.98),
        "zeta": (None, 1.0, 3.0),
        "floor": (None, 0.0),
        "rule": (None, "paper", "stable-rank", "annealed", "llr"),
        "control": (None, "none", "mean"),
    }
    names = {}
    for values in itertools.product(*choices.values()):
        options = dict(zip(choices, values, strict=True))
        try:
            config = resolve(Config(**options))
        except ConfigError:  # what an optimizer does not take
            continue
        assert names.setdefault(config.name, config) == config
    assert len(names) == len(set(names.values())) > 100


def test_names_stay_what_they_are():
    """A run that was recorded must be found again: these names may change by a migration only."""
    runs = {
        "resnet20-digits-rmsgd-863aef0d-seed0": {},
        "vgg16-cifar10-sgd-d2d5bc96-seed3": {"network": "vgg16", "data": "cifar10"}
        | {"optimizer": "sgd", "schedule": "cosine", "epochs": 15, "seed": 3},
    }
    assert [resolve(Config(**options)).name for options in runs.values()] == list(runs)


def test_a_name_is_readable_in_front_and_the_same_every_time():
    assert re.fullmatch(r"resnet20-digits-rmsgd-[0-9a-f]{8}-seed0", Config().name)
    assert Config(lr=0.1, seed=3).name == Config(seed=3, lr=0.1).name
    assert Config(lr=0.1).name != Config(lr=math.nextafter(0.1, 1)).name


@pytest.mark.parametrize(
    "data",
    [
        "folder:../../etc/passwd",
        "hf:user/name",
        "text:C:\\a\\b c\t\n",
        "folder:" + "ü/" * 400,
        "...",
    ],
)
def test_a_name_suits_any_file_system(tmp_path, data):
    name = Config(network="timm:a/b", data=data).name
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,160}", name)
    assert not name.startswith(".")
    (tmp_path / name).mkdir()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", "3"), ("lr", "0.1"), ("network", None), ("log", None), ("seed", 1.5)],
)
def test_a_value_of_the_wrong_type_is_refused_also_in_python(name, value):
    with pytest.raises(ConfigError, match=f"{name} should be"):
        Config(**{name: value})
