"""The one reader of answers: the place of the answer, the reason for its absence, and agreement of all verifiers."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verizero.pipeline.fences import blocks_in
from verizero.pipeline.types import Attempt
from verizero.verifiers.answer import MAX_TAIL, after_thinking, final_answer, is_blank, last_box
from verizero.verifiers.answer.words import CUES
from verizero.verifiers.base import load as load_verifier

load = lru_cache(load_verifier)


def _rows(name):
    return list(map(json.loads, Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()))


MARKED = [(row["response"], row["written"], row["reason"]) for row in _rows("answers.jsonl")]
MARKED.append(("9" * 5_000, "9" * 5_000, "whole"))
"""(response, its answer as it is written or None, the mark of the answer or the reason for its absence)"""
THOUGHTS = [(row["response"], row["outcome"]) for row in _rows("thoughts.jsonl")]
"""(a response with thinking around @, True if @ is answered, False if thinking is unclosed, None if nothing follows)"""

GAME = {"numbers": [42], "target": 42}
READERS: dict[str, tuple[dict[str, Any], Any]] = {
    "math": ({}, "42"),
    "exact": ({}, "42"),
    "numeric": ({}, 42),
    "choice": ({}, "B"),
    "countdown": ({}, GAME),
}
"""Verifier -> (parameters, reference) of each verifier that compares one final answer."""
RIGHT = {"choice": "B"}
"""The right answer of a verifier, if it is not 42."""


def read(response, prompt="", truncated=False):
    return final_answer(Attempt(response, None, prompt, truncated))


def verdict(name, response, prompt="", truncated=False):
    params, reference = READERS[name]
    attempt = Attempt(response, reference, prompt, truncated)
    return load(name).bind(params).score([attempt])[0]


@pytest.mark.parametrize(("response", "written", "reason"), MARKED)
def test_an_answer_is_taken_from_its_mark_or_there_is_a_reason(response, written, reason):
    answer = read(response)
    assert (answer.written or None, answer.reason) == (written, reason)
    assert answer.text == (written and written.removesuffix("."))


@pytest.mark.parametrize("name", READERS)
def test_every_verifier_finds_an_answer_or_the_same_reason(name):
    """Whatever a verifier makes of a final answer, it finds one exactly if the reader does, and names its reason."""
    thoughts = [thought.replace("@", box) for thought, _ in THOUGHTS for box in ("\\boxed{42}", "The answer is 42")]
    for response in [row[0] for row in MARKED] + thoughts:
        for truncated in (False, True):
            answer, graded = read(response, truncated=truncated), verdict(name, response, truncated=truncated)
            if answer.text is None:
                assert (graded.status, graded.reason) == ("no_answer", answer.reason), response
            else:
                assert graded.status == "graded" or graded.reason == "no_choice", (response, graded)


@pytest.mark.parametrize("name", [name for name in READERS if name != "choice"])
@pytest.mark.parametrize(
    "response",
    ["\\boxed{42}", "\\boxed 42", "<answer>42</answer>", "The answer is 42.", "The answer should be 42", "#### 42",
     "**Answer:** 42", "Answer:\n42", '{"answer": 42}', "So it goes. Thus the total is 42.", "$42$", "42"]
    + [f"<answer>{cue} 42</answer>" for cue in ("Die Antwort ist", "La respuesta es", "答案是", "Ответ:", "정답은")],
)  # fmt: skip
def test_a_right_answer_is_right_under_every_verifier(name, response):
    assert verdict(name, response).is_correct, verdict(name, response)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(("thought", "outcome"), THOUGHTS)
def test_thinking_is_cut_alike_in_both_spellings(name, thought, outcome):
    answer = RIGHT.get(name, "42")
    got = verdict(name, thought.replace("@", f"\\boxed{{{answer}}}"))
    if outcome:
        assert got.is_correct, got
    else:
        reason = "empty_answer" if outcome is None else "unclosed_thinking"
        assert (got.status, got.reason) == ("no_answer", reason)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("opening", ["<think>", "<thinking>"])
def test_thinking_that_the_prompt_opened_must_be_closed(name, opening):
    prompt, answer = f"2+40?{opening}\n", RIGHT.get(name, "42")
    assert verdict(name, f"so \\boxed{{{answer}}}", prompt).reason == "unclosed_thinking"
    assert verdict(name, f"so</think>\\boxed{{{answer}}}", prompt).is_correct


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "response",
    ["\\boxed{@}, \\boxed{#}", "\\boxed{#} or \\boxed{@}", "\\boxed{@} or #", "either # or \\boxed{@}",
     "Answer:\n@\n#", "**Final answer:**\n\n@\n#\n", "\\boxed{@}\\boxed{#}"],
)  # fmt: skip
def test_two_candidates_are_no_answer_under_any_verifier(name, response):
    right, wrong = RIGHT.get(name, "42"), {"choice": "C"}.get(name, "43")
    graded = verdict(name, response.replace("@", right).replace("#", wrong))
    assert (graded.status, graded.score) == ("graded", 0.0)


@pytest.mark.parametrize("name", READERS)
def test_a_cut_response_answers_only_in_a_closed_box_or_tag(name):
    answer = RIGHT.get(name, "42")
    for mark in (f"\\boxed{{{answer}}} and", f"<answer>{answer}</answer>"):
        assert verdict(name, mark, truncated=True).is_correct
    for mark in (f"The answer is {answer}", answer, f"#### {answer}", f"Thus it is ${answer}$."):
        assert verdict(name, mark, truncated=True).reason == "truncated"


def test_other_readers_cut_thinking_alike():
    """Verifiers that read more than one final answer (programs, JSON) start after the same thinking."""
    rows: list[tuple[str, Any, str]] = [
        ("json_schema", {"equals": 42}, "42"),
        ("instructions", [{"type": "words", "max": 3}], "three short words"),
    ]
    for name, reference, right in rows:
        for thought, outcome in THOUGHTS:
            if "@" not in thought.rsplit(">2", 1)[-1] or "3</think>" in thought:
                continue
            got = load(name).bind().score([Attempt(thought.replace("@", right), reference)])[0]
            reason = {True: got.reason, False: "unclosed_thinking", None: "empty_answer"}[outcome]
            assert (got.status, got.reason) == ("graded" if outcome else "no_answer", reason), (name, thought)


@pytest.mark.parametrize("language", CUES)
def test_every_language_announces(language):
    """Each pattern's first words, spelled out, announce an answer to all verifiers."""
    import re

    from hypothesis.strategies import from_regex

    pattern = re.compile(CUES[language].split("|\\b")[0], re.IGNORECASE)
    cue = from_regex(pattern, fullmatch=True).filter(lambda s: "\n" not in s and pattern.fullmatch(s))

    @settings(max_examples=5, database=None, derandomize=True)
    @given(cue)
    def check(announcement):
        answer = read(f"{announcement} 42")
        assert (answer.text, answer.reason, answer.other_language) == ("42", "cue", True), announcement

    check()


@given(st.text("ab{}\\$ ,.or", max_size=40), st.text("ab{}", max_size=10))
def test_the_last_box_is_the_box_that_a_slow_scan_finds(before, inside):
    """A box is closed where its braces balance, counted character by character; escaped braces do not count."""
    depths = [inside[:i].count("{") - inside[:i].count("}") for i in range(len(inside) + 1)]
    balanced = depths[-1] == 0 and min(depths) == 0
    answer = last_box(before.replace("boxed", "").replace("\\", "") + " \\boxed{" + inside + "} so it is")
    if balanced:
        assert answer.text == inside.strip() if inside.strip() else answer.reason == "empty_box"


@given(st.text("<>/think answer\n42ing", max_size=60))
def test_the_part_after_thinking_holds_no_thinking(text):
    part = after_thinking(Attempt(text, None))
    if part.text is not None:
        assert not any(tag in part.text for tag in ("<think>", "</think>", "<thinking>", "</thinking>"))
        assert text.rstrip().endswith(part.text)


@given(st.text(max_size=300))
def test_any_text_has_an_answer_or_a_reason(text):
    answer = read(text)
    assert answer.reason
    assert answer.text is None or not is_blank(answer.written)


@pytest.mark.parametrize("piece", ["\\boxed{", "1, ", "(", "$", "is ", "The answer is ", "a. ", "\\boxed{1} or "])
def test_nothing_before_the_tail_is_read(piece):
    """The bound on the time of the reader, whatever the length of a response."""
    tail = (piece * MAX_TAIL)[-MAX_TAIL:]
    assert read(piece * MAX_TAIL + tail) == read(tail)


@pytest.mark.parametrize(
    "piece",
    ["\\boxed{", "{", "}", "<think>", "</think>", "```\n", "answer is ", "#### ", "\\", "```python\n", "'''\n```\n",
     "x```\n", "`", "~", '"""', "so: ```py\nx```\n"],
)  # fmt: skip
def test_a_megabyte_is_read(piece):
    """A scan that is quadratic in the length would take hours here."""
    flood = piece * (1_000_000 // len(piece))
    read(flood)
    blocks_in(flood)
    last_box(flood)
