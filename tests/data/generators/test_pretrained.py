"""Tasks for pretrained models: JSON out of sentences, and texts with demands."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from verizero.pipeline.data.generators import extraction, instructions
from verizero.pipeline.data.generators.base import Row, generate
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load

NUMBERS = {"extraction": {"num_train": 200, "num_evaluation": 64}, "instructions": {"num_train": 360}}
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


@pytest.mark.parametrize("name", NUMBERS)
def test_no_task_is_both_trained_on_and_held_out_and_a_seed_gives_the_same_rows(name: str) -> None:
    split, again, other = (generate(name, NUMBERS[name], seed) for seed in (0, 0, 1))
    assert split == again
    assert split != other
    train, held_out = ({r["question"] for r in rows} for rows in (split.train, split.evaluation))
    assert not train & held_out
    assert len({r["id"] for r in split.train}) == len(split.train) == NUMBERS[name]["num_train"]
    assert len({r["id"] for r in split.evaluation}) == len(split.evaluation) == 64
    assert json.loads(json.dumps(split.train)) == split.train


@pytest.mark.parametrize("depth", ["flat", "nested"])
@pytest.mark.parametrize("kind", extraction.MAKERS)
def test_only_the_sentences_own_values_under_the_named_keys_are_right(kind: str, depth: str) -> None:
    split = generate("extraction", {"num_train": 30, "num_evaluation": 0, "kinds": [kind], "depths": [depth]}, 0)
    for row in split.train:
        value: dict[str, Any] = row["answer"]["equals"]
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
def test_a_text_that_does_what_is_asked_is_right_and_a_fragment_or_another_word_is_not(kind: str) -> None:
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


def test_held_out_texts_are_about_words_of_their_own() -> None:
    split = generate("instructions", {"num_train": 360, "num_evaluation": 64, "num_words": 12}, 3)
    train, held_out = ({r["answer"][0]["include"][0] for r in rows} for rows in (split.train, split.evaluation))
    assert not train & held_out
    assert (len(train), len(held_out)) == (48, 12)


@pytest.mark.parametrize(
    ("name", "params", "wanted"),
    [
        ("extraction", {"num_train": 600, "kinds": ["person"]}, "num_train .* 300 for 1 kinds, got 600"),
        ("instructions", {"num_train": 400}, "num_train must be <= 384"),
        ("instructions", {"num_evaluation": 97}, "num_evaluation must be <= 96"),
        ("instructions", {"kinds": ["sonnet"]}, "sonnet"),
    ],
)
def test_more_tasks_than_there_are_and_unknown_kinds_are_refused(name: str, params: Any, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        generate(name, params, 0)
