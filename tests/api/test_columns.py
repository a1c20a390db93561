"""Columns that are guessed, for the layouts that data sets are published in; and rows in the forms that Python has."""

import json

import pandas
import pytest

from tests.api import layouts
from tests.api.layouts import PROMPTS
from tests.verifiers.program_rows import FAMILIES
from verizero.pipeline.api import guess as guesses
from verizero.pipeline.api.given import first_rows, place_of
from verizero.pipeline.api.guess import guess
from verizero.pipeline.config import data as config_data
from verizero.pipeline.config.data import Source
from verizero.pipeline.config.pairs import PairSource
from verizero.pipeline.data.conversations import as_value
from verizero.pipeline.data.pairs import read_pairs
from verizero.pipeline.data.prompts import part_of, read_demonstrations, read_prompts
from verizero.pipeline.errors import ConfigError, DataError
from verizero.verifiers.layouts.base import layout_of


def rows(layout, count=20):
    return [layout(i) for i in range(count)]


def source(folder, some, **more):
    meaning = guess(some, "rows")
    return Source.model_validate({**place_of(some, folder, "rows"), "mapping": meaning.mapping, **more})


@pytest.mark.parametrize("layout", PROMPTS, ids=lambda f: f.__name__)
def test_prompts(layout, tmp_path):
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


TEXTS = ["Mars", "Jupiter"]


@pytest.mark.parametrize(
    "row",
    [
        {"choices": TEXTS, "answer": 1},
        {"choices": TEXTS, "answer": "1"},
        {"options": TEXTS, "answer": "B", "answer_index": 1},
        {"choices": TEXTS, "answer": "Jupiter"},
        {"choices": json.dumps(TEXTS), "answer": "(b)"},
        {"choices": {"text": TEXTS, "label": ["1", "2"]}, "answerKey": "2"},
        {"options": {"A": "Mars", "B": "Jupiter"}, "answer_idx": "B"},
        {"options": ["A)Mars", "B)Jupiter"], "correct": "B", "rationale": "It is."},
        {"A": "Mars", "B": "Jupiter", "answer": "B"},
        {"opa": "Mars", "opb": "Jupiter", "cop": 1},
    ],
    ids=str,
)
def test_choices_are_shown_and_graded_by_letter(row, tmp_path):
    some = [{"question": "Which is larger?", **row}]
    meaning = guess(some, "rows")
    assert meaning.verifier == "choice"
    (prompt,), _ = read_prompts([source(tmp_path, some, verifier="choice")], 0, tmp_path)
    assert prompt.message == "Which is larger?\n\nA) Mars\nB) Jupiter"
    assert prompt.reference == {"answer": "B", "choices": {"A": "Mars", "B": "Jupiter"}}
    (prompt,), _ = read_prompts([source(tmp_path, some, verifier={"path": "r.py:f"})], 0, tmp_path)
    assert prompt.reference == "B"
    some[0]["question"] += " (A) Mars (B) Jupiter"
    (prompt,), _ = read_prompts([source(tmp_path, some, verifier="choice")], 0, tmp_path)
    assert prompt.message is None


@pytest.mark.parametrize("answer", [2, -1, "C", "Venus", True])
def test_an_answer_that_is_no_choice_is_refused_by_its_row(answer, tmp_path):
    some = [{"question": f"{i}?", "choices": TEXTS, "answer": i} for i in (0, 1)]
    given = source(tmp_path, some, verifier="choice")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Which?", "choices": TEXTS, "answer": answer}))
    with pytest.raises(
        DataError, match=r"line 1: the answer .* is not one letter, text or index from 0 of the 2 choices"
    ):
        read_prompts([given], 0, tmp_path)


CHAT = [{"role": "user", "content": "1+1?"}]
CHOSEN = [*CHAT, {"role": "assistant", "content": "2"}]
TURNS = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]
ADD = {"instruction": "Add", "input": "1, 1"}
LINES = [
    ({"prompt": json.dumps(CHAT), "answer": "2"}, "question is 'prompt', answer 'answer'", "1+1?"),
    (
        {"question": "1+1?", "answer": "2", "level": 3},
        "question is 'question', answer 'answer'; not used: 'level' (unless a reward function names them)",
        "1+1?",
    ),
    (
        ADD | {"output": "It is 2.", "history": [["Add.", "Three"]]},
        "question is 'instruction' with 'input', response 'output'; not used: 'history'",
        "Add\n\n1, 1",
    ),
    (
        ADD | {"chosen": "2", "rejected": "3", "source": "a"},
        "pairs of 'chosen' and 'rejected', prompt is 'instruction' with 'input'; not used: 'source'",
        "Add\n\n1, 1",
    ),
    (
        {"prompt": json.dumps(CHAT), "chosen": json.dumps(CHOSEN), "rejected": "3"},
        "pairs of 'chosen' and 'rejected', prompt is 'prompt'",
        None,
    ),
    ({"conversations": json.dumps(TURNS)}, "conversations in 'conversations'", "1+1?"),
]


@pytest.mark.parametrize(("row", "line", "question"), LINES)
def test_the_line_says_what_is_used_and_what_is_not(row, line, question, tmp_path):
    meaning = guess([row], "rows")
    assert meaning.line == f"rows: {line}"
    place = place_of([row], tmp_path, "rows")
    if meaning.kind == "pairs":
        pairs = PairSource.model_validate({**place, "mapping": meaning.mapping, "on_bad_row": "skip"})
        assert question is None or read_pairs([pairs], 0, tmp_path).pairs[0].prompt.question == question
        return
    graded = {"verifier": "exact"} if meaning.kind == "prompts" else {"graded": False}
    given = Source.model_validate({**place, "mapping": meaning.mapping, **graded})
    assert read_prompts([given], 0, tmp_path)[0][0].question == question


@pytest.mark.parametrize("cell", [None, "", " ", float("nan"), pandas.NA, pandas.NaT])
def test_a_missing_cell_changes_no_guess_and_is_named(cell, tmp_path):
    """Whether the answer of a row is missing, or a cell of a column that nobody reads."""
    some = [{"problem": f"{i}+1?", "answer": str(i + 1), "solution": "Add.", "source": cell} for i in range(4)]
    meaning = guess(some, "rows")
    assert len(read_prompts([source(tmp_path, some, verifier="math")], 0, tmp_path)[0]) == 4
    for lacking in ({**some[2], "answer": cell}, {k: v for k, v in some[2].items() if k != "answer"}):
        rest = [*some[:2], lacking, some[3]]
        assert guess(rest, "rows") == guess([*some[:2], lacking, lacking], "rows") == meaning
        with pytest.raises(DataError, match=r"rows\.jsonl line 3: the row has no answer: .*column 'answer'"):
            read_prompts([source(tmp_path, rest, verifier="math")], 0, tmp_path)
        left, counts = read_prompts([source(tmp_path, rest, verifier="math", on_bad_row="skip")], 0, tmp_path)
        assert (len(left), counts[0].skipped) == (3, {"bad rows": 1})


@pytest.mark.parametrize("count", [1, 5])
def test_one_question_alone_is_held_out_and_that_is_told(count, tmp_path):
    given = source(tmp_path, [{"question": "1+1?", "answer": "2"}] * count, verifier="math", part="train")
    with pytest.raises(DataError, match=rf"one question only \('1\+1\?', in {count} rows\), which is held out"):
        read_prompts([given], 0, tmp_path)


@pytest.mark.parametrize("name", FAMILIES)
def test_programs(name, tmp_path):
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


def test_a_new_layout_is_one_file(tmp_path, monkeypatch):
    """It is found by its name in a recipe, and by its columns where they are guessed."""
    rows = [{"frage": f"{i}+2?", "antwort": f"Es ist {i + 2}."} for i in range(5)]
    with pytest.raises(DataError, match="no column looks like a question"):
        guess(rows, "rows")
    (tmp_path / "deutsch.yaml").write_text(
        "recognise: [frage, antwort]\nquestion: frage\ndefault_verifier: math\n"
        "answer: {column: antwort, after: ist, before: .}\n"
    )
    monkeypatch.setattr(config_data, "MAPPINGS", tmp_path)
    monkeypatch.setattr(guesses, "_layouts", guesses._layouts.__wrapped__)  # which keeps none for other tests
    meaning = guess(rows, "rows")
    assert meaning.line == "rows: prompts in the columns of deutsch, question is 'frage'"
    by_name = Source.model_validate({**place_of(rows, tmp_path, "rows"), "mapping": "deutsch"})
    for found in (source(tmp_path, rows), by_name):
        assert [p.reference for p in read_prompts([found], 0, tmp_path)[0]] == ["2", "3", "4", "5", "6"]


@pytest.mark.parametrize("layout", layouts.IMITATED, ids=lambda f: f.__name__)
def test_demonstrations(layout, tmp_path):
    some = rows(layout)
    assert guess(some, "rows").kind == "demonstrations"
    shown = read_demonstrations((), [source(tmp_path, some, graded=False)], 0, tmp_path).prompts
    said = as_value(shown[3].demonstration)
    texts = [said] if isinstance(said, str) else [m["content"] for m in said]
    assert sum("5" in text for text in texts) == (2 if layout is layouts.openai_tools else 1)
    assert "3" in shown[3].question


@pytest.mark.parametrize("layout", layouts.PAIRS, ids=lambda f: f.__name__)
def test_pairs(layout, tmp_path):
    some = rows(layout)
    meaning = guess(some, "rows")
    assert meaning.kind == "pairs"
    given = PairSource.model_validate({**place_of(some, tmp_path, "rows"), "mapping": meaning.mapping})
    pair = read_pairs([given], 0, tmp_path).pairs[3]
    assert (pair.prompt.question, pair.chosen, pair.rejected) == ("3+2?", "5", "no")
    assert pair.prompt.system == ("Add." if layout is layouts.orca_pairs else None)


def test_what_cannot_be_read_says_which_columns_there_are(tmp_path):
    with pytest.raises(DataError, match=r"rows: no column looks like a question; columns: frage, antwort\. Call one"):
        guess([{"frage": "1+1?", "antwort": "2"}], "rows")
    for answers, verifier in ((["The king"], None), ([10**5000], "math"), ([True], None), ([1, True, 2], None)):
        assert guess([{"question": "Who?", "answer": answer} for answer in answers], "rows").verifier == verifier
    assert first_rows(place_of([{"answer": 10**5000}], tmp_path, "rows"), tmp_path) == [{"answer": 10**5000}]


def test_rows_of_python(tmp_path):
    import datasets
    import numpy
    import pyarrow

    some = [{"question": f"{i}?", "answer": numpy.int64(i)} for i in range(3)]
    plain = [{"question": f"{i}?", "answer": i} for i in range(3)]
    made = datasets.Dataset.from_list(plain)
    columns = {name: [row[name] for row in some] for name in some[0]}
    frame, table = pandas.DataFrame(some), pyarrow.Table.from_pylist(plain)
    for data in (some, frame, columns, table, made, made.to_iterable_dataset(), datasets.DatasetDict({"train": made})):
        place = place_of(data, tmp_path, "train")
        assert place == {"file": "train.jsonl"}
        assert first_rows(place, tmp_path) == plain
    keys = [{"m": [{"f": {"a": 1}}]}, {"m": [{"f": {"b": 2}}]}]
    made_keys = datasets.Dataset.from_list(keys)
    for data in (made_keys, made_keys.to_pandas(), pyarrow.Table.from_pylist(keys)):
        assert first_rows(place_of(data, tmp_path, "train"), tmp_path) == keys
    missing = [None, float("nan"), pandas.NaT, pandas.NA, numpy.float32("nan")]
    for data in ([{"a": cell, "b": [cell]} for cell in missing], pandas.DataFrame({"a": missing, "b": [[None]] * 5})):
        assert first_rows(place_of(data, tmp_path, "train"), tmp_path) == [{"a": None, "b": [None]}] * 5
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
        ([{}, {"a": object()}], "row 2 of data: column 'a' cannot be written as JSON (object is no text, number"),
        ([{"a": "\ud83d"}], "row 1 of data: column 'a' cannot be written as JSON ('utf-8' codec can't encode"),
        ({"a": 1}, "data is dict with a; give a file"),
        ({"a": [1], "b": [1, 2]}, "the columns of data have different lengths: {'a': 1, 'b': 2}"),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "data has the column 'a' twice"),
        ("missing.jsonl", "data='missing.jsonl': there is no such file"),
        ("qa.jsn", "data='qa.jsn': there is no such file; give its path, or 'qa.jsn:default' for a data set"),
        ("part-*.jsonl", "data='part-*.jsonl': there is no such file"),
    ],
)
def test_bad_rows_say_what_to_give(data, error, tmp_path):
    with pytest.raises((ConfigError, DataError)) as refused:
        place_of(data, tmp_path, "train")
    assert str(refused.value).startswith(error)


def test_a_tenth_is_held_out_by_question_alone(tmp_path):
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


def test_csv_with_a_missing_value_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("question,answer\n0?\n")
    given = Source.model_validate({"file": "t.csv", "verifier": "exact"})
    with pytest.raises(DataError, match=r"t\.csv row 1: has another number of values than the line of names"):
        read_prompts([given], 0, tmp_path)
    assert json.dumps(given.model_dump(mode="json"))
