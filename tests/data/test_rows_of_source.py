"""Rows by their mappings: columns, references of several of them, and verifiers that a row names."""

import json

import pytest
import yaml

from tests.api.layouts import dapo_math
from tests.data.rows import jsonl, load, parquet
from tests.stages.tiny import TREE
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.scoring.score import bind_verifiers
from verizero.pipeline.types import Attempt


def test_several_columns_are_one_reference(tmp_path):
    """Columns that a row lacks, or that are empty, are left out."""
    rows = [
        {"q": "1", "test": "t", "meta": json.dumps({"name": "f"}), "none": None},
        {"q": "2", "test": "u", "then": "x"},
    ]
    names = ["test", "none"]
    keys = {"columns": {"tests": "test", "fn": {"column": "meta", "parse": "json", "key": "name"}}}
    for answer, wanted in (
        (names, [{"test": "t"}, {"test": "u"}]),
        (keys, [{"tests": "t", "fn": "f"}, {"tests": "u"}]),
    ):
        mapping = {"question": "q", "answer": answer, "id": None, "default_verifier": "exact"}
        assert [p.reference for p in load(tmp_path, file=jsonl(tmp_path, rows), mapping=mapping)] == wanted


def test_texts_of_columns_are_joined_and_lists_of_context_are_lines(tmp_path):
    row = {"q": "1", "a": "def f():\n", "b": "    return 1\n", "c": ["assert f() == 1", "assert f() == f()"]}
    mapping = {"question": "q", "answer": "q", "context": ["c"], "demonstration": {"column": "a", "then": ["b"]}}
    (prompt,) = load(
        tmp_path, file=jsonl(tmp_path, [row]), mapping={**mapping, "id": None, "default_verifier": "exact"}
    )
    assert prompt.demonstration == "def f():\n    return 1\n"
    assert prompt.question == "1\n\nassert f() == 1\nassert f() == f()"


def test_a_mapping_of_two_columns_with_a_mistake_names_the_mistake_alone(tmp_path):
    mapping = {"question": "q", "answer": {"columns": ["a", "b"], "after": "x"}}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(merge(TREE, {"data": {"train": [{"file": "rows.jsonl", "mapping": mapping}]}})))
    with pytest.raises(
        ConfigError, match=r"after applies to one column, .* columns: {KEY: {column: NAME, after: …}}"
    ) as refused:
        load_recipe(path)
    assert "at least 1 item" not in str(refused.value)


def test_a_row_names_its_verifier_with_parameters(tmp_path):
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


def test_gsm8k(tmp_path):
    rows = [
        {"question": "Ann has 2 dozen eggs. How many?", "answer": "A dozen is 12.\n2*12=<<2*12=24>>24 eggs.\n#### 24"},
        {"question": "How much is it?", "answer": "It is #### not this.\n#### $1,234"},
    ]
    first, second = load(tmp_path, file=jsonl(tmp_path, rows), mapping="gsm8k", domain="gsm8k")
    assert (first.question, first.reference, first.verifier, first.domain) == (
        rows[0]["question"],
        "24",
        "math",
        "gsm8k",
    )
    assert first.demonstration == "A dozen is 12.\n2*12=24 eggs.\n\\boxed{24}"
    assert second.reference == "$1234"


def test_math(tmp_path):
    rows = [
        {
            "problem": "Half?",
            "solution": r"First $\boxed{1}$, no: $\boxed{\frac{1}{2}}$.",
            "level": "Level 1",
            "type": "Algebra",
        },
        {"problem": "Set?", "solution": r"It is \boxed{\{1, 2\}}", "level": "Level 2", "type": "Algebra"},
        {"problem": "Two?", "solution": r"Thus $\boxed 2$ apples.", "level": "Level 2", "type": "Algebra"},
        {"problem": "Three?", "solution": r"Thus \fbox{3}.", "level": "Level 2", "type": "Algebra"},
        {"problem": "Both?", "solution": r"Thus $\boxed{4}$ and $\boxed{5}$.", "level": "Level 2", "type": "Algebra"},
    ]
    loaded = load(tmp_path, file=parquet(tmp_path, rows), mapping="math")
    assert [p.reference for p in loaded] == [r"\frac{1}{2}", r"\{1, 2\}", "2", "3", "4, 5"]
    assert loaded[0].demonstration == rows[0]["solution"]


def test_dapo_math(tmp_path):
    rows = [dapo_math(i) for i in (3, 4, 3)]
    for file in (parquet(tmp_path, rows), jsonl(tmp_path, rows)):
        loaded = load(tmp_path, file=file, mapping="dapo_math", on_duplicate_id="skip")
        assert [(p.id, p.reference, p.question) for p in loaded] == [
            ("id-3", "5", "Solve: 3+2. Answer: $Answer"),
            ("id-4", "6", "Solve: 4+2. Answer: $Answer"),
        ]
        with pytest.raises(DataError, match=r"(line|row) 3: .*'id-3'.* (line|row) 1 .*on_duplicate_id"):
            load(tmp_path, file=file, mapping="dapo_math")
