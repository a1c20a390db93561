"""The page in a real browser: it renders without an error, hovers, filters, compares, and fits a narrow screen."""

import functools
import json
import re
from contextlib import contextmanager

import pytest

from tests.report.runs import HOSTILE, make_run, read_rows
from verizero.pipeline.report.page import build_page
from verizero.pipeline.shown import visible

pytestmark = pytest.mark.run
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


@pytest.fixture(scope="module")
def open_contexts(chromium):
    """Contexts by scheme and width, made once: to start a renderer costs much, and the report stores nothing."""

    @functools.cache
    def context_of(scheme, width):
        context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        context.new_page()  # keeps the renderer
        return context

    return context_of


LOOKS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
BOTH = [LOOKS[0], LOOKS[3]]
"""Both schemes and both widths: what a page does depends on one of them at most."""


def name_of(look):
    return f"{look[0]}-{look[1]}"


@pytest.fixture(params=BOTH, ids=name_of)
def page(request, open_contexts, run_dir):
    with shown(open_contexts(*request.param), run_dir) as page:
        yield page


@contextmanager
def shown(context, run_dir):
    """The report of a run; the test fails if the page logs an error or asks for anything but itself."""
    page = context.new_page()
    errors = []
    asked = []
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: asked.append(r.url))
    page.goto((run_dir / "report.html").as_uri())
    yield page
    page.close()
    assert errors == []
    assert [url for url in asked if not url.startswith("data:")] == [(run_dir / "report.html").as_uri()]


def count(page):
    return int(page.locator("#count").inner_text().split()[0])


@pytest.mark.parametrize("page", LOOKS, ids=name_of, indirect=True)
def test_it_renders_in_light_and_dark_and_fits(page):
    assert page.title() == "demo"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".plot svg").count() == page.evaluate("JSON.parse(data.textContent).charts.length") == 9
    assert page.evaluate("window.hacked") is None
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) == 4
    assert min(ratios) >= 4.5


def test_filters_show_what_the_files_hold(page, run_dir):
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


def test_two_answers_to_one_prompt_are_compared(page):
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


def test_a_curve_shows_its_values_under_the_pointer(page, run_dir):
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


def test_everything_that_is_touched_is_large_enough_on_a_phone(page):
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


LONG = "row of a table\n" * 60
PLAYS = [
    ("done", 1, [("sum", LONG, [{"a": 27, "b": 58}]), ("", "", [])]),
    ("turns", 2, [("look", HOSTILE, [{"at": "shelf"}]), ("look", "nothing", [{"at": "door"}]), ("", "", [])]),
]
"""(ending, rows, (tool, result, arguments) of each turn)."""


def episode(row, number):
    ending, rows, turns = PLAYS[number]
    messages = [{"role": "user", "text": row["prompt"]}]
    for k, (tool, result, calls) in enumerate(turns):
        turn = {"role": "assistant", "text": f"turn {k} of {number}", "tokens": 4 + k, "reward": k / 2, "version": 9}
        messages.append(turn | ({"calls": [{"name": tool, "arguments": c} for c in calls]} if calls else {}))
        messages += [{"role": "tool", "name": tool, "text": result}] if calls else []
    return row | {"sample": number, "ending": ending, "rows": rows, "messages": messages, "prompt_id": "played"}


@pytest.fixture
def played(open_contexts, tmp_path):
    run_dir = make_run(tmp_path / "demo")
    path = run_dir / "rollouts.jsonl"
    last = read_rows(path)[-1]
    with path.open("a", encoding="utf-8", errors="surrogatepass") as file:
        file.writelines(json.dumps(episode(last, i), ensure_ascii=False) + "\n" for i in range(len(PLAYS)))
    build_page(run_dir)
    with shown(open_contexts("light", 390), run_dir) as page:
        yield page


def test_a_conversation_is_shown_whole_and_hostile_text_stays_text(played):
    played.click("button[type=reset]")
    played.fill("[name=text]", "played")
    played.select_option("[name=ending]", "turns")
    assert count(played) == 1
    card = played.locator(".answer")
    assert "3 turns, ended: turns, 2 rows" in card.locator(".answer-head").inner_text()
    notes = card.locator(".conversation .own > .note").all_inner_texts()
    assert notes == [f"turn {k + 1} · {4 + k} tokens · reward {k / 2:g} · weights 9" for k in range(3)]
    assert card.locator(".call").all_inner_texts() == ['look(at: "shelf")', 'look(at: "door")']
    said = card.locator(".conversation .prompt").all_inner_texts()
    assert any("window.hacked" in text for text in said)
    assert played.evaluate("window.hacked") is None
    assert played.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_episodes_are_found_by_turns_and_compared_as_conversations(played):
    played.click("button[type=reset]")
    played.fill("[name=turns_from]", "2")
    assert count(played) == 2
    played.fill("[name=turns_to]", "2")
    assert count(played) == 1
    select = played.locator(".answer .compare select")
    select.select_option(index=1)
    gone = "".join(played.locator(".answer .diff del").all_inner_texts())
    new = "".join(played.locator(".answer .diff ins").all_inner_texts())
    assert "27" in gone
    assert "shelf" in new
