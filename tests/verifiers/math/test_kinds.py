"""Kinds of wrong answers that a looser reading accepts, and of right ones that a stricter one refuses.

Nearly half of the rows came out the other way before the grammar knew names, branches, functions and lists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verizero.verifiers.mathematics import grade

ROWS = [json.loads(line) for line in (Path(__file__).parent / "kinds.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['gold']} <- {row['response'][-60:]}")
def test_each_kind_is_graded_as_it_is_labelled(row: dict[str, Any]) -> None:
    assert grade(row["response"], row["gold"]).is_correct == row["right"]
