"""Tasks for pretrained models: JSON out of sentences, and texts with demands."""

import json
import re

import pytest

from verizero.pipeline.data.generators import extraction, instructions
from verizero.pipeline.data.generators.base import Row, generate
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load

TEXTS = {
    "include": "The {about} was {other} that day.",
    "start": "{first} we all looked at the {about}.",
    "question": "Why did they look at the {about}?",
    "short": "They looked at the {about}.",
    "without": "They looked at this {about} for so long.",
    "two_sentences": "They looked at it. It was the {about}.",
    "title": "<<Around the {about}>>",
    "numbered": "1. There is a {about}.\n2. They like the {about}.",
}
FRAGMENTS = ("", "Yes.", "{about}", "{about}.", "{About}", "The {about}.", "{about} {about} {about}")


def is_right(row: Row, text: str) -> bool:
    (verdict,) = load(row["verifier"]).bind().score([Attempt(text, row["answer"], row["question"])])
    assert verdict.status in ("graded", "no_answer")
    return verdict.is_correct


@pytest.mark.parametrize("depth", ["flat", "nested"])
@pytest.mark.parametrize("kind", extraction.MAKERS)
def test_only_the_sentences_own_values_under_the_named_keys_are_right(kind, depth):
    split = generate("extraction", {"num_train": 30, "num_evaluation": 0, "kinds": [kind], "depths": [depth]}, 0)
    for row in split.train:
        value = row["answer"]["equals"]
        sentence, _, wish = row["question"].partition(" Write this as JSON ")
        leaves = [x for item in value.values() for x in (item.values() if isinstance(item, dict) else [item])]
        keys = [*value, *(key for item in value.values() if isinstance(item, dict) for key in item)]
        assert all(re.search(rf"\b{leaf}\b", sentence) for leaf in leaves)
        assert all(re.search(rf"\b{key}\b", wish) for key in keys)
        assert any(isinstance(item, dict) for item in value.values()) == (depth == "nested")
        assert is_right(row, json.dumps(value))
        assert not is_right(row, json.dumps({**value, "more": 1}))
        first = next(iter(value))
        assert not is_right(row, json.dumps({k: v for k, v in value.items() if k != first}))
        assert not is_right(row, json.dumps({**value, first: None}))
        assert not is_right(row, f"Here it is: {json.dumps(value)}")


@pytest.mark.parametrize("kind", instructions.MAKERS)
def test_a_text_that_does_what_is_asked_is_right_and_a_fragment_or_another_word_is_not(kind):
    split = generate("instructions", {"num_train": 45, "num_evaluation": 10, "kinds": [kind]}, 0)
    for row in (*split.train, *split.evaluation):
        about, *more = re.findall(r'"(\w+)"', row["question"])
        words = {"about": about, "About": about.title(), "other": more[-1] if more else "", "first": (more or [""])[0]}
        text = TEXTS[kind].format(**words)
        if kind == "numbered" and row["answer"][1]["min"] == 3:
            text += "\n3. It stays there."
        if kind == "without":
            text = {"a": text.replace(" a ", " one ")}.get(more[-1], text)
        assert is_right(row, text), row["question"]
        assert not is_right(row, re.sub(about, "thing", text, flags=re.IGNORECASE))
        assert not any(is_right(row, fragment.format(**words)) for fragment in FRAGMENTS)
        assert (
            not is_right(row, f"{text}\n\nAnd so on. There is more to say." + " Then it ended." * 3)
            or kind == "numbered"
        )
