"""The server that the tests of this folder share, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.config.load import dump
from tests.flows.served import PICTURES, Served, page_of, until
from tests.stages.tiny import tiny

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
SMALL: dict[str, Any] = {
    "sft": {"steps": 3},
    "rl": {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}, "algorithm": {"entropy_coef": 0.05}},
    "prefect": {"phases": "folded"},
}
"""A bonus moves the policy, for which no answer is right."""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "recipes").mkdir()
    (folder / "recipes" / "small.yaml").write_text(dump(tiny({**SMALL, "name": "small"})))
    other = {**SMALL, "name": "other", "rl": {**SMALL["rl"], "algorithm": {"name": "dr_grpo"}}}
    (folder / "recipes" / "other.yaml").write_text(dump(tiny(other)))
    server = Served(folder)
    try:
        server.wait()
        yield server
    finally:
        server.stop()
        left = until(lambda: not server.processes() or None, "the end of all processes", 60)
        assert left
        print((folder / "home" / "runner.log").read_text()[-3000:])


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium. Without WebGL, of which the UI draws its graphs: in software that takes a whole core."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as play:
        words = ["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"]
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=words)
        yield chromium
        chromium.close()


@pytest.fixture
def browser(served: Served, chromium: Any) -> Iterator[Any]:
    """A page of the browser."""
    with page_of(chromium) as page:
        yield page
