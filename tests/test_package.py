"""The packages that are published: what is in them, and what an index shows of them."""

import re
import tarfile
import zipfile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(ROOT)  # the plug-in for the README reads it from the working directory
    with zipfile.ZipFile(next(WheelBuilder(str(ROOT)).build(directory=str(folder)))) as file:
        yield {name: file.read(name) for name in file.namelist()}
    monkeypatch.undo()


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    folders = {name.split("/")[0] for name in wheel}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"rankwise"}
    source = ROOT / "src"
    wanted = {path.relative_to(source).as_posix() for path in source.rglob("*.*")}
    assert {name for name in wanted if "__pycache__" not in name} <= set(wheel)
    assert {"rankwise/py.typed", "rankwise/reports/assets/page.html"} <= set(wheel)


def test_the_index_is_given_addresses_licence_and_pictures(wheel):
    (metadata,) = (text.decode() for name, text in wheel.items() if name.endswith("/METADATA"))
    head, _, readme = metadata.partition("\n\n")
    for label in ("Homepage", "Documentation", "Changelog", "Issues"):
        assert f"Project-URL: {label}, https://github.com/rankwise/rankwise" in head
    assert "License-Expression: MIT" in head
    assert "Classifier: License" not in head  # PEP 639: the expression alone
    assert "Python :: 3.13" in head
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)|<img[^>]* src=\"([^\"]*)\"", readme)
    raw = "https://raw.githubusercontent.com/rankwise/rankwise/main/"
    for link in (first or second for first, second in pictures):
        assert link.startswith(raw)
        assert (ROOT / link.removeprefix(raw)).is_file()


def test_links_of_the_readme_work_on_an_index(wheel):
    (metadata,) = (text.decode() for name, text in wheel.items() if name.endswith("/METADATA"))
    links = re.findall(r"\]\(([^)]*)\)", metadata)
    assert len(links) > 10
    assert all(link.startswith(("https://", "#")) for link in links)
    start = "https://github.com/rankwise/rankwise/blob/main/"
    files = [link.removeprefix(start) for link in links if link.startswith(start)]
    assert all((ROOT / file.partition("#")[0]).is_file() for file in files)


def test_the_source_package_has_what_tests_and_docs_need(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with tarfile.open(next(SdistBuilder(str(ROOT)).build(directory=str(tmp_path)))) as file:
        tops = {name.split("/")[1] for name in file.getnames()}
    assert {"src", "tests", "tools", "benchmarks", "docs", "studies", "Makefile"} <= tops
    assert not tops & {".venv", "build", ".ci"}
