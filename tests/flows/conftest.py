"""A browser."""

import shutil

import pytest

from tests.flows.served import PICTURES, page_of

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium. Without WebGL, of which the UI draws its graphs: in software that takes a whole core."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as play:
        words = ["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"]
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=words)
        yield chromium
        chromium.close()


@pytest.fixture
def browser(chromium):
    """A page of the browser."""
    with page_of(chromium) as page:
        yield page
