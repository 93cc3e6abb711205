"""docs/results.md and docs/results-tables.md follow from the records."""

import shutil

import pytest
from tools.results import pages

from rankwise.study import collect_results, read_study, unpack
from tests.study.small_study import study_in, written

pytest.importorskip("lightning_fabric")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return pages.read_records(tmp_path_factory.mktemp("records"))


def test_the_pages_follow_from_the_records(found):
    assert pages.make_findings(found) == pages.FINDINGS.read_text(encoding="utf-8")
    assert pages.make_tables(found) == pages.TABLES.read_text(encoding="utf-8")


def test_a_table_without_records_says_so():
    assert "(No records of scale_up yet.)" in pages.make_findings({})


def test_a_table_of_some_runs_says_how_many_are_missing(found):
    some = found["table_1a"].runs[:3]
    study = read_study(pages.STUDIES / "controls.toml")
    partial = collect_results(some, study)
    text = pages.make_findings({"controls": partial})
    assert f"runs that are missing yet: {partial.missing} of controls." in text


def test_every_study_has_a_section_and_every_section_words_that_are_its_own():
    records = {path.stem for path in pages.RECORDS.glob("*.json*")}
    known = {*pages.SECTIONS, "page", *(r for r in records if r.startswith("ranking_"))}
    assert set(pages._read_words()) <= known
    # Runs of these studies are ranked, not tabled.
    assert {path.stem for path in pages.STUDIES.glob("*.toml")} == {
        *pages.SECTIONS,
        *("correlation", "nats"),
    }


def test_pictures_of_the_page_are_there():
    text = pages.TABLES.read_text(encoding="utf-8")
    for name in pages.FIGURES:
        assert (name in text) == (pages.TABLES.parent / name).exists()


def test_records_of_a_part_of_the_runs_do_not_replace_the_others(tmp_path, monkeypatch):
    study = study_in(tmp_path)
    monkeypatch.setattr(pages, "STUDIES", tmp_path)
    monkeypatch.setattr(pages, "RECORDS", tmp_path / "records")
    trials = [config for point in study.points for config in point.trials()]
    counts = []
    for place in (0, 1):
        written(trials[place], 0.5)
        pages.write_records(tmp_path / "runs")
        (path,) = (tmp_path / "records").glob("*.jsonl")
        counts.append(len(unpack(path, tmp_path / f"unpacked{place}")))
        shutil.rmtree(tmp_path / "runs")
    assert counts == [1, 2]
