"""Rows with several columns in a reference, with a verifier of their own, and with a reference that none can grade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.data.rows import jsonl, load
from tests.stages.tiny import TREE
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.merge import merge
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.scoring.score import bind_verifiers
from verizero.pipeline.types import Attempt

TESTS = {"tests": [{"input": "1", "output": "2"}]}


def test_several_columns_are_one_reference(tmp_path: Path) -> None:
    """Columns that a row lacks, or that are empty, are left out."""
    rows = [
        {"q": "1", "test": "t", "meta": json.dumps({"name": "f"}), "none": None},
        {"q": "2", "test": "u", "then": "x"},
    ]
    names: Any = ["test", "none"]
    keys: Any = {"columns": {"tests": "test", "fn": {"column": "meta", "parse": "json", "key": "name"}}}
    for answer, wanted in (
        (names, [{"test": "t"}, {"test": "u"}]),
        (keys, [{"tests": "t", "fn": "f"}, {"tests": "u"}]),
    ):
        mapping = {"question": "q", "answer": answer, "id": None, "default_verifier": "exact"}
        assert [p.reference for p in load(tmp_path, file=jsonl(tmp_path, rows), mapping=mapping)] == wanted
    mapping = {"question": "q", "answer": ["a", "b"], "id": None, "default_verifier": "exact"}
    with pytest.raises(DataError, match=r"line 1: the row has no answer: none of the columns a, b is there; columns"):
        load(tmp_path, file=jsonl(tmp_path, rows), mapping=mapping)


def test_texts_of_columns_are_joined_and_lists_of_context_are_lines(tmp_path: Path) -> None:
    row = {"q": "1", "a": "def f():\n", "b": "    return 1\n", "c": ["assert f() == 1", "assert f() == f()"]}
    mapping = {"question": "q", "answer": "q", "context": ["c"], "demonstration": {"column": "a", "then": ["b"]}}
    (prompt,) = load(
        tmp_path, file=jsonl(tmp_path, [row]), mapping={**mapping, "id": None, "default_verifier": "exact"}
    )
    assert prompt.demonstration == "def f():\n    return 1\n"
    assert prompt.question == "1\n\nassert f() == 1\nassert f() == f()"


def test_a_mapping_of_two_columns_with_a_mistake_names_the_mistake_alone(tmp_path: Path) -> None:
    mapping = {"question": "q", "answer": {"columns": ["a", "b"], "after": "x"}}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(merge(TREE, {"data": {"train": [{"file": "rows.jsonl", "mapping": mapping}]}})))
    with pytest.raises(ConfigError, match="after: a step of one column") as refused:
        load_recipe(path)
    assert "at least 1 item" not in str(refused.value)


def test_a_row_names_its_verifier_with_parameters(tmp_path: Path) -> None:
    """As a row of `verizero verify` does."""
    rows = [
        {"id": 1, "question": "?", "answer": 1.0, "verifier": {"name": "numeric", "params": {"abs_tol": 0.5}}},
        {"id": 2, "question": "?", "answer": 1.0, "verifier": {"name": "numeric"}},
    ]
    prompts = load(tmp_path, file=jsonl(tmp_path, rows))
    assert [p.verifier for p in prompts] == ['numeric{"abs_tol": 0.5}', "numeric"]
    graders = bind_verifiers(prompts, {})
    said = [graders[p.verifier].score([Attempt(r"\boxed{1.4}", p.reference)])[0].score for p in prompts]
    assert said == [1.0, 0.0]
    for verifier, error in (
        ({"name": "numeric", "params": {"abs": 1}}, "unknown parameter 'abs'"),
        ({"name": "numerik"}, "did you mean numeric"),
        ({"params": {}}, "give exactly one of verifier.name"),
    ):
        with pytest.raises(DataError, match=rf"line 1: the row's verifier .*{error}"):
            load(tmp_path, file=jsonl(tmp_path, [{**rows[0], "verifier": verifier}]))


@pytest.mark.parametrize(
    ("verifier", "reference", "error"),
    [
        (
            "code",
            {"test_list": ["assert f() == 1"]},
            "the layout mbpp has tests of the verifier 'unit_tests', not 'code'",
        ),
        ('code{"grading": "fraction"}', {"inputs": ["1"]}, "no layout has its keys"),
        ("unit_tests", TESTS, "the layout tests has tests of the verifier 'code'"),
    ],
)
def test_a_reference_that_cannot_be_graded_is_refused_with_its_place(
    verifier: str, reference: Any, error: str, tmp_path: Path
) -> None:
    rows = [
        {"id": 1, "question": "?", "answer": TESTS, "verifier": "code"},
        {"id": 2, "question": "?", "answer": reference, "verifier": verifier},
    ]
    file = jsonl(tmp_path, rows)
    with pytest.raises(DataError, match=rf"rows.jsonl line 2: reference: .*{error}.*on_bad_row: skip"):
        load(tmp_path, file=file)
    assert [p.id for p in load(tmp_path, file=file, on_bad_row="skip")] == ["1"]
