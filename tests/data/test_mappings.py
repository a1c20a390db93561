"""Prompts from files of the shapes that the shipped mappings are for."""

import json
from pathlib import Path

import pytest

from tests.data.rows import jsonl, load, parquet
from verizero.pipeline.config.data import Source
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.errors import DataError


def test_gsm8k(tmp_path: Path) -> None:
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


def test_math(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match=r"line 1: .*'solution'.*\\boxed"):
        load(tmp_path, file=jsonl(tmp_path, [{"problem": "p", "solution": r"\boxed{1"}]), mapping="math")


def test_dapo_math(tmp_path: Path) -> None:
    def row(index: str, answer: str) -> dict:
        return {
            "data_source": "math_dapo",
            "prompt": [{"content": f"Solve {index}. Answer: $Answer", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": index},
        }

    rows = [row("x", "34"), row("y", "-1"), row("x", "34")]
    for file in (parquet(tmp_path, rows), jsonl(tmp_path, rows)):
        loaded = load(tmp_path, file=file, mapping="dapo_math", on_duplicate_id="skip")
        assert [(p.id, p.reference, p.question) for p in loaded] == [
            ("x", "34", "Solve x. Answer: $Answer"),
            ("y", "-1", "Solve y. Answer: $Answer"),
        ]
        with pytest.raises(DataError, match=r"(line|row) 3: .*'x'.* (line|row) 1 .*on_duplicate_id"):
            load(tmp_path, file=file, mapping="dapo_math")


@pytest.mark.parametrize("mapping", ["apps", "taco"])
def test_apps_and_taco(tmp_path: Path, mapping: str) -> None:
    from verizero.verifiers.layouts.base import suite_of

    stdin = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
    call = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}
    common = {"difficulty": "EASY", "url": ""}
    rows = [
        {
            "problem_id": 0,
            "question": "Sum.",
            "starter_code": "",
            "solutions": json.dumps(["print(sum(map(int,input().split())))"]),
            "input_output": json.dumps(stdin),
            **common,
        },
        {
            "problem_id": 1,
            "question": "Add.",
            "starter_code": "def add(a, b):",
            "solutions": "",
            "input_output": json.dumps(call),
            **common,
        },
    ]
    first, second = load(tmp_path, file=parquet(tmp_path, rows), mapping=mapping)
    assert (first.question, first.reference, first.verifier) == ("Sum.", json.dumps(stdin), "code")
    assert first.demonstration.startswith("print(")
    assert (second.question, second.reference, second.demonstration) == (
        "Add.\n\ndef add(a, b):",
        json.dumps(call),
        None,
    )
    assert [suite_of(p.reference).mode for p in (first, second)] == ["stdin", "function"]


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("", "column 'input_output' is empty"),
        ('{"inputs": [], "outputs": []}', "it holds no test"),
        ('{"inputs": ["1"], "outputs": []}', "two lists of equal length"),
        ("[1]", r"tests\[0\]: expected an object, got 1"),
        ("{", "reference: not JSON"),
        ("none", "expected JSON of tests, got 'none'"),
    ],
)
def test_a_program_without_good_tests_is_a_bad_row(tmp_path: Path, tests: str, said: str) -> None:
    good = {"question": "Sum.", "input_output": '{"inputs": ["1"], "outputs": ["1"]}'}
    file = jsonl(tmp_path, [good, {"question": "Sum.", "input_output": tests}])
    with pytest.raises(DataError, match=f"rows.jsonl line 2: .*{said}"):
        load(tmp_path, file=file, mapping="taco")
    prompts, (counts,) = read_prompts([Source(file=file, mapping="taco", on_bad_row="skip")], 0, tmp_path)
    assert len(prompts) == 1
    assert (counts.num_read, counts.num_loaded, counts.skipped) == (2, 1, {"bad rows": 1})
    assert said.replace("\\", "") in str(counts)
