"""The page in a real browser: it renders without an error, hovers, filters, compares, and fits a narrow screen."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.diagnose.recorded import RECORDED, unpack
from tests.report.runs import HOSTILE, make_run, read_rows
from verizero.pipeline.diagnosis.cards import cards_of
from verizero.pipeline.report.page import build_page
from verizero.pipeline.shown import visible

pytestmark = pytest.mark.integration
CONTRAST = """() => {
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((v) => channel(Number(v)));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.querySelector("figure")).backgroundColor);
  const ratio = ([selector, property]) => {
    const ink = light(getComputedStyle(document.querySelector(selector))[property]);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  };
  return [["h1", "color"], ["figcaption", "color"], [".up", "color"], [".plot svg text", "fill"]].map(ratio);
}"""
"""WCAG contrast of heading, caption, a rise and the text of a plot, on a card."""
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = make_run(tmp_path_factory.mktemp("runs") / "demo")
    build_page(run_dir)
    return run_dir


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def open_contexts(browser: Any) -> Callable[[str, int], Any]:
    """Contexts by scheme and width, made once: to start a renderer costs much, and the report stores nothing."""

    @functools.cache
    def context_of(scheme: str, width: int) -> Any:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        context.new_page()  # keeps the renderer
        return context

    return context_of


LOOKS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
BOTH = [LOOKS[0], LOOKS[3]]
"""Both schemes and both widths: what a page does depends on one of them at most."""


def name_of(look: tuple[str, int]) -> str:
    return f"{look[0]}-{look[1]}"


@pytest.fixture(params=BOTH, ids=name_of)
def page(request: pytest.FixtureRequest, open_contexts: Callable[[str, int], Any], run_dir: Path) -> Iterator[Any]:
    """The report, open."""
    with shown(open_contexts(*request.param), run_dir) as page:
        yield page


@contextmanager
def shown(context: Any, run_dir: Path) -> Iterator[Any]:
    """The report of a run; the test fails if the page logs an error or asks for anything but itself."""
    page = context.new_page()
    errors: list[str] = []
    asked: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: asked.append(r.url))
    page.goto((run_dir / "report.html").as_uri())
    yield page
    page.close()
    assert errors == []
    assert [url for url in asked if not url.startswith("data:")] == [(run_dir / "report.html").as_uri()]


def count(page: Any) -> int:
    return int(page.locator("#count").inner_text().split()[0])


@pytest.mark.parametrize("page", LOOKS, ids=name_of, indirect=True)
def test_it_renders_in_light_and_dark_and_fits(page: Any) -> None:
    assert page.title() == "demo"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".plot svg").count() == page.evaluate("JSON.parse(data.textContent).charts.length") == 9
    assert page.evaluate("window.hacked") is None
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) == 4
    assert min(ratios) >= 4.5


def test_filters_show_what_the_files_hold(page: Any, run_dir: Path) -> None:
    from playwright.sync_api import expect

    rows = read_rows(run_dir / "rollouts.jsonl")
    assert count(page) == len(rows)
    page.select_option("[name=domain]", "induction")
    assert count(page) == sum(r["domain"] == "induction" for r in rows)
    page.select_option("[name=verdict]", "wrong")
    wrong = [r for r in rows if r["domain"] == "induction" and r["status"] == "graded" and r["score"] == 0]
    assert count(page) == len(wrong)
    page.fill("[name=step_from]", "10")
    page.fill("[name=step_to]", "30")
    page.select_option("[name=stage]", "rl")
    assert count(page) == sum(r["stage"] == "rl" and 10 <= r["step"] <= 30 for r in wrong) > 0
    shown = page.locator(".answer .verdict").all_inner_texts()
    assert set(shown) == {"wrong"}
    page.click("button[type=reset]")
    expect(page.locator("#count")).to_have_text(re.compile(rf"^{len(rows)} "))  # the page's policy bars evaluated text
    page.fill("[name=reward_from]", "0.5")
    assert count(page) == sum(r["reward"] is not None and r["reward"] >= 0.5 for r in rows)
    page.fill("[name=reward_from]", "")
    page.fill("[name=text]", "WINDOW.HACKED")
    assert count(page) == 1
    assert page.locator(".answer .response").evaluate("(n) => n.textContent") == visible(HOSTILE)
    card = page.locator(".answer")
    card.locator("select").select_option(index=1)
    assert r"\x1b[2J" in card.locator(".diff").evaluate("(n) => n.textContent")
    assert not re.search("[\x1b\u202e]", page.locator("body").inner_text())
    assert page.evaluate("window.hacked") is None
    page.fill("[name=text]", "no such text anywhere")
    assert count(page) == 0
    assert page.locator(".answer").count() == 0


def test_pages_turn(page: Any) -> None:
    first = page.locator(".answer").first.inner_text()
    assert page.locator("#previous").is_disabled()
    page.click("#next")
    assert page.locator("#page").inner_text().startswith("2 of")
    assert page.locator(".answer").first.inner_text() != first
    page.click("#previous")
    assert page.locator(".answer").first.inner_text() == first


def test_two_answers_to_one_prompt_are_compared(page: Any) -> None:
    """The diff read without what is new is this answer, and without what is gone the other."""
    page.fill("[name=text]", "arithmetic/20+31")
    answer = page.locator(".answer").filter(has=page.locator(".verdict.right")).first
    select = answer.locator("select")
    labels = select.locator("option").all_inner_texts()
    other = next(label for label in labels if label.endswith(": wrong"))
    select.select_option(label=other)
    parts = answer.locator(".diff").evaluate("(n) => [...n.childNodes].map((c) => [c.nodeName, c.textContent])")
    assert {"DEL", "INS", "#text"} == {kind for kind, _ in parts}
    mine = "".join(text for kind, text in parts if kind != "INS")
    theirs = "".join(text for kind, text in parts if kind != "DEL")
    assert mine == answer.locator(".response").evaluate("(n) => n.textContent")
    assert mine.endswith("Answer: 51")
    assert theirs.startswith("20+31: ")
    assert theirs != mine
    assert answer.locator(".legend").inner_text() == "only in this answer only in the other"
    select.select_option("")
    assert answer.locator(".diff, .legend").count() == 0


def test_a_curve_shows_its_values_under_the_pointer(page: Any, run_dir: Path) -> None:
    rows = [r for r in read_rows(run_dir / "metrics.jsonl") if r["kind"] == "step" and r["stage"] == "rl"]
    plot = page.locator(".plot[data-chart=entropy]")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 11, box["y"] + box["height"] / 2)
    tip = plot.locator(".tip")
    assert tip.inner_text().startswith("RL step 60")
    assert float(tip.inner_text().split()[-1]) == pytest.approx(rows[-1]["metrics"]["entropy"], rel=1e-3)
    inside = tip.evaluate(
        "(t) => { const a = t.getBoundingClientRect(); return a.left >= 0 && a.right <= innerWidth; }"
    )
    assert inside
    page.mouse.move(0, 0)
    assert tip.is_hidden()


def test_a_curve_is_read_with_the_keyboard(page: Any, run_dir: Path) -> None:
    rows = [r for r in read_rows(run_dir / "metrics.jsonl") if r["kind"] == "step" and r["stage"] == "rl"]
    plot = page.locator(".plot[data-chart=entropy]")
    tip = plot.locator(".tip")
    plot.focus()
    assert "arrow keys" in plot.get_attribute("aria-label")
    for key, step in (
        ("ArrowLeft", 60),
        ("ArrowLeft", 59),
        ("Home", 1),
        ("ArrowLeft", 1),
        ("ArrowRight", 2),
        ("End", 60),
    ):
        page.keyboard.press(key)
        assert tip.locator("b").inner_text() == f"RL step {step}"
        assert float(tip.inner_text().split()[-1]) == pytest.approx(rows[step - 1]["metrics"]["entropy"], rel=1e-3)
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    assert tip.is_hidden()
    assert page.evaluate("document.activeElement.dataset.chart") not in (None, "entropy")


def test_everything_that_is_touched_is_large_enough_on_a_phone(page: Any) -> None:
    """44 pixels high, as phones' own guidelines ask; the narrow page is a phone's."""
    if page.viewport_size["width"] > 520:
        least = 24  # WCAG 2.2, 2.5.8, for pointers
    else:
        least = 44
    heights = page.evaluate(
        "() => [...document.querySelectorAll('nav a, button, input, select, summary')]"
        ".filter((n) => n.checkVisibility()).map((n) => [n.outerHTML.slice(0, 60), n.getBoundingClientRect().height])"
    )
    assert len(heights) > 20
    assert [(what, height) for what, height in heights if height < least] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose learning rate was ten times too high."""
    run = unpack(RECORDED / "rate_times_ten-0.tar.xz", tmp_path_factory.mktemp("ill") / "run")
    build_page(run, cards_of(run, pytest.fail))
    return run


@pytest.mark.parametrize("look", BOTH, ids=name_of)
def test_a_cause_is_shown_with_its_curve_and_a_line_to_copy(
    open_contexts: Callable[[str, int], Any], ill: Path, look: tuple[str, int]
) -> None:
    with shown(open_contexts(*look), ill) as page:
        page.click("nav a[href='#diagnosis']")
        card = page.locator(".finding").first
        assert card.locator("h3").inner_text().startswith("problem learning_rate_high")
        assert "metrics.jsonl:" in card.locator("li").first.inner_text()
        plot = card.locator(".plot")
        plot.focus()
        page.keyboard.press("Home")
        steps = [r for r in read_rows(ill / "metrics.jsonl") if r["kind"] == "step" and r["stage"] == "rl"]
        title = card.locator(".curve p").inner_text()
        value = float(plot.locator(".tip").inner_text().split()[-1])
        assert value == pytest.approx(next(r["metrics"][title] for r in steps if title in r["metrics"]), rel=1e-3)
        card.locator(".remedy").click()
        assert page.evaluate("getSelection().toString().trim()") == "--set rl.optimizer.learning_rate=3e-04"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
