"""The audit finds what it is for: planted errors, planted dependences on form, planted holes."""

import json
import subprocess
import sys

import pytest

from tests.verifiers.rows import WITHOUT_SANDBOX
from verizero.pipeline.cli import main
from verizero.pipeline.commands.verifiers.labelled_rows import Defaults, good_rows
from verizero.pipeline.commands.verifiers.proof import audit, disagree
from verizero.pipeline.commands.verifiers.rewriting import REWRITINGS, probes, rewritten
from verizero.pipeline.types import Verdict

ROWS = [
    {
        "id": f"{'r' if label else 'w'}{n}",
        "prompt": f"What is {n} + 1?",
        "reference": str(n + 1),
        "response": rf"So \boxed{{{n + label}}}",
        "label": label,
    }
    for label in (True, False)
    for n in (10, 20)
]
CODE = {
    "id": "c",
    "verifier": "code",
    "prompt": "Write f so that f(x) is x squared.",
    "reference": {"fn": "f", "tests": [{"args": [2], "expected": 4}, {"args": [5], "expected": 25}]},
    "response": "```python\ndef f(x):\n    return x * x\n```",
    "label": True,
}


def rows(tmp_path, given=ROWS, body="", verifier="numeric"):
    if body:
        (tmp_path / "mine.py").write_text(
            f"from verizero.verifiers.base import *\n\n@verifier\ndef mine(attempt):\n    {body}\n"
        )
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in given))
    return good_rows(path, Defaults("mine" if body else verifier, tmp_path))


def test_a_sound_verifier_passes_all_of_it(tmp_path):
    report = audit(rows(tmp_path))
    assert report.passed, str(report)
    counts = {f.name: f.checked for f in report.findings}
    assert counts["numeric: right answers are accepted"] == counts["numeric: near misses are refused"] == 2
    assert counts["rewritings keep the verdict"] == 2 * len(rewritten(ROWS[0]["response"]))
    assert counts["answers without content earn nothing"] >= 2 * 15


def test_errors_are_counted_each_way(tmp_path):
    flipped = [{**r, "label": not r["label"]} for r in ROWS[:1] + ROWS[2:]]
    report = audit(rows(tmp_path, [*ROWS[1:2], *flipped]))
    counts = {f.name: (f.checked, len(f.failures)) for f in report.findings}
    assert counts["numeric: right answers are accepted"] == (3, 2)
    assert counts["numeric: near misses are refused"] == (1, 1)
    assert "FAIL numeric: right answers are accepted (2 of 3 fail)" in str(report)
    errors = {c.row.id: c.what for c in report.cases["errors"]}
    assert errors == {"r10": "false positive", "w10": "false negative", "w20": "false negative"}
    assert not report.passed


def test_a_failing_grader_is_neither_right_nor_wrong(tmp_path):
    report = audit(rows(tmp_path, body="raise KeyError('x')"))
    failed = {f.name: len(f.failures) for f in report.findings if not f.passed}
    assert failed == {"the grader never fails": 4}
    assert [c.what for c in report.cases["errors"]] == ["failure"] * 4


RIGHT = "final_answer(attempt).text == attempt.reference"
BOX = "'\\\\boxed{%s}' % attempt.reference"
PLANTED = {
    "line break after it": f"return attempt.response == 'So ' + {BOX}",
    "thinking before it": f"return '<think>' not in attempt.response and {RIGHT}",
    "a wrong answer in the thinking": f"return {BOX} in attempt.response.partition('}}')[0] + '}}'",
    "spaces in the box": f"return {BOX} in attempt.response",
    "a sentence after it": f"return attempt.response.strip().rstrip('$').endswith('}}') and {RIGHT}",
    "a frame of another name": f"return 'fbox' not in attempt.response and {RIGHT}",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_verdict_that_depends_on_form_is_found(name, tmp_path):
    report = audit(rows(tmp_path, body=PLANTED[name]))
    assert [c.what for c in report.cases["changed"]].count(name) == 2, str(report)
    assert not report.passed


HOLES = {
    "nothing": f"return attempt.response == '' or {RIGHT}",
    "empty box": f"return 'boxed{{}}' in attempt.response or {RIGHT}",
    "many boxes": f"return {BOX} in attempt.response",
    "any of many": "return attempt.reference in (final_answer(attempt).text or '')",
    "not equal": "return attempt.reference in (final_answer(attempt).text or '')",
    "number 1 of the prompt": "return (final_answer(attempt).text or 'x').isdigit()",
    "thinking alone": "return attempt.reference in attempt.response",
    "praise": f"return 'correct' in attempt.response or {RIGHT}",
    "code that exits 0": f"return 'sys.exit(0)' in attempt.response or {RIGHT}",
    "tests overwritten": f"return 'conftest' in attempt.response or {RIGHT}",
}


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_found_by_its_probe(name, tmp_path):
    report = audit(rows(tmp_path, body=HOLES[name]))
    assert any(c.what.startswith(name) for c in report.cases["rewarded"]), str(report)
    assert "FAIL answers without content earn nothing" in str(report)
    assert not report.passed


@pytest.mark.run
def test_the_code_probes_are_real_attacks(tmp_path):
    """Against a grader that runs the program and its tests in one process, most of them win: they are no straw men."""
    test = "for x, expected in ((2, 4), (5, 25)):\n    test = {'expected': expected}\n    assert f(x) == expected\n"
    won = set()
    for name, response in probes(rows(tmp_path, [CODE])[0]).items():
        if "```python" in response:
            program = f"{response.strip('`').removeprefix('python')}\n\n{test}"
            done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=300)
            won |= {name} if done.returncode == 0 else set()
    names = (
        "code that exits 0",
        "code that ends the process",
        "code equal to everything",
        "expected values in a frame",
    )
    assert won >= set(names)


