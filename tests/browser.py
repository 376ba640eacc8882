"""Headless Chromium for tests: a page from disk, with everything that it logs and asks for."""

import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
REASON = "playwright is not installed" if CHROMIUM else "Chromium is not installed"
needed = pytest.mark.skipif(not CHROMIUM or not find_spec("playwright"), reason=REASON)
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
QUIET += ("--disable-sync", "--no-first-run")


@dataclass
class Tab:
    """A page, and what it logged, threw and requested."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def until(self, expression, seconds=120):
        """Waits until an expression is true; not by `wait_for_function`, which a page's security policy may forbid."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"still false after {seconds} s: {expression}"
            self.page.wait_for_timeout(50)


@contextmanager
def started():
    """A browser, for several pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET])
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def opened(chromium, path, *, width=1280, height=900, scheme="light"):
    """A page from disk. On leaving, nothing may have gone wrong in it, and nothing may have been asked of a network."""
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = Tab(context.new_page())
    tab.page.on("console", lambda message: tab.errors.append(message.text) if message.type == "error" else None)
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("request", lambda request: tab.requests.append(request.url))
    tab.page.goto(path.absolute().as_uri())
    yield tab
    context.close()
    assert not tab.errors, tab.errors
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []
