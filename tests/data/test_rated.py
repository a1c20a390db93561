"""Rows with pass rates: dropped and ordered as asked, counted, and refused where they have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data.rows import jsonl
from verizero.pipeline.config.data import PassRateConfig, Source
from verizero.pipeline.data.ledger import PassRateLedger
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.errors import DataError

RATES = {"a": 0.5, "b": 0.0, "c": 1, "d": None, "e": 0.25, "f": 0.5}
ROWS: list[dict[str, Any]] = [
    {"id": i, "question": f"{i}=", "answer": "1", "verifier": "exact", **({} if r is None else {"pass_rate": r})}
    for i, r in RATES.items()
]


def ids(folder: Path, rows: list[dict[str, Any]] = ROWS, **changes: Any) -> tuple[list[str], dict[str, int]]:
    rated = {k: v for k, v in changes.items() if k not in ("limit", "on_bad_row")}
    others = {k: v for k, v in changes.items() if k in ("limit", "on_bad_row")}
    source = Source.model_validate({"file": jsonl(folder, rows), "rated": rated, **others})
    prompts, (counts,) = read_prompts([source], 0, folder)
    return [p.id for p in prompts], counts.skipped


def test_rows_outside_are_dropped_and_counted(tmp_path: Path) -> None:
    found, skipped = ids(tmp_path, low=0.25, high=0.9, unrated="drop")
    assert found == ["a", "e", "f"]
    assert skipped == {
        "rows with a pass rate below 0.25": 1,
        "rows with a pass rate above 0.9": 1,
        "rows without a pass rate": 1,
    }


def test_rows_are_ordered_before_the_limit(tmp_path: Path) -> None:
    assert ids(tmp_path, order="easy_first", unrated="keep")[0] == ["c", "a", "f", "e", "b", "d"]
    assert ids(tmp_path, order="hard_first", unrated="keep", limit=4)[0] == ["b", "e", "a", "f"]
    assert ids(tmp_path, unrated="keep", limit=2)[0] == ["a", "b"]


def test_a_row_without_a_rate_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 4: .*'pass_rate'.*`verizero rate`"):
        ids(tmp_path)
    with pytest.raises(DataError, match=r"line 1: 'pass_rate'.* 7"):
        ids(tmp_path, [{**ROWS[0], "pass_rate": 7}])
    found, skipped = ids(tmp_path, [*ROWS[:2], {**ROWS[2], "pass_rate": "half"}], on_bad_row="skip")
    assert found == ["a", "b"]
    assert skipped == {"bad rows": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rated": {"low": 0.5, "high": 0.4}}, "rated.low must be <= rated.high"),
        ({"rated": {"order": "easy_first"}, "shuffle": True}, "undoes rated.order"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Source.model_validate({"file": "rows.jsonl", **changes})


def test_a_curriculum_moves_its_bounds_by_epochs() -> None:
    how = PassRateConfig(low=0.6, high=1.0, low_end=0.0, high_end=0.5, over_epochs=4, revisit_epochs=None)
    assert how.bounds(0) == (0.6, 1.0)
    assert how.bounds(2) == pytest.approx((0.3, 0.75))
    assert how.bounds(4) == how.bounds(9) == (0.0, 0.5)
    ledger = PassRateLedger()
    ledger.record("easy", 10, 9)
    ledger.record("hard", 10, 1)
    is_skipped = [(ledger.is_skipped("easy", how, e), ledger.is_skipped("hard", how, e)) for e in range(5)]
    assert is_skipped[0] == (False, True)
    assert is_skipped[4] == (True, False)


@pytest.mark.parametrize(
    "changes", [{"low_end": 0.2}, {"over_epochs": 3}, {"high_end": 0.1, "low": 0.3, "over_epochs": 2}]
)
def test_a_curriculum_must_be_whole(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pass_rate"):
        PassRateConfig(**changes)
