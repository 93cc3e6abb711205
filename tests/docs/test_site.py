"""The docs site: every page is in it, and every link leads somewhere."""

import subprocess
import sys

import pytest
import yaml
from tools.website.commands import make_command_page
from tools.website.links import find_broken_links
from tools.website.pages import rewrite_links
from tools.website.reference import PAGES, write_reference

import rankwise
from tests import ROOT

CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def listed(entry):
    """The pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for child in inner for page in listed(child)]


def test_the_site_is_built_without_a_warning_and_with_no_broken_link():
    command = [sys.executable, "-m", "tools.website"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "No issues found\n"


def test_every_page_is_in_the_navigation():
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert pages <= set(listed(CONFIG["nav"]))


def test_the_site_asks_no_other_site_for_anything():
    assert CONFIG["theme"]["font"] is False
    assert "repo_url" not in CONFIG  # the theme would ask GitHub for the number of stars


def test_every_public_name_is_in_the_reference(tmp_path):
    write_reference(tmp_path)
    text = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.md"))
    for name in set(rankwise.__all__) - {"__version__"}:
        assert text.count(f"heading: rankwise.{name}\n") == 1
    assert {f"reference/{page.name}.md" for page in PAGES} <= set(listed(CONFIG["nav"]))


def test_every_command_is_in_the_reference():
    page = make_command_page()
    for command in ("check", "probe", "study correlate"):
        assert f"# rankwise {command}\n" in page
    assert "error&#124;warning" in page  # a bar would end the cell


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("other.html", ""),
        ("other.html#there", ""),
        ("https://example.org/page", ""),
        ("none.html", "no file"),
        ("other.html#here", "no heading"),
        ("#nowhere", "no heading"),
        ("http://example.org", "https://"),
        ("https://nowhere", "https://"),
    ],
)
def test_broken_links_are_found(tmp_path, link, problem):
    (tmp_path / "page.html").write_text(f'<h1 id="top"><a href="{link}">x</a></h1>')
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1>')
    found = list(find_broken_links(tmp_path))
    assert [problem in sentence for sentence in found] == ([True] if problem else [])


@pytest.mark.parametrize("tag", ['<img src="none.png">', '<script src="https://cdn.org/x.js">'])
def test_images_that_are_missing_and_scripts_of_other_sites_are_found(tmp_path, tag):
    (tmp_path / "page.html").write_text(tag)
    assert len(list(find_broken_links(tmp_path))) == 1


def test_a_link_to_a_file_that_is_not_there_names_page_and_link():
    with pytest.raises(FileNotFoundError, match=r"docs/log.md links to none.md"):
        rewrite_links("[x](none.md)", "docs/log.md")


def test_links_in_code_stay():
    text = "```python\nf[0](a)\n```"
    assert rewrite_links(text, "docs/log.md") == text
