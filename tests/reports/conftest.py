"""Pages in a real browser: headless Chromium; where there is none, tests skip and say so."""

import pytest


class Opened:
    """A page in the browser, and what went wrong in it."""

    def __init__(self, tab):
        self.tab = tab
        self.complaints = []
        self.requests = []
        tab.on("console", self._console)
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def goto(self, address):
        self.tab.goto(address)
        self.ready()

    def ready(self):
        """Wait until all figures are drawn."""
        self.tab.wait_for_selector("body[data-ready]", state="attached", timeout=60_000)

    def text(self, selector):
        return self.tab.locator(selector).first.inner_text()

    def texts(self, selector):
        return self.tab.locator(selector).all_inner_texts()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a page's HTML, as a file, in a fresh tab; at the end nothing may have complained."""
    opened = []

    def visit_page(html=None, *, address=None, width=1280, scheme="light", **options):
        tab = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        one = Opened(tab)
        opened.append(one)
        if html is not None:
            file = tmp_path / f"page{len(opened)}.html"
            file.write_text(html, encoding="utf-8")
            address = file.as_uri()
        one.goto(address)
        return one

    yield visit_page
    complaints = [text for one in opened for text in one.complaints]
    for one in opened:
        one.tab.close()
    assert complaints == []