def test_a_second_opinion_saves_what_it_disagrees_about(tmp_path):
    (tmp_path / "kind.py").write_text(
        "from verizero.verifiers.base import verifier\n\n@verifier\ndef kind(attempt):\n    return True\n"
    )
    saved = tmp_path / "out" / "cases.jsonl"
    report = audit(rows(tmp_path), second="kind.py:kind", save=saved, base=tmp_path)
    assert report.compared == 4
    assert [c.row.id for c in report.cases["disagreements"]] == ["w10", "w20"]
    lines = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [x["id"] for x in lines if x["kind"] == "disagreements"] == ["w10", "w20"]
    assert "numeric against kind" in lines[0]["what"]
    assert "second opinion: 2 of 4" in str(report)


def test_a_failed_grader_disagrees_with_nobody():
    right, wrong, failed = Verdict("graded", 1.0), Verdict("graded", 0.0), Verdict("sandbox_error")
    assert disagree(right, wrong)
    assert disagree(right, Verdict("timeout"))
    assert not disagree(wrong, Verdict("no_answer"))
    assert not disagree(failed, right)
    assert not disagree(right, failed)


def test_there_are_ten_rewritings_and_each_changes_the_text():
    boxed, fenced = "First.\nSo \\boxed{5}", "See:\n```python\nx = 1\n```"
    assert len(REWRITINGS) >= 10
    assert len(rewritten(boxed)) >= 10
    assert "a longer fence" in rewritten(fenced)
    for text in (boxed, fenced):
        assert all(new != text for new in rewritten(text).values())


def test_a_number_of_the_prompt_that_is_the_answer_is_no_hack(tmp_path):
    given = [{"id": 1, "prompt": "Which is larger, 3 or 7?", "reference": "7", "response": "7"}]
    report = audit(rows(tmp_path, given))
    assert "number 1 of the prompt" in probes(rows(tmp_path, given)[0])
    assert "number 2 of the prompt" not in probes(rows(tmp_path, given)[0])
    assert report.passed


def test_the_built_in_verifiers_withstand_all_of_it(tmp_path):
    """Their own right and wrong answers, rewritten and probed."""
    labelled = [
        {"id": i, "verifier": {"name": n, "params": p}, "reference": r, "response": t, "label": bool(w)}
        for i, (n, p, r, t, w) in enumerate(WITHOUT_SANDBOX)
        if n != "format" and w in (0, 1) and p.get("where") != "response"
    ]
    finite = [r for r in labelled if "Infinity" not in json.dumps(r)]
    assert len(finite) > 80
    report = audit(rows(tmp_path, finite))
    assert report.passed, str(report)
    checked = {f.name.partition(":")[0] for f in report.findings}
    assert {"choice", "countdown", "exact", "json_schema", "numeric"} <= checked


def test_the_status_of_the_command_tells_whether_it_passed(tmp_path, capsys):
    file, saved = tmp_path / "rows.jsonl", tmp_path / "cases.jsonl"
    good = [{"reference": "2", "response": rf"\boxed{{{n}}}", "label": n == 2} for n in (2, 3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in good))
    assert main(["audit", str(file), "--verifier", "numeric"]) == 0
    assert "ok   numeric: right answers are accepted (1 checked)" in capsys.readouterr().out
    file.write_text(json.dumps({**good[0], "label": False}) + "\n")
    assert main(["audit", str(file), "--verifier", "numeric", "--save", str(saved)]) == 1
    assert json.loads(saved.read_text().splitlines()[0])["kind"] == "errors"
    assert main(["audit", str(file)]) == 1
    assert "field 'verifier'" in capsys.readouterr().err
