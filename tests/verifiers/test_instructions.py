"""Checkable instructions: each constraint on texts that keep it and texts that nearly do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.instructions import from_ifeval, instructions

THREE_BULLETS = "Here:\n- one\n- two\n* three"
POEM = "Roses are red.\n\nViolets are blue!\n\nSugar is sweet?"


def one(reference: Any, text: str, prompt: str = "", **params: Any) -> Verdict:
    return instructions.bind(params).score([Attempt(text, reference, prompt)])[0]


KEPT_AND_BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "words", "min": 3, "max": 3}, "one well-known word", "one word"),
    ({"type": "words", "max": 2}, "it's fine", "it is fine"),
    ({"type": "sentences", "min": 2}, "Yes. It is 3.5 m long.", "Pi is 3.14 or so."),
    ({"type": "sentences", "max": 1}, 'He said "no."', "No. Never."),
    ({"type": "paragraphs", "min": 3, "max": 3}, POEM, POEM.replace("\n\n", "\n")),
    ({"type": "lines", "max": 1}, "one line", "two\nlines"),
    ({"type": "characters", "max": 5}, "  abcde ", "abcdef"),
    ({"type": "bullets", "min": 3, "max": 3}, THREE_BULLETS, THREE_BULLETS + "\n- four"),
    ({"type": "bullets", "min": 2}, "1. a\n2. b", "1.a and 2.b\n-c"),
    ({"type": "placeholders", "min": 2}, "[name] lives at [address]", "[name] lives at []"),
    ({"type": "highlights", "min": 2}, "*one* and **two**", "*one* and 2 * 3 "),
    ({"type": "keywords", "include": ["cat", "dog"]}, "A dog, a CAT.", "Dogs and cats."),
    ({"type": "keywords", "exclude": ["cat"]}, "concatenate", "The cat."),
    ({"type": "keywords", "include": ["New York"], "times": 2}, "New York, new\nYork", "New York"),
    ({"type": "keywords", "include": ["so"], "times": 0, "at_most": 1}, "so it is", "so and so"),
    ({"type": "letters", "letter": "e", "max": 1}, "An egg", "Every egg"),
    ({"type": "letters", "letter": "Q", "min": 2}, "quick Quiz", "quick"),
    ({"type": "case", "case": "upper"}, "ALL 3 LOUD", "ALL 3 LOUDe"),
    ({"type": "case", "case": "lower"}, "quiet, 3 times", "Quiet"),
    ({"type": "case", "capital_words_min": 2}, "NASA and ESA", "NASA and Esa"),
    ({"type": "edges", "start": "Dear", "end": "Yours"}, "dear Sir, I am\nYours", "Yours, dear"),
    ({"type": "edges", "quoted": True}, '"All of it"', '"All" of it'),
    ({"type": "without", "characters": ",;"}, "none here", "one, here"),
    ({"type": "json"}, '```json\n{"a": [1]}\n```', "{'a': 1}"),
    ({"type": "sections", "marker": "Section", "count": 2}, "Section 1\na\nSection 2\nb", "Section 1\nsection on 2"),
    ({"type": "sections", "separator": "***", "count": 2}, "a\n***\nb", "a\n***\n"),
    ({"type": "sections", "separator": "***", "count": 2, "distinct": True}, "a***b", "a***a"),
    ({"type": "title"}, "<<A day>>\nIt rained.", "<< >>\n<A day>"),
    ({"type": "postscript"}, "Bye.\nP.S. I forgot", "Bye, P.S."),
    ({"type": "one_of", "phrases": ["My answer is yes."]}, "my answer is yes", "My answer is yes, I think"),
    ({"type": "first_word", "word": "violets", "paragraph": 2, "paragraphs": 3}, POEM, POEM.replace("Violets", "A")),
    ({"type": "language", "code": "de"}, "Das ist nicht die Antwort auf die Frage.", "This is not the answer."),
]


@pytest.mark.parametrize(("constraint", "kept", "broken"), KEPT_AND_BROKEN)
def test_a_constraint_holds_where_kept_and_only_there(constraint: dict[str, Any], kept: str, broken: str) -> None:
    assert one([constraint], kept).score == 1.0, constraint
    assert one([constraint], broken).score == 0.0, constraint
    assert constraint["type"] in one([constraint], broken).reason


def test_every_kind_of_constraint_is_tested() -> None:
    from typing import get_args

    from verizero.verifiers._constraints import AnyConstraint

    kinds = {
        t for model in get_args(get_args(AnyConstraint)[0]) for t in get_args(model.model_fields["type"].annotation)
    }
    assert kinds == {c["type"] for c, _, _ in KEPT_AND_BROKEN}


def test_all_or_their_share() -> None:
    wanted = [{"type": "words", "max": 3}, {"type": "case", "case": "lower"}, {"type": "without", "characters": "!"}]
    assert one(wanted, "just three words").score == 1.0
    assert one(wanted, "Just three words").score == 0.0
    assert one(wanted, "Just three words", grading="fraction").score == pytest.approx(2 / 3)


def test_the_prompt_can_be_asked_back() -> None:
    wanted = [{"type": "edges", "repeat_prompt": True}]
    assert one(wanted, "Say it.  Then go on. I do.", "Say it. Then go on.").score == 1.0
    assert one(wanted, "Say it. Then go on.", "Say it. Then go on.").score == 0.0


def test_only_what_follows_thinking_counts_and_nothing_is_no_answer() -> None:
    assert one([{"type": "words", "max": 2}], "<think>many words in here</think>Two words").score == 1.0
    for empty in ("", " \n", "<think>words</think>", "<think>words"):
        assert one([{"type": "without", "characters": ","}], empty).status == "no_answer"


def test_a_flood_is_refused() -> None:
    """A pattern that is quadratic in the length would take hours here."""
    assert one([{"type": "words", "min": 1}], "a " * 500_000).score == 0.0
    for constraint, _, _ in KEPT_AND_BROKEN:
        for flood in ("*" * 50_000, "[" * 50_000, "<<" * 25_000, "a-" * 25_000, "\n" * 50_000, ". " * 25_000):
            one([constraint], flood)


IFEVAL: list[tuple[str, dict[str, Any], str, str]] = [
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "two words", "one two three"),
    ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "at least"}, "a b a", "a b"),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 1, "let_relation": "less than"}, "abc", "zoo"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 3}, THREE_BULLETS, "- one"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("change_case:english_lowercase", {}, "low", "Low"),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "at least"}, "AN a", "an a"),
    ("punctuation:no_comma", {}, "no comma", "a, comma"),
    ("combination:two_responses", {}, "a\n******\nb", "a"),
    ("startend:quotation", {}, '"so"', "so"),
    ("detectable_format:title", {}, "<<T>>\nx", "T"),
    ("language:response_language", {"language": "ru"}, "Это ответ на вопрос.", "An answer to the question."),
]


@pytest.mark.parametrize(("instruction", "given", "kept", "broken"), IFEVAL)
def test_ifevals_instructions_are_understood(instruction: str, given: dict[str, Any], kept: str, broken: str) -> None:
    reference = {"instruction_id_list": [instruction], "kwargs": [given]}
    assert one(reference, kept).score == 1.0
    assert one(reference, broken).score == 0.0
    assert from_ifeval(instruction, {**given, "unused": None}) == from_ifeval(instruction, given)


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ([], "reference"),
        (None, "reference"),
        ([{"type": "wrods", "min": 3}], "wrods"),
        ([{"type": "words"}], "min"),
        ([{"type": "words", "min": 5, "max": 2}], "max 2.*min 5"),
        ([{"type": "words", "min": 1, "mox": 2}], "mox"),
        ([{"type": "language", "code": "xx"}], "xx"),
        ({"instruction_id_list": ["length:none"], "kwargs": [{}]}, "length:none"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}]}, "keywords"),
    ],
)
def test_broken_references_name_the_field(reference: Any, named: str) -> None:
    said = one(reference, "text")
    assert said.status == "verifier_error"
    assert re.search(named, said.reason)
