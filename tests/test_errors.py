"""What the exceptions say, where it depends on the machine."""

from importlib import metadata

import pytest

import rankwise

REQUIRES = [
    "torch>=2.7",
    "rankwise[cli]; extra == 'report'",
    'altair>=6; extra == "report"',
    "jinja2>=3.1 ; extra == 'report'",
    "scipy>=1.12; extra == 'report'",
    "msgspec>=0.19; extra == 'lab'",
    "tomli>=2; (python_version < '3.11') and extra == 'report'",
]


def describe(package, extra="report"):
    return str(rankwise.MissingExtraError(package, extra, "Writing a report"))


@pytest.fixture
def installed(monkeypatch):
    def distribution(name):
        if name != "scipy":
            raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES)
    monkeypatch.setattr(metadata, "distribution", distribution)


def test_all_missing_packages_of_an_extra_are_named_at_once(installed):
    assert describe("altair") == (
        "Writing a report needs the package 'altair': pip install altair jinja2"
    )
    assert describe("onnx", "onnx").endswith(": pip install onnx")


def test_a_module_is_named_as_its_package_is_installed(installed):
    assert describe("PIL.Image", "").endswith("needs the package 'pillow': pip install pillow")
    assert describe("sklearn", "").endswith("pip install scikit-learn")


def test_without_being_installed_the_package_is_named(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert describe("altair").endswith("pip install altair")
