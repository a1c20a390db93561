"""A short answer is read whole: no reader cuts it at a colon, a dot, a slash, a sign or a word."""

import json
import random
from pathlib import Path

import pytest

from tests.verifiers.rows import WITHOUT_SANDBOX
from verizero.pipeline.types import Attempt
from verizero.verifiers.answer import final_answer
from verizero.verifiers.base import load

WORDS = "amber birch cedar delta ember fjord grove heron islet jetty kelp lotus maple north ocean pearl"
NAMES = "Ada Bo Curie Dana Erik Fay Gauss Hana Ida Jules Kepler Lina Mary Noor Otto Pia"
ATOMS = "H C N O Na Cl Fe Ca Mg S P K"
UNITS = "km m cm kg g mg s min h km/h m/s °C kWh MB Hz % N·m mol/L m² ft lbs"
NUMBERS = {"n": (2, 999), "m": (2, 99), "d": (2, 9), "t": (1, 12), "y": (1900, 2099)}
NUMBERS |= {"h": (0, 23), "k": (0, 23), "i": (0, 59), "j": (0, 59)}

ROWS = map(json.loads, Path(__file__).with_name("short_texts.jsonl").read_text(encoding="utf-8").splitlines())
KINDS: dict[str, list[str]] = {row["kind"]: row["templates"] for row in ROWS}
"""Kind -> templates of its texts."""


def short_texts(count, seed=0):
    """Return `count` different texts, each with its kind, in turn from every kind."""
    chance = random.Random(seed)
    made: dict[str, str] = {}
    while len(made) < count:
        for kind, choices in KINDS.items():
            fields: dict[str, int | str] = {name: chance.randint(*span) for name, span in NUMBERS.items()}
            for names, words in (("ab", WORDS), ("PQ", NAMES), ("AB", ATOMS), ("u", UNITS)):
                fields |= dict(zip(names, chance.sample(words.split(), len(names)), strict=True))
            made.setdefault(chance.choice(choices).format(**fields), kind)
    return dict(list(made.items())[:count])


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


def written(form, text):
    """Return the text in a form of response; a text that ends a sentence gets no second dot."""
    return form.format(text).removesuffix("." if form.endswith(".") and text[-1] in ".!?" else "\0")


@pytest.mark.run
@pytest.mark.parametrize("form", FORMS)
def test_every_short_text_is_right_against_itself(form):
    exact = load("exact").bind()
    verdicts = exact.score([Attempt(written(form, text), text) for text in TEXTS])
    missed = [(t, v.status, v.extracted) for t, v in zip(TEXTS, verdicts, strict=True) if not v.is_correct]
    assert missed == []


@pytest.mark.run
def test_no_short_text_is_right_against_another_of_its_kind():
    """What is not cut is not taken for its own end: 17:05 is not 05."""
    exact = load("exact").bind()
    for kind in KINDS:
        texts = [text for text, of in TEXTS.items() if of == kind]
        others = [*texts[1:], texts[0]]
        attempts = [Attempt(text, other) for text, other in zip(texts, others, strict=True)]
        assert [a for a, v in zip(attempts, exact.score(attempts), strict=True) if v.is_correct] == []


@pytest.mark.run
@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_is_no_sentence_is_read_whole_without_a_reference(form):
    """So a verifier of one's own, the vote of maj@k and the report see it whole too, wrong answers included."""
    for text in [text for text, kind in TEXTS.items() if kind not in SENTENCES]:
        answer = final_answer(Attempt(written(form, text), None))
        assert answer.text in (text, text.strip("*`$.")), (text, answer)


@pytest.mark.parametrize("text", ["17:05", "Dr. Who", "Both A and B", "It is 5 m.", "None of the above.", "$5 or $6"])
def test_the_text_of_a_choice_is_read_whole(text):
    reference = {"answer": "B", "choices": ["other", text, "17", "Who"]}
    assert load("choice").bind().score([Attempt(text, reference)])[0].is_correct


@pytest.mark.run
@pytest.mark.parametrize("form", ["{}", "The answer is {}."])
def test_every_gold_of_the_labelled_mathematics_is_right_against_itself(form):
    verdicts = load("math").bind().score([Attempt(form.format(gold), gold) for gold in GOLDS])
    assert [(g, v) for g, v in zip(GOLDS, verdicts, strict=True) if not v.is_correct] == []


def test_every_reference_of_labelled_rows_is_right_against_itself():
    rows = [row for row in WITHOUT_SANDBOX if row[0] in ("choice", "exact", "numeric")]
    rows = [row for row in rows if row[4] != "verifier_error" and "where" not in row[1]]
    for name, params, reference, _, _ in rows:
        answer = reference
        if isinstance(reference, dict):
            answer = reference.get("answer", reference.get("value"))
        answer = answer[0] if isinstance(answer, list) else "B" if name == "choice" and answer == 1 else str(answer)
        verdict = load(name).bind(params).score([Attempt(answer, reference)])[0]
        assert verdict.is_correct or verdict.reason.startswith("too_long"), (name, reference, verdict)
