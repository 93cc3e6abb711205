"""docs/results.md is what `make results` makes of the committed records."""

import importlib

import pytest

from tests import ROOT

pytest.importorskip("lightning_fabric")

DOCS = ROOT / "docs"


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("results")


def test_the_page_follows_from_the_records(results):
    assert results.page() == (DOCS / "results.md").read_text(encoding="utf-8")


def test_every_study_has_a_section_and_every_section_words_that_are_its_own(results):
    records = {path.stem for path in results.RECORDS.glob("*.json*")}
    known = {*results.SECTIONS, "results", *(r for r in records if r.startswith("ranking_"))}
    assert set(results._words()) <= known
    # Runs of the correlation study are ranked, not tabled.
    assert {path.stem for path in results.STUDIES.glob("*.toml")} == {
        *results.SECTIONS,
        "correlation",
    }


def test_pictures_of_the_page_are_there(results):
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    for name in results.FIGURES:
        assert (name in text) == (DOCS / name).exists()
