"""Checkable instructions: each constraint on texts that keep it and texts that nearly do."""

import json
import re
from pathlib import Path

import pytest

from verizero.pipeline.types import Attempt
from verizero.verifiers import instructions as instructions_module
from verizero.verifiers.instructions import from_ifeval, instructions


def one(reference, text, prompt="", **params):
    return instructions.bind(params).score([Attempt(text, reference, prompt)])[0]


ROWS = list(map(json.loads, Path(__file__).with_name("instructions.jsonl").read_text(encoding="utf-8").splitlines()))
KEPT_AND_BROKEN = [(row["constraint"], row["kept"], row["broken"]) for row in ROWS if "constraint" in row]
IFEVAL = [(row["ifeval"], row["kwargs"], row["kept"], row["broken"]) for row in ROWS if "ifeval" in row]


@pytest.mark.parametrize(("constraint", "kept", "broken"), KEPT_AND_BROKEN)
def test_a_constraint_holds_where_kept_and_only_there(constraint, kept, broken):
    assert one([constraint], kept).score == 1.0, constraint
    assert one([constraint], broken).score == 0.0, constraint
    assert constraint["type"] in one([constraint], broken).reason


def test_all_or_their_share():
    wanted = [{"type": "words", "max": 3}, {"type": "case", "case": "lower"}, {"type": "without", "characters": "!"}]
    assert one(wanted, "just three words").score == 1.0
    assert one(wanted, "Just three words").score == 0.0
    assert one(wanted, "Just three words", grading="fraction").score == pytest.approx(2 / 3)


def test_the_prompt_can_be_asked_back():
    wanted = [{"type": "edges", "repeat_prompt": True}]
    assert one(wanted, "Say it.  Then go on. I do.", "Say it. Then go on.").score == 1.0
    assert one(wanted, "Say it. Then go on.", "Say it. Then go on.").score == 0.0


def test_a_flood_is_refused():
    """A pattern that is quadratic in the length would take hours here."""
    assert one([{"type": "words", "min": 1}], "a " * 500_000).score == 0.0
    for constraint, _, _ in KEPT_AND_BROKEN:
        for flood in ("*" * 50_000, "[" * 50_000, "<<" * 25_000, "a-" * 25_000, "\n" * 50_000, ". " * 25_000):
            one([constraint], flood)


def test_every_instruction_of_ifeval_has_a_row():
    assert {row[0] for row in IFEVAL} == set(instructions_module.IFEVAL)


@pytest.mark.parametrize(("instruction", "given", "kept", "broken"), IFEVAL)
def test_ifevals_instructions_are_understood(instruction, given, kept, broken):
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
        ([{"type": "first_word", "word": "don't"}], 'first_word.word: .* pattern .*, got "don\'t"'),
        ([{"type": "first_word", "word": " "}], "first_word.word"),
        ({"instruction_id_list": ["length:none"], "kwargs": [{}]}, "length:none"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}]}, "keywords"),
        ({"instruction_id_list": ["length_constraints:nth_paragraph_first_word"],
          "kwargs": [{"first_word": "a", "nth_paragraph": 1, "num_paragraphs": None}]}, "num_paragraphs"),
    ],
)  # fmt: skip
def test_broken_references_name_the_field(reference, named):
    said = one(reference, "text")
    assert said.status == "verifier_error"
    assert re.search(named, said.reason)
