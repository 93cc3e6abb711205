"""The docs site: every page is in it, and every link leads somewhere."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from filelock import FileLock
from tools.website.commands import make_command_page
from tools.website.links import find_broken_links
from tools.website.pages import rewrite_links
from tools.website.reference import PAGES, write_reference

import rankwise
from tests import ROOT

SITE = ROOT / "build" / "site"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def listed(entry):
    """The pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for child in inner for page in listed(child)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What the command that builds the site says; it runs once, whatever the number of workers."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    folder = tmp_path_factory.getbasetemp().parent if run else tmp_path_factory.mktemp("site")
    record = folder / f"site-{run}.json"
    with FileLock(folder / "site.lock"):
        if not record.exists():
            command = [sys.executable, "-m", "tools.website"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            record.write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
    return json.loads(record.read_text())


def test_the_site_is_built_without_a_warning_and_with_no_broken_link(built):
    code, printed, warned = built
    assert code == 0, printed + warned
    assert warned == "No issues found\n"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.usefixtures("built")
def test_no_page_is_wider_than_the_screen_or_asks_another_site_for_anything(browser, width):
    tab = browser.new_page(viewport={"width": width, "height": 900})
    asked, complaints = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: complaints.append(message.text))
    for page in listed(CONFIG["nav"]):
        tab.goto((SITE / page).with_suffix(".html").as_uri())
        wide, screen = tab.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= screen, page
    tab.close()
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    assert complaints == []


@pytest.mark.usefixtures("built")
def test_the_search_works_on_pages_opened_from_a_folder(browser):
    tab = browser.new_page()
    tab.goto((SITE / "reference" / "cli.html").as_uri())
    tab.keyboard.press("Control+k")
    tab.keyboard.type("stable rank")
    tab.get_by_text("rankwise.stable_rank", exact=True).first.wait_for(timeout=30_000)
    tab.close()


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
