"""Verifying a stream: order, flushing, bad lines, batches."""

import io
import json

import pytest

from verizero.pipeline.cli import main
from verizero.pipeline.commands.verifiers.labelled_rows import Defaults, good_rows
from verizero.pipeline.commands.verify import verify
from verizero.pipeline.errors import DataError

ROWS = [
    ({"id": "a", "verifier": "numeric", "reference": "42", "response": r"\boxed{42}"}, "graded", 1.0),
    ({"id": "b", "verifier": "choice", "reference": "B", "response": "Answer: C"}, "graded", 0.0),
    ({"id": 3, "verifier": "numeric", "reference": "42", "response": ""}, "no_answer", 0.0),
    ({"id": "d", "verifier": "numeric", "reference": "x", "response": "42"}, "verifier_error", 0.0),
    (
        {"id": "e", "verifier": {"name": "numeric", "params": {"abs_tol": 1}}, "reference": 41, "response": "42"},
        "graded",
        1.0,
    ),
    ({"id": "f", "verifier": "numeric", "reference": "41", "response": "42"}, "graded", 0.0),
    ({"id": "g", "verifier": "length", "reference": None, "response": "x", "truncated": True}, "graded", 0.0),
]
BAD = [
    ("{", "line 2: not JSON"),
    ("[1]", "line 2: expected an object"),
    ('{"id": "q", "reference": 1, "response": "1"}', "line 2: field 'verifier'"),
    ('{"id": "q", "verifier": "numeric", "response": "1"}', "line 2: field 'reference'"),
    (
        '{"id": "q", "verifier": "math", "reference": NaN, "response": "1"}',
        "line 2: field 'reference': nan is no answer",
    ),
    ('{"id": "q", "verifier": "numeric", "reference": 1}', "line 2: field 'response'"),
    ('{"id": "q", "verifier": "numeric", "reference": 1, "response": 1}', "line 2: field 'response': expected text"),
    ('{"id": "q", "verifier": "numerik", "reference": 1, "response": "1"}', "did you mean numeric"),
    ('{"id": "q", "verifier": {"name": "numeric", "params": {"tol": 1}}, "reference": 1, "response": "1"}', "'tol'"),
    ('{"id": "q", "verifier": {}, "reference": 1, "response": "1"}', "line 2: field 'verifier'"),
    ('{"id": "q", "verifier": 7, "reference": 1, "response": "1"}', "line 2: field 'verifier'"),
    ('{"id": "q", "verifier": "numeric", "reference": 1, "response": "1", "label": "yes"}', "line 2: field 'label'"),
    ('{"id": "q", "verifier": "numeric", "reference": 1, "accept": [1]}', "line 2: field 'accept'"),
    ("[" * 100_000, "line 2: not JSON"),
]


def run(lines, batch=1, **defaults):
    out = io.StringIO()
    counts = verify(lines, out, batch=batch, defaults=Defaults(**defaults) if defaults else None)
    return [json.loads(line) for line in out.getvalue().splitlines()], counts


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_every_row_gets_its_line_in_order_whatever_the_batch(batch):
    lines, counts = run([json.dumps(row) + "\n" for row, _, _ in ROWS], batch)
    assert [(x["id"], x["status"], x["score"]) for x in lines] == [(r["id"], s, v) for r, s, v in ROWS]
    assert all(set(x) == {"id", "status", "score", "reason"} for x in lines)
    assert (counts.rows, counts.bad_lines, counts.correct, counts.infrastructure) == (7, 0, 2, 1)


@pytest.mark.parametrize(("line", "named"), BAD)
def test_a_bad_line_names_itself_and_the_others_go_on(line, named):
    good = json.dumps(ROWS[0][0])
    lines, counts = run(["\n", line, "\n", good], batch=2)
    assert len(lines) == 2
    assert named in lines[0]["reason"]
    assert lines[0]["status"] == "verifier_error"
    assert lines[0]["id"] == ("q" if line.startswith('{"id"') else None)
    assert lines[1] == {"id": "a", "status": "graded", "score": 1.0, "reason": lines[1]["reason"]}
    assert (counts.rows, counts.bad_lines) == (1, 1)


class Watched(io.StringIO):
    flushed = 0

    def flush(self):
        super().flush()
        self.flushed = self.getvalue().count("\n")


@pytest.mark.parametrize("batch", [1, 3])
def test_each_line_is_out_before_more_is_read_than_a_batch(batch):
    out = Watched()

    def lines():
        for i in range(10):
            assert out.flushed >= i - i % batch
            yield json.dumps({**ROWS[0][0], "id": i})

    verify(lines(), out, batch=batch)
    assert out.flushed == 10


def test_rows_without_a_verifier_use_the_default(tmp_path):
    row = {"id": 1, "reference": "42", "response": "42"}
    assert run([json.dumps(row)], verifier="numeric")[0][0]["score"] == 1.0
    (tmp_path / "mine.py").write_text(
        "from verizero.verifiers.base import verifier\n\n@verifier\n"
        "def mine(attempt):\n    return attempt.response == 'yes'\n"
    )
    for name in ("mine", "mine.py:mine"):
        lines, _ = run([json.dumps({**row, "response": r}) for r in ("yes", "no")], verifier=name, base=tmp_path)
        assert [x["score"] for x in lines] == [1.0, 0.0]


def test_a_file_of_rows_is_whole_or_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0][0]) + "\n" + "{\n")
    with pytest.raises(DataError, match=r"rows.jsonl: line 2: not JSON"):
        good_rows(path)
    path.write_text("")
    with pytest.raises(DataError, match="holds no rows"):
        good_rows(path)
    with pytest.raises(DataError, match="No such file"):
        good_rows(tmp_path / "none.jsonl")


@pytest.mark.parametrize(("references", "code"), [(["x", "y"], 1), (["x", "42"], 0), ([], 0)])
def test_the_exit_code_says_if_no_row_could_be_graded(tmp_path, references, code):
    rows = [{"id": "a", "verifier": "numeric", "reference": r, "response": "42"} for r in references]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["verify", str(tmp_path / "rows.jsonl")]) == code
