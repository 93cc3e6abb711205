"""Links between pages lead somewhere on GitHub too, which names headings in its own way."""

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.blocks import PAGES

WRITTEN = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def drop_code(text):
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def list_anchors(page):
    """The names that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_links_of_a_page_lead_to_files_and_headings(page: Path):
    for path, anchor in LINK.findall(drop_code(page.read_text(encoding="utf-8"))):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in list_anchors(target), f"{page.name}: {path}#{anchor}"
