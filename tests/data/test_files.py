"""Files as people have them: what is read whatever its name or cells are, and why another is refused."""

import gzip
import json
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.data.rows import load
from verizero.pipeline.api.given import first_rows, place_of
from verizero.pipeline.data.source_files import plain
from verizero.pipeline.errors import DataError

ROWS = [{"question": f"{i}é?", "answer": str(i)} for i in range(3)]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()
CELLS = "question,answer\n" + "".join(f"{r['question']},{r['answer']}\n" for r in ROWS)


def packed(content: bytes) -> bytes:
    """Without the present time, which gzip writes: each process of the tests must name its cases alike."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl.gz", packed(LINES)),
        ("rows.jsonl", packed(LINES)),
        ("rows.json.gz", packed(json.dumps(ROWS).encode())),
        ("rows.csv.gz", packed(CELLS.encode())),
        ("rows.jsonl", b"\xef\xbb\xbf" + LINES),
        ("rows.jsonl", LINES.replace(b"\n", b"\r\n")),
        ("rows.jsonl", LINES.replace(b"?", "\u2028".encode())),
        ("rows.jsonl", LINES.replace(b"{", b'{"answer": "9", ')),
        ("rows.csv", b'question,answer\r\n"a\r\nb",0\r\n'),
        ("rows.csv", b",question,answer\n0,a?,0\n1,b?,1\n"),
        ("rows.tsv", CELLS.replace(",", "\t").encode()),
        ("rows.csv", CELLS.replace("answer\n", "answer,,\n").replace("0\n", "0,,\n").encode()),
    ],
)
def test_read_as_they_are(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert load(tmp_path, file=name, verifier="exact", limit=1)[0].reference == "0"


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("rows.jsonl", LINES.decode().encode("gbk"), "rows.jsonl line 1: not UTF-8 (invalid start byte at byte 15)"),
        ("rows.jsonl", LINES.decode().encode("utf-16"), "rows.jsonl line 1: not UTF-8"),
        ("rows.jsonl", json.dumps(ROWS, indent=1).encode(), "rows.jsonl line 1: not JSON"),
        ("rows.jsonl", b"[\n" + LINES.replace(b"\n", b",\n") + b"\n]", "a list of objects is in a file"),
        ("rows.jsonl", json.dumps(ROWS).encode(), "got list; a list of objects is in a file whose name ends in .json"),
        ("rows.jsonl", LINES.replace(b"\n", b",\n") + b",", "remove the comma after the object"),
        ("rows.jsonl", LINES.replace(b'"', b"'"), "these are quotes of Python; write rows with json.dumps"),
        ("rows.jsonl", LINES.replace(b"\n", b"\r"), "its lines end in a carriage return alone"),
        ("rows.json", json.dumps(ROWS, ensure_ascii=False).encode("latin-1"), "rows.json: not UTF-8 (invalid"),
        ("rows.csv", CELLS.encode("latin-1"), "rows.csv: not a CSV file in UTF-8 that can be read"),
        ("rows.csv", b"question,answer,answer\na,1,2\n", "rows.csv: the column 'answer' comes 2 times"),
        ("rows.jsonl.gz", packed(LINES)[:30], "rows.jsonl.gz: cannot be unpacked"),
    ],
)  # fmt: skip
def test_a_file_says_itself_why_it_is_not_read(name, content, error, tmp_path):
    """Where columns are guessed, as where a recipe names them."""
    (tmp_path / name).write_bytes(content)
    for read in (lambda: load(tmp_path, file=name, verifier="exact"), lambda: first_rows({"file": name}, tmp_path)):
        with pytest.raises(DataError) as refused:
            read()
        assert error in str(refused.value)


def test_a_cell_may_be_long_and_a_pattern_names_several_files(tmp_path):
    (tmp_path / "rows.csv").write_text(f"question,answer\n{'a' * 200_000},1\n")
    assert len(load(tmp_path, file="rows.csv", verifier="exact")[0].question) == 200_000
    for row in ROWS:
        (tmp_path / f"part-{row['answer']}.jsonl").write_text(json.dumps(row))
    prompts = load(tmp_path, file="part-*.jsonl", verifier="exact")
    assert [p.reference for p in prompts] == ["0", "1", "2"]
    assert len({p.id for p in prompts}) == 3
    place = place_of(str(tmp_path / "part-*.jsonl"), tmp_path, "train")
    assert first_rows(place, tmp_path) == ROWS
    assert plain(Decimal("1E+5000")) == 10**5000


@pytest.mark.parametrize(
    ("cell", "reference"),
    [
        (Decimal("1.50"), 1.5),
        (Decimal("42.00"), 42),
        (Decimal("0.1234567890123456789"), "0.1234567890123456789"),
        (date(2024, 2, 29), "2024-02-29"),
        (b"abc", "abc"),
        ([1.5, float("nan")], [1.5, None]),
        (0, 0),
        (False, False),
        (b"\xff", "column 'answer' cannot be read: 'utf-8' codec"),
        (float("inf"), "column 'answer' is inf, which is no number"),
        (float("nan"), "row 1: the row has no answer: column 'answer' is empty"),
        (None, "row 1: the row has no answer: column 'answer' is empty"),
    ],
    ids=repr,
)
def test_cells_of_parquet_are_values_of_json(cell, reference, tmp_path):
    """The column `other` has them too, and nobody reads it."""
    pa.parquet.write_table(pa.table({"question": ["a"], "answer": [cell], "other": [cell]}), tmp_path / "rows.parquet")
    read = lambda: load(tmp_path, file="rows.parquet", verifier={"path": "r.py:f"})  # noqa: E731
    if isinstance(reference, str) and "answer" in reference:
        with pytest.raises(DataError, match=reference):
            read()
        return
    assert read()[0].reference == reference
    assert type(read()[0].reference) is type(reference)


def test_the_keys_that_a_table_adds_to_an_object_are_not_there(tmp_path):
    answers = [{"f": {"a": 1}, "g": [None, 1]}, {"f": {"b": 2}, "g": [None, 1]}]
    rows = [{"question": f"{i}?", "answer": answer} for i, answer in enumerate(answers)]
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    prompts = load(tmp_path, file="rows.parquet", verifier={"path": "r.py:f"})
    assert [p.reference for p in prompts] == answers
