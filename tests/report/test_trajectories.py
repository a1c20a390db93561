"""Episodes on the page, in a real browser: whole conversations, filters of their own, and text that stays text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.runs import HOSTILE, make_run, read_rows
from verizero.pipeline.report.page import build_page

pytestmark = pytest.mark.integration
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
LONG = "row of a table\n" * 60
PLAYS: list[tuple[str, int, list[tuple[str, str, list[dict[str, Any]]]]]] = [
    ("done", 1, [("sum", LONG, [{"a": 27, "b": 58}]), ("", "", [])]),
    ("turns", 2, [("look", HOSTILE, [{"at": "shelf"}]), ("look", "nothing", [{"at": "door"}]), ("", "", [])]),
]
"""(ending, rows, (tool, result, arguments) of each turn)."""


def episode(row: dict[str, Any], number: int) -> dict[str, Any]:
    ending, rows, turns = PLAYS[number]
    messages: list[dict[str, Any]] = [{"role": "user", "text": row["prompt"]}]
    for k, (tool, result, calls) in enumerate(turns):
        turn = {"role": "assistant", "text": f"turn {k} of {number}", "tokens": 4 + k, "reward": k / 2, "version": 9}
        messages.append(turn | ({"calls": [{"name": tool, "arguments": c} for c in calls]} if calls else {}))
        messages += [{"role": "tool", "name": tool, "text": result}] if calls else []
    return row | {"sample": number, "ending": ending, "rows": rows, "messages": messages, "prompt_id": "played"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    run_dir: Path = make_run(tmp_path_factory.mktemp("runs") / "demo")
    path = run_dir / "rollouts.jsonl"
    last = read_rows(path)[-1]
    with path.open("a", encoding="utf-8", errors="surrogatepass") as file:
        file.writelines(json.dumps(episode(last, i), ensure_ascii=False) + "\n" for i in range(len(PLAYS)))
    build_page(run_dir)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 900})
        errors: list[str] = []
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        page.goto((run_dir / "report.html").as_uri())
        yield page
        browser.close()
    assert errors == []


def count(page: Any) -> int:
    return int(page.locator("#count").inner_text().split()[0])


def test_a_conversation_is_shown_whole_and_hostile_text_stays_text(page: Any) -> None:
    page.click("button[type=reset]")
    page.fill("[name=text]", "played")
    page.select_option("[name=ending]", "turns")
    assert count(page) == 1
    card = page.locator(".answer")
    assert "3 turns, ended: turns, 2 rows" in card.locator(".answer-head").inner_text()
    notes = card.locator(".conversation .own > .note").all_inner_texts()
    assert notes == [f"turn {k + 1} · {4 + k} tokens · reward {k / 2:g} · weights 9" for k in range(3)]
    assert card.locator(".call").all_inner_texts() == ['look(at: "shelf")', 'look(at: "door")']
    said = card.locator(".conversation .prompt").all_inner_texts()
    assert any("window.hacked" in text for text in said)
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_long_observations_are_folded_and_open(page: Any) -> None:
    page.click("button[type=reset]")
    page.select_option("[name=tool]", "sum")
    assert count(page) == 1
    fold = page.locator(".answer details")
    assert f"{len(LONG)} characters" in fold.locator("summary").inner_text()
    assert not fold.locator("pre").is_visible()
    fold.locator("summary").click()
    assert fold.locator("pre").inner_text().startswith("row of a table")


def test_episodes_are_found_by_turns_and_compared_as_conversations(page: Any) -> None:
    page.click("button[type=reset]")
    page.fill("[name=turns_from]", "2")
    assert count(page) == 2
    page.fill("[name=turns_to]", "2")
    assert count(page) == 1
    select = page.locator(".answer .compare select")
    select.select_option(index=1)
    gone = "".join(page.locator(".answer .diff del").all_inner_texts())
    new = "".join(page.locator(".answer .diff ins").all_inner_texts())
    assert "27" in gone
    assert "shelf" in new


def test_the_filters_of_episodes_are_large_enough_on_a_phone(page: Any) -> None:
    """44 pixels high, as phones' own guidelines ask."""
    heights = page.evaluate(
        "() => [...document.forms[0].elements].map((n) => [n.name, n.getBoundingClientRect().height])"
    )
    shown = {name: height for name, height in heights if height}
    assert {"ending", "tool", "turns_from", "turns_to"} <= set(shown)
    assert {name: height for name, height in shown.items() if height < 44} == {}
