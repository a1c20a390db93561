"""Columns that are guessed, for the layouts that data sets are published in; and rows in the forms that Python has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.library import layouts
from tests.library.layouts import PROMPTS, Row
from tests.verifiers.program_rows import FAMILIES
from verizero.pipeline.config.data import Source
from verizero.pipeline.config.pairs import PairSource
from verizero.pipeline.data.demonstrated_episodes import as_value
from verizero.pipeline.data.pairs import read_pairs
from verizero.pipeline.data.prompts import part_of, read_demonstrations, read_prompts
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.library.columns import guess
from verizero.pipeline.library.given import first_rows, place_of
from verizero.verifiers.layouts.base import layout_of


def rows(layout: Callable[[int], Row], count: int = 20) -> list[Row]:
    return [layout(i) for i in range(count)]


def source(folder: Path, some: list[Row], **more: Any) -> Source:
    meaning = guess(some, "rows")
    return Source.model_validate({**place_of(some, folder, "rows"), "mapping": meaning.mapping, **more})


@pytest.mark.parametrize("layout", PROMPTS, ids=lambda f: f.__name__)
def test_prompts(layout: Callable[[int], Row], tmp_path: Path) -> None:
    verifier, question = PROMPTS[layout]
    some = rows(layout)
    meaning = guess(some, "rows")
    assert (meaning.kind, meaning.verifier) == ("prompts", verifier)
    assert f"question is '{question}'" in meaning.line
    prompts, _ = read_prompts([source(tmp_path, some, verifier=verifier or "exact")], 0, tmp_path)
    assert len(prompts) == 20
    if verifier == "math":
        assert [str(p.reference).strip("$") for p in prompts] == [str(i + 2) for i in range(20)]
    if layout is layouts.verl:
        assert prompts[0].system == "Answer."


@pytest.mark.parametrize("name", FAMILIES)
def test_programs(name: str, tmp_path: Path) -> None:
    """Rows of every public layout get the mapping that is shipped for them, also where one row cannot be read."""
    family = FAMILIES[name]
    some = [made.row for made in family.rows(6)]
    meaning = guess(some, "rows")
    assert f"programs in the columns of {family.mapping}, question is" in meaning.line
    prompts, _ = read_prompts([source(tmp_path, some)], 0, tmp_path)
    assert {layout_of(p.reference)[0] for p in prompts} == {family.layout}
    assert {p.verifier for p in prompts} == {meaning.verifier}
    bad = {key: None for key in some[0] if key not in ("prompt", "question")}
    assert guess([{**some[0], **bad, meaning.mapping["question"]: "?"}, *some], "rows").mapping == meaning.mapping


@pytest.mark.parametrize("layout", layouts.IMITATED, ids=lambda f: f.__name__)
def test_demonstrations(layout: Callable[[int], Row], tmp_path: Path) -> None:
    some = rows(layout)
    assert guess(some, "rows").kind == "demonstrations"
    shown = read_demonstrations((), [source(tmp_path, some, graded=False)], 0, tmp_path).prompts
    said = as_value(shown[3].demonstration)
    texts = [said] if isinstance(said, str) else [m["content"] for m in said]
    assert sum("5" in text for text in texts) == (2 if layout is layouts.openai_tools else 1)
    assert "3" in shown[3].question


@pytest.mark.parametrize("layout", layouts.PAIRS, ids=lambda f: f.__name__)
def test_pairs(layout: Callable[[int], Row], tmp_path: Path) -> None:
    some = rows(layout)
    meaning = guess(some, "rows")
    assert meaning.kind == "pairs"
    given = PairSource.model_validate({**place_of(some, tmp_path, "rows"), "mapping": meaning.mapping})
    pair = read_pairs([given], 0, tmp_path).pairs[3]
    assert (pair.prompt.question, pair.chosen, pair.rejected) == ("3+2?", "5", "no")
    assert pair.prompt.system == ("Add." if layout is layouts.orca_pairs else None)


def test_what_cannot_be_read_says_which_columns_there_are() -> None:
    with pytest.raises(DataError, match=r"rows: no column looks like a question; columns: frage, antwort\. Call one"):
        guess([{"frage": "1+1?", "antwort": "2"}], "rows")
    assert guess([{"question": "Who?", "answer": "The king of France"}], "rows").verifier is None


class Frame:
    """What a frame of pandas has of what is asked of one."""

    columns = ("question", "answer")

    def __init__(self, own: list[Row]) -> None:
        self.own = own

    def to_dict(self, how: str) -> list[Row]:
        assert how == "records"
        return self.own


def test_rows_of_python(tmp_path: Path) -> None:
    import datasets
    import numpy

    some = [{"question": f"{i}?", "answer": numpy.int64(i)} for i in range(3)]
    plain = [{"question": f"{i}?", "answer": i} for i in range(3)]
    made = datasets.Dataset.from_list(plain)
    for data in (some, Frame(some), made, datasets.DatasetDict({"train": made})):
        place = place_of(data, tmp_path, "train")
        assert place == {"file": "train.jsonl"}
        assert first_rows(place, tmp_path) == plain
    made.save_to_disk(str(tmp_path / "saved"))
    assert first_rows(place_of(str(tmp_path / "saved"), tmp_path, "train"), tmp_path) == plain
    (tmp_path / "t.csv").write_text("question,answer\n0?,0\n1?,1\n2?,2\n")
    read = first_rows(place_of(tmp_path / "t.csv", tmp_path, "train"), tmp_path)
    assert read == [{k: str(v) for k, v in row.items()} for row in plain]
    assert place_of("openai/gsm8k:main", tmp_path, "train") == {
        "hub": {"id": "openai/gsm8k", "split": "train", "config": "main"}
    }


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], "data is empty; give at least one row"),
        ([1], "row 1 of data is int; each row is a dict of columns"),
        ([{"a": object()}], "row 1 of data cannot be written as JSON: object <object"),
        ([{"a": float("nan")}], "row 1 of data cannot be written as JSON: Out of range float"),
        ({"a": [1]}, "data is dict; give a file"),
        ("missing.jsonl", "data='missing.jsonl': there is no such file"),
    ],
)
def test_bad_rows_say_what_to_give(data: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError)) as refused:
        place_of(data, tmp_path, "train")
    assert str(refused.value).startswith(error)


def test_a_tenth_is_held_out_by_question_alone(tmp_path: Path) -> None:
    some = [{"question": f"{i}+2?", "answer": str(i + 2)} for i in range(300)]
    parts = {
        part: {p.question for p in read_prompts([source(tmp_path, some, verifier="math", part=part)], 0, tmp_path)[0]}
        for part in ("train", "evaluation")
    }
    assert len(parts["train"]) + len(parts["evaluation"]) == 300
    assert not parts["train"] & parts["evaluation"]
    assert 15 <= len(parts["evaluation"]) <= 45
    assert all(part_of(q) == part for part, own in parts.items() for q in own)
    few = [row for row in some if row["question"] in parts["train"]][:5]  # of which none is in the tenth
    held, rest = (
        {p.question for p in read_prompts([source(tmp_path, few, verifier="math", part=part)], 0, tmp_path)[0]}
        for part in ("evaluation", "train")
    )
    assert (len(held), len(rest), held | rest) == (1, 4, {row["question"] for row in few})


def test_csv_with_a_missing_value_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("question,answer\n0?\n")
    given = Source.model_validate({"file": "t.csv", "verifier": "exact"})
    with pytest.raises(DataError, match=r"t\.csv row 1: has another number of values than the line of names"):
        read_prompts([given], 0, tmp_path)
    assert json.dumps(given.model_dump(mode="json"))
