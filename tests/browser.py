"""Headless Chromium for tests: a page from disk, with everything that it says and asks for."""

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
REASON = "Chromium is not installed" if not CHROMIUM else "playwright is not installed"
needed = pytest.mark.skipif(not CHROMIUM or not find_spec("playwright"), reason=REASON)
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


@dataclass
class Tab:
    """A page, and what it logged, threw and requested."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(path, *, width=1280, height=900, scheme="light"):
    """A page from disk. On leaving, nothing may have gone wrong in it, and nothing may have been asked of a network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET, "--disable-sync", "--no-first-run"]
        )
        try:
            context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            tab = Tab(context.new_page())
            tab.page.on("console", lambda message: tab.errors.append(message.text) if message.type == "error" else None)
            tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
            tab.page.on("request", lambda request: tab.requests.append(request.url))
            tab.page.goto(path.absolute().as_uri())
            yield tab
        finally:
            chromium.close()
    assert not tab.errors
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []
