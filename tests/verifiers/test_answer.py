"""Extraction: where the answer is taken from, why there is none, and that the time is linear."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verifiers.mathematics.extract import MAX_TAIL, extract

FOUND = [
    (r"\boxed{42}", "42", "boxed"),
    (r"\boxed{1} and then \boxed{42}", "42", "boxed"),
    (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}", "boxed"),
    (r"\boxed{\{1,2\}}", r"\{1,2\}", "boxed"),
    (r"\boxed{1}, \boxed{2}", "1, 2", "boxed"),
    (r"$\boxed{1}$ or $\boxed{2}$", r"1 \text{ or } 2", "boxed"),
    (r"\boxed{7}, that is \boxed{7}", "7", "boxed"),
    (r"\boxed 42", "42", "boxed"),
    (r"\fbox{42}", "42", "boxed"),
    (r"<think>\boxed{1}</think>\boxed{2}", "2", "boxed"),
    ("<answer> 42 </answer>", "42", "answer_tag"),
    ("The answer is 42.", "42.", "cue"),
    ("#### 1,200", "1,200", "cue"),
    ("Answer: 1\nAnswer: 42", "42", "cue"),
    ("La réponse est 3,5.", "3,5.", "cue"),
    ("The answer is 42 because 6 times 7 is 42.", "42", "cue"),
    ("We have 40 and 2. Thus, x = 42.", "x = 42.", "conclusion"),
    ("Hence the area is $25\\pi$.", "25\\pi", "conclusion"),
    ("x^2", "x^2", "whole"),
]
NOT_FOUND = [
    ("<think>\\boxed{42}", "unclosed_thinking"),
    ("<think>\\boxed{42}</think>", "empty_answer"),
    ("<think>a</think>\\boxed{42} <think>", "unclosed_thinking"),
    ("", "empty_answer"),
    ("\\boxed{42", "unclosed_box"),
    ("\\boxed{1} so \\boxed{42", "unclosed_box"),
    ("\\boxed{}", "empty_box"),
    ("The answer is", "empty_cue"),
    ("<answer>42", "unclosed_answer_tag"),
    ("We find 6*7 = 42, and so the", "no_conclusion"),
    ("Is it 42?", "no_conclusion"),
    ("If it were 42 we would be done.", "no_conclusion"),
    ("I do not know. The problem says 42.", "no_conclusion"),
]


@pytest.mark.parametrize(("response", "text", "reason"), FOUND)
def test_found(response: str, text: str, reason: str) -> None:
    found = extract(response)
    assert (found.text, found.reason) == (text, reason)


@pytest.mark.parametrize(("response", "reason"), NOT_FOUND)
def test_not_found(response: str, reason: str) -> None:
    found = extract(response)
    assert (found.text, found.reason) == (None, reason)


def test_a_truncated_response_answers_only_in_a_closed_box_or_tag() -> None:
    assert extract("The answer is 42", truncated=True).reason == "truncated"
    assert extract("\\boxed{42} and", truncated=True).text == "42"
    assert extract("<answer>42</answer>", truncated=True).text == "42"


def test_thinking_that_the_prompt_opened_must_be_closed() -> None:
    assert extract("so \\boxed{42}", prompt="2+40?<think>").reason == "unclosed_thinking"
    assert extract("so</think>\\boxed{42}", prompt="2+40?<think>").text == "42"


BALANCED = st.recursive(
    st.text("abc123+-= ,\\;", max_size=8).filter(lambda s: not s.endswith("\\")),
    lambda inner: st.tuples(inner, inner).map(lambda pair: pair[0] + "{" + pair[1] + "}"),
    max_leaves=8,
)


@given(before=st.text("ab. {}$", max_size=30), content=BALANCED)
def test_any_balanced_content_is_taken_from_the_last_box(before: str, content: str) -> None:
    content = content.replace("\\", "").strip()
    found = extract(f"{before} \\boxed{{9}}. So \\boxed{{{content}}}.")
    assert found.text == content if content else found.reason == "empty_box"


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_found_or_given_a_reason(text: str) -> None:
    found = extract(text)
    assert found.reason
    assert found.text is None or found.text.strip()


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "1, ", "(", "$", "is ", "<think>", "The answer is ", "a. ", "\\boxed{1} or "]
)
def test_time_does_not_grow_with_what_stands_before_the_tail(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        start = time.thread_time()
        extract(text)
        return time.thread_time() - start

    assert seconds(50 * MAX_TAIL) < 20 * seconds(MAX_TAIL) + 0.05
