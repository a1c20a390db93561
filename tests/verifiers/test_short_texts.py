"""A short answer is read whole: no reader cuts it at a colon, a dot, a slash, a sign or a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.verifiers.rows import CHOICE, EXACT, NUMERIC
from tests.verifiers.short_texts import KINDS, short_texts
from verizero.pipeline.types import Attempt
from verizero.verifiers.answer import final_answer
from verizero.verifiers.base import load

TEXTS = short_texts(2_000)
FORMS = (
    "{}",
    "The answer is {}.",
    "Answer: {}",
    "**Final answer:**\n\n{}",
    "#### {}",
    "\\boxed{{{}}}",
    "<answer>{}</answer>",
)
SENTENCES = {"sentence", "title", "quantity"}
"""Kinds with texts that state, ask or exclaim, which only the reference can tell from an answer in prose."""
GOLDS = list(
    dict.fromkeys(
        json.loads(line)["gold"] for line in Path(__file__).with_name("math").joinpath("labelled.jsonl").open()
    )
)


def written(form: str, text: str) -> str:
    """Return the text in a form of response; a text that ends a sentence gets no second dot."""
    return form.format(text).removesuffix("." if form.endswith(".") and text[-1] in ".!?" else "\0")


@pytest.mark.integration
@pytest.mark.parametrize("form", FORMS)
def test_every_short_text_is_right_against_itself(form: str) -> None:
    exact = load("exact").bind()
    verdicts = exact.score([Attempt(written(form, text), text) for text in TEXTS])
    missed = [(t, v.status, v.extracted) for t, v in zip(TEXTS, verdicts, strict=True) if not v.is_correct]
    assert missed == []


@pytest.mark.integration
def test_no_short_text_is_right_against_another_of_its_kind() -> None:
    """What is not cut is not taken for its own end: 17:05 is not 05."""
    exact = load("exact").bind()
    for kind in KINDS:
        texts = [text for text, of in TEXTS.items() if of == kind]
        others = [*texts[1:], texts[0]]
        attempts = [Attempt(text, other) for text, other in zip(texts, others, strict=True)]
        assert [a for a, v in zip(attempts, exact.score(attempts), strict=True) if v.is_correct] == []


@pytest.mark.integration
@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_is_no_sentence_is_read_whole_without_a_reference(form: str) -> None:
    """So a verifier of one's own, the vote of maj@k and the report see it whole too, wrong answers included."""
    for text in [text for text, kind in TEXTS.items() if kind not in SENTENCES]:
        answer = final_answer(Attempt(written(form, text), None))
        assert answer.text in (text, text.strip("*`$.")), (text, answer)


@pytest.mark.parametrize(
    ("response", "reference", "right"),
    [
        ("17:05", "17:05", True),
        ("17:05", "05", False),
        ("16:9", "9", False),
        ("x == 5", "5", False),
        ("SELECT a FROM t WHERE id = 5", "5", False),
        ("name: Ann", "Ann", False),
        ("$5 or $6", "$5 or $6", True),
        ("The answer is No. 5.", "No. 5", True),
        ("The answer is 17:05, as the sign says.", "17:05", False),
        ("We looked it up.\nThe answer is Dr. Who.", "Dr. Who", True),
        ("We looked it up. The train leaves at 17:05.", "05", False),
        ("The wrong answer is 17:05.", "17:05", False),
        ("If it were late, the answer would be 17:05", "17:05", False),
        ("<think>17:05</think>", "17:05", False),
        ("Answer:\n17:05\n18:05", "17:05", False),
        ("I don't know.", "I don't know.", True),
        ("line one: 1\nline two: 2", "line one: 1\nline two: 2", True),
        ("The answer is\nroses: red\nviolets: blue", "roses: red\nviolets: blue", True),
        ("9 p.m.", ["21:00", "9 p.m."], True),
    ],
)
def test_the_reference_itself_is_right_and_a_part_of_it_is_not(response: str, reference: Any, right: bool) -> None:
    verdict = load("exact").bind().score([Attempt(response, reference)])[0]
    assert verdict.is_correct is right, verdict


def test_a_cut_response_is_no_answer_though_it_is_the_reference_so_far() -> None:
    assert load("exact").bind().score([Attempt("17:05", "17:05", truncated=True)])[0].reason == "truncated"


@pytest.mark.parametrize("text", ["17:05", "Dr. Who", "Both A and B", "It is 5 m.", "None of the above.", "$5 or $6"])
def test_the_text_of_a_choice_is_read_whole(text: str) -> None:
    reference = {"answer": "B", "choices": ["other", text, "17", "Who"]}
    assert load("choice").bind().score([Attempt(text, reference)])[0].is_correct


@pytest.mark.integration
@pytest.mark.parametrize("form", ["{}", "The answer is {}."])
def test_every_gold_of_the_labelled_mathematics_is_right_against_itself(form: str) -> None:
    verdicts = load("math").bind().score([Attempt(form.format(gold), gold) for gold in GOLDS])
    assert [(g, v) for g, v in zip(GOLDS, verdicts, strict=True) if not v.is_correct] == []


def test_every_reference_of_labelled_rows_is_right_against_itself() -> None:
    rows = [row for row in (*CHOICE, *EXACT, *NUMERIC) if row[4] != "verifier_error" and "where" not in row[1]]
    for name, params, reference, _, _ in rows:
        answer = reference
        if isinstance(reference, dict):
            answer = reference.get("answer", reference.get("value"))
        answer = answer[0] if isinstance(answer, list) else "B" if name == "choice" and answer == 1 else str(answer)
        verdict = load(name).bind(params).score([Attempt(answer, reference)])[0]
        assert verdict.is_correct or verdict.reason.startswith("too_long"), (name, reference, verdict)
