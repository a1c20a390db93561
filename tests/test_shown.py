"""What others wrote is shown as text in each medium: its characters, and no effect of them."""

import json
import logging
import sys
from contextlib import closing
from io import StringIO
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shown_texts import HIDDEN, TEXTS, Reader, rendered
from verizero.pipeline.checks.finding import Evidence, Finding
from verizero.pipeline.commands import chat
from verizero.pipeline.commands.diagnose import _paragraph
from verizero.pipeline.launch import Tail
from verizero.pipeline.report.progress import Bars, Lines
from verizero.pipeline.shown import (
    in_html,
    in_json,
    in_markdown,
    one_line,
    show,
    show_exceptions,
    visible,
)
from verizero.pipeline.types import Message

each_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
marked_text = st.text(st.sampled_from("`|\\*_[]()<>!#&~-+=.:/@w1aü \n\t\x1b\u202e"))


def assert_harmless(shown):
    assert not set(HIDDEN) & set(shown), ascii(shown)
    shown.encode()


def test_hidden_characters_are_escapes_and_others_stay():
    assert visible("\x1b[2J\r\x9b\u202e\ud800\U000e0041") == r"\x1b[2J\r\x9b\u202e\ud800\U000e0041"
    assert one_line("a\nb") == r"a\nb"
    for text in ("a\n\tb", "日本語 עברית 👩\u200d🔬 é\u00a0—", r"\frac{1}{2} \x1b"):
        assert visible(text) == text


@each_text
def test_in_markdown_a_text_makes_no_tag(text):
    for before, after, tags in (("", "", {"p"}), ("**Alarm.** ", "", {"p", "strong"}), ("# ", " x", {"h1"})):
        page = rendered(f"{before}{in_markdown(text)}{after}\n\n")
        assert set(page.names) - {"code"} == tags, page.names
        assert page.text.strip("\n") == before.strip("#* ") + " " * bool(before.strip("# ")) + one_line(text) + after
        assert_harmless(page.text)


@each_text
def test_in_markdown_a_text_fills_one_cell(text):
    cells = ["x", in_markdown(text), "y"]
    page = rendered("\n".join(f"| {' | '.join(row)} |" for row in (["a", "b", "c"], ["---"] * 3, cells)))
    assert set(page.names) - {"code"} == {"table", "thead", "tbody", "tr", "th", "td"}
    assert page.cells == ["a", "b", "c", "x", one_line(text), "y"]


@each_text
def test_in_html_a_text_is_text_and_one_attribute(text):
    for quote in "\"'":
        page = Reader(f"<p title={quote}{in_html(text)}{quote}>{in_html(text)}</p>")
        assert page.tags == [("p", {"title": visible(text)})]
        assert page.text == visible(text)


@each_text
def test_as_json_a_text_is_the_same_for_a_program(text):
    assert json.loads(in_json([text])) == [text]
    assert in_json([text]).isprintable()


@settings(max_examples=300)
@given(marked_text)
def test_any_text_of_marks_is_shown_as_it_is(text):
    page = rendered(f"| a |\n| --- |\n| {in_markdown(text)} |\n\n{in_markdown(text)}")
    assert set(page.names) <= {"table", "thead", "tbody", "tr", "th", "td", "p", "code"}
    assert page.names.count("td") == 1
    assert not any(link in in_markdown(text) and "`" not in in_markdown(text) for link in ("://", "www.", "@"))


@each_text
def test_a_terminal_gets_no_command_of_a_policy(text, capsys):
    show(text)
    show(text, is_error=True)
    policy = SimpleNamespace(can_continue=True, answer=lambda *_: (Message("assistant", text), False))
    chat._answer("model", policy, [], "hello", 1, True)
    evidence = Evidence("rollouts.jsonl", 1, text)
    show(_paragraph(Finding(0.5, text, (evidence,), text, cause="cause")))
    out = StringIO()
    Lines(out).say(text)
    assert len(out.getvalue().splitlines()) == 1
    written = capsys.readouterr()
    for shown in (written.out, written.err, out.getvalue()):
        assert_harmless(shown)
    assert visible(text) in written.out
    assert f"    rollouts.jsonl:1  {one_line(text)}" in written.out


def test_bars_show_text_and_not_their_own_marks(monkeypatch):
    shown = StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with closing(Bars()) as bars:
        bars.begin("[red]rl[/red] :smile: \x1b[2J", 0, 2)
        bars.say("[bold]a[/bold] :smile: \x1b]0;owned\x07")
        bars.advance(1, {"pass/[link=x]": 1.0})
    assert r"[red]rl[/red] :smile: \x1b[2J" in shown.getvalue()
    assert r"[bold]a[/bold] :smile: \x1b]0;owned\x07" in shown.getvalue()
    assert "pass/[link=x]" in shown.getvalue()


def test_tracebacks_log_lines_and_logs_of_ranks_are_shown_as_text(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    show_exceptions()
    try:
        raise ValueError("a\x1b[2J")
    except ValueError as exc:
        sys.excepthook(type(exc), exc, exc.__traceback__)
    logging.lastResort.handle(logging.LogRecord("x", logging.ERROR, "f", 1, "b\x1b[%s", ("3J",), None))
    (tmp_path / "rank0.log").write_bytes(b"c\x1b[4J\xff\n")
    Tail(tmp_path / "rank0.log", 0).show()
    written = capsys.readouterr().err
    assert_harmless(written)
    assert all(text in written for text in (r"ValueError: a\x1b[2J", r"b\x1b[3J", r"c\x1b[4J"))
