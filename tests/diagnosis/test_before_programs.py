"""Rows of programs before training: their layouts are told, and those of which no row can be graded are found."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest

from tests.diagnosis.before import looked, recipe
from tests.verifiers.program_rows import FAMILIES, Row
from verizero.pipeline.config.run import RunConfig


def of_programs(folder: Path, rows: list[Row], mapping: str) -> RunConfig:
    (folder / "programs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"file": "programs.jsonl", "mapping": mapping}
    model = {"create": {"characters": string.printable}}
    return recipe(folder, [], data={"train": [source], "evaluation": []}, model=model)


def rows_of(name: str, count: int = 8, **columns: Any) -> list[Row]:
    return [made.row | columns for made in FAMILIES[name].rows(count)]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("humaneval", "8 rows of unit_tests in the layout humaneval: 8 of 8 canonical answers are right"),
        ("apps", "8 rows of code in the layout apps: 8 of 8 canonical answers are right"),
        ("codeforces", "8 rows of code in the layout codeforces: no canonical answers; the tests of 8 of 8 run"),
    ],
)
def test_sound_rows_are_told_by_their_layout(name: str, told: str, tmp_path: Path) -> None:
    checks, findings = looked(of_programs(tmp_path, rows_of(name), FAMILIES[name].mapping), tmp_path)
    assert checks["programs"].result == told
    assert not {"wrong_references", "infrastructure_zeros", "data_refused"} & findings.keys()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "columns", "cause", "told"),
    [
        ("humaneval", {"entry_point": "another"}, "wrong_references",
         "takes 8 of 8 canonical answers to rows in the layout humaneval for wrong"),
        ("apps", {"solutions": json.dumps(["print(7)"])}, "wrong_references", "the layout apps for wrong"),
        ("mbpp", {"test_setup_code": "raise OSError('no table')"}, "infrastructure_zeros",
         "fails on 8 of 8 canonical answers to rows in the layout mbpp"),
        ("codeforces", {"generated_checker": "import sys\nsys.exit(1)"}, "infrastructure_zeros", "fails on"),
        ("kodcode", {"test": "from solution import f\nimport numpy\n"}, "data_refused", "needs numpy"),
        ("livecodebench", {"metadata": "{}"}, "data_refused", "none is named; map the column 'metadata'"),
        ("humaneval", {"test": "x = 1"}, "infrastructure_zeros", "fails on 8 of 8"),
        ("prime_code", {"reward_model": {"ground_truth": "42"}}, "data_refused", "expected JSON of tests, got '42'"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_graded_right_are_a_problem(
    name: str, columns: Row, cause: str, told: str, tmp_path: Path
) -> None:
    _, findings = looked(of_programs(tmp_path, rows_of(name, **columns), FAMILIES[name].mapping), tmp_path)
    assert findings[cause].level == "problem"
    assert told in findings[cause].sentence


def test_a_few_wrong_canonical_answers_are_a_warning(tmp_path: Path) -> None:
    rows = rows_of("apps", 20)
    rows[3]["solutions"] = rows[8]["solutions"] = json.dumps(["print(7)"])
    checks, findings = looked(of_programs(tmp_path, rows, "apps"), tmp_path)
    assert findings["wrong_references"].level == "warning"
    assert [e.line for e in findings["wrong_references"].evidence] == [4, 9]
    assert "18 of 20 canonical answers are right" in checks["programs"].result
