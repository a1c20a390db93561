"""Labelled steps from files: the published forms are read alike, and what is at fault is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verizero.pipeline.config.pairs import PairSource
from verizero.pipeline.data.pairs import Pair, read_pairs
from verizero.pipeline.data.step_labels import check_pieces
from verizero.pipeline.errors import DataError

LISTS = {"prompt": "2+2?", "completions": ["Let x be 2+2.", "So x=5."], "labels": [True, False]}
PRM800K_COLUMNS = {"prompt": "question.problem", "steps": "label.steps"}
SHEPHERD = {
    "input": "2+2? Step 1: Let x be 2+2. ки\nStep 2: So x=5. ки",
    "label": "2+2? Step 1: Let x be 2+2. +\nStep 2: So x=5. -",
    "task": "GSM8K",
}
SHEPHERD_SOURCE = {
    "mapping": {"prompt": {"column": "input", "before": "Step 1:"}, "steps": "input", "step_labels": "label"},
    "step_mark": "ки",
}


def completion(text: str, rating: int | None) -> dict[str, Any]:
    return {"text": text, "rating": rating, "flagged": False}


def prm800k(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"question": {"problem": "2+2?", "ground_truth_answer": "4"}, "label": {"steps": list(steps)}}


def step(*completions: dict[str, Any], chosen: int | None = None, written: dict[str, Any] | None = None) -> Any:
    return {"completions": list(completions), "chosen_completion": chosen, "human_completion": written}


def read(folder: Path, row: dict[str, Any], **source: Any) -> Pair:
    (folder / "steps.jsonl").write_text(json.dumps(row) + "\n")
    (pair,) = read_pairs((PairSource(file="steps.jsonl", **source),), 0, folder).pairs
    return pair


@pytest.mark.parametrize(
    ("row", "source", "response", "steps"),
    [
        (LISTS, {}, "Let x be 2+2.\nSo x=5.", [("Let x be 2+2.", 1.0), ("So x=5.", 0.0)]),
        ({**LISTS, "labels": [1, 0]}, {}, "Let x be 2+2.\nSo x=5.", [("Let x be 2+2.", 1.0), ("So x=5.", 0.0)]),
        (
            {**LISTS, "labels": [None, "-"]},
            {"step_separator": " ## "},
            "Let x be 2+2. ## So x=5.",
            [("So x=5.", 0.0)],
        ),
        (
            SHEPHERD,
            SHEPHERD_SOURCE,
            "Step 1: Let x be 2+2. \nStep 2: So x=5. ",
            [("Step 1: Let x be 2+2.", 1.0), ("Step 2: So x=5.", 0.0)],
        ),
        (
            prm800k(step(completion("no", -1), completion("Let x be 2+2.", 1), chosen=1), step(completion("x=5", -1))),
            {"mapping": PRM800K_COLUMNS, "neutral": "wrong"},
            "Let x be 2+2.\nx=5",
            [("Let x be 2+2.", 1.0), ("x=5", 0.0)],
        ),
        (
            prm800k(
                step(completion("no", -1), written=completion("by hand", None)), step(completion("x=4", 1), chosen=0)
            ),
            {"mapping": PRM800K_COLUMNS, "neutral": "right"},
            "by hand\nx=4",
            [("x=4", 1.0)],
        ),
    ],
)
def test_published_forms_are_read(
    row: dict[str, Any], source: dict[str, Any], response: str, steps: list[tuple[str, float]], tmp_path: Path
) -> None:
    pair = read(tmp_path, row, **source)
    assert (pair.prompt.question, pair.chosen, pair.rejected) == ("2+2?", response, None)
    assert list(pair.labelled_steps or ()) == steps


@pytest.mark.parametrize(
    ("neutral", "wanted"), [("right", [1.0, 1.0, 0.0]), ("wrong", [1.0, 0.0, 0.0]), ("unlabelled", [1.0, 0.0])]
)
def test_a_neutral_step_is_what_the_source_says(neutral: str, wanted: list[float], tmp_path: Path) -> None:
    row = {"prompt": "q", "completions": ["a", "b", "c"], "labels": [1, 0, -1]}
    pair = read(tmp_path, row, neutral=neutral)
    assert [reward for _, reward in pair.labelled_steps or ()] == wanted


def test_a_verifier_does_not_grade_what_has_labels(tmp_path: Path) -> None:
    assert read(tmp_path, {**LISTS, "answer": "4", "verifier": "exact"}).prompt.verifier == ""


@pytest.mark.parametrize(
    ("changes", "source", "words"),
    [
        ({"labels": [True]}, {}, "column 'labels' has 1 labels for the 2 steps of column 'completions'"),
        ({"labels": [True, -1]}, {}, "column 'labels', step 2: the label is -1, .* set neutral to what 0 is"),
        ({"labels": [True, "good"]}, {}, "column 'labels', step 2: the label must be true or false, .* got 'good'"),
        ({"labels": [True, 0.5]}, {}, "column 'labels', step 2: the label must be true or false, .* got 0.5"),
        ({"labels": [None, None]}, {}, "column 'completions': none of 2 steps has a label"),
        ({"labels": None}, {}, "column 'labels' must be a list with a label for each step, got None"),
        ({"completions": ["a", " "]}, {}, "column 'completions', step 2: a step is a text, got ' '"),
        ({"completions": ["a", 7]}, {}, "column 'completions', step 2: a step is a text, got 7"),
        ({"completions": "a b"}, {}, "column 'completions' is a text, not a list of steps; set step_mark"),
        ({"completions": 7}, {}, "column 'completions' must be a list of steps"),
        ({"completions": [{"rating": 1}]}, {}, "column 'completions', step 1: a step is {text, rating}"),
        (
            {"completions": [step(completion("a", 1), chosen=3)]},
            {},
            "column 'completions', step 1: there is no completion 3",
        ),
        (
            {"completions": [completion("a", -1)], "labels": None},
            {},
            "column 'completions', step 1: the label is -1",
        ),
        (
            {**SHEPHERD, "label": SHEPHERD["label"].replace("x=5", "x=4")},
            SHEPHERD_SOURCE,
            "column 'label' must be the text of column 'input' .* at step 2 it has",
        ),
        (SHEPHERD, {**SHEPHERD_SOURCE, "step_mark": "@"}, "column 'input' has no '@', .*set step_mark"),
    ],
)
def test_what_is_at_fault_is_named(changes: dict[str, Any], source: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"steps\.jsonl line 1: " + words):
        read(tmp_path, {**LISTS, **changes} if "input" not in changes else changes, **source)


def test_two_labelled_steps_in_one_piece_are_refused() -> None:
    steps = [("a", 1.0), ("b", 0.0)]
    check_pieces("r", "a\nb", steps, "\n")
    check_pieces("r", "a\nmore\nb", steps, "\n")
    with pytest.raises(
        DataError, match=r"row 'r': labelled steps 1 and 2 are one piece, as reward_model\.step_end=';'"
    ):
        check_pieces("r", "a\nb", steps, ";")
