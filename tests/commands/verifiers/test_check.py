"""`check` finds what makes a verifier unfit, each fault in a verifier that has only that one."""

import json

import pytest

from verizero.pipeline.cli import main
from verizero.pipeline.commands.verifiers.labelled_rows import Defaults, good_rows
from verizero.pipeline.commands.verifiers.proof import check
from verizero.pipeline.errors import ConfigError, UnknownName

ROWS = [
    {"id": i, "prompt": "?", "reference": str(n), "accept": [rf"\boxed{{{n}}}"], "refuse": [rf"\boxed{{{n + 1}}}"]}
    for i, n in enumerate(range(10, 16))
]
FAULTS = {
    "sound": ("return found.text == attempt.reference if found.text else found.no_answer()", None),
    "too strict": (
        "return found.text == attempt.reference + '.' if found.text else found.no_answer()",
        "right answers",
    ),
    "too lenient": ("return bool(found.text)", "near misses"),
    "pays for nothing": ("return not found.text or found.text == attempt.reference", "without content"),
    "crashes": ("return 1 / (int(attempt.reference) - 12) and found.text == attempt.reference", "never fails"),
    "random": ("import random; return random.random() < 0.7 and found.text == attempt.reference", "twice"),
    "remembers": ("seen.append(1); return found.text == attempt.reference and len(seen) < 100", "twice"),
    "slow": ("import time; time.sleep(0.015); return found.text == attempt.reference", "within 0.01 s"),
}


def write(folder, body, rows=ROWS):
    (folder / "mine.py").write_text(
        "from verizero.verifiers.base import final_answer, verifier\n\nseen = []\n\n"
        f"@verifier\ndef mine(attempt):\n    found = final_answer(attempt)\n    {body}\n"
    )
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.mark.run
@pytest.mark.parametrize(
    "fault",
    [
        f if f in ("sound", "too lenient", "crashes", "random") else pytest.param(f, marks=pytest.mark.nightly)
        for f in FAULTS
    ],
)
def test_each_fault_is_found(fault, tmp_path):
    body, finding = FAULTS[fault]
    rows = ROWS[:2] if fault == "slow" else ROWS
    report = check("mine", write(tmp_path, body, rows), base=tmp_path, time_s=0.01 if fault == "slow" else 60.0)
    failed = [f for f in report.findings if not f.passed]
    assert report.passed == (finding is None)
    if finding is None:
        assert "all checks passed" in str(report)
        assert report.rows_per_s > 0
        return
    assert any(finding in f.name for f in failed), str(report)
    assert "NOT FIT" in str(report)
    assert all(f.failures for f in failed)


def test_the_counts_are_of_what_was_checked(tmp_path):
    report = check("mine", write(tmp_path, FAULTS["sound"][0]), base=tmp_path, time_s=60)
    counts = {f.name: f.checked for f in report.findings}
    assert counts["right answers are accepted"] == 6
    assert counts["near misses are refused"] == 6
    assert counts["answers without content earn nothing"] == 6 * 21
    assert counts["rewritings keep the verdict"] == 6 * 10


def test_labelled_responses_serve_as_well(tmp_path):
    rows = [
        {"reference": "12", "response": r"\boxed{12}", "label": True},
        {"reference": "12", "response": r"\boxed{13}", "label": False},
    ]
    assert check("mine", write(tmp_path, FAULTS["sound"][0], rows), base=tmp_path).passed
    swapped = [{**r, "label": not r["label"]} for r in rows]
    assert not check("mine", write(tmp_path, FAULTS["sound"][0], swapped), base=tmp_path).passed


def test_rows_without_near_misses_prove_nothing(tmp_path):
    only_right = [{k: v for k, v in r.items() if k != "refuse"} for r in ROWS]
    with pytest.raises(ConfigError, match="no near miss"):
        check("mine", write(tmp_path, FAULTS["sound"][0], only_right), base=tmp_path)
    with pytest.raises(UnknownName):
        check("no_such_verifier", write(tmp_path, FAULTS["sound"][0]), base=tmp_path / "elsewhere")


BUILT_IN = {
    "code": {
        "reference": {"fn": "f", "tests": [{"args": [2], "expected": 4}, {"args": [3], "expected": 9}]},
        "accept": ["def f(x): return x * x", "```python\ndef f(x):\n    return x ** 2\n```"],
        "refuse": ["def f(x): return x + x", "import sys; sys.exit(0)", "def f(x): return 4"],
    },
    "unit_tests": {
        "reference": ["assert f(2) == 4", "assert f(3) == 9"],
        "truncated": True,  # of the row's own response, which it has not
        "accept": ["def f(x): return x * x"],
        "refuse": ["def f(x): return 4", "def f(x): raise SystemExit"],
    },
    "sql": {
        "reference": {"setup": "CREATE TABLE t (x); INSERT INTO t VALUES (1), (2);", "query": "SELECT SUM(x) FROM t"},
        "accept": ["SELECT SUM(x) FROM t", "SELECT 1 + 2"],
        "refuse": ["SELECT COUNT(x) FROM t", "SELECT x FROM t", "DROP TABLE t"],
    },
}


@pytest.mark.parametrize("verifier", BUILT_IN)
def test_built_in_verifiers_are_fit(verifier, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(BUILT_IN[verifier]) + "\n")
    report = check(verifier, tmp_path / "rows.jsonl", time_s=60.0)
    assert report.passed, str(report)


def test_a_verifier_beside_the_rows_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "elsewhere").mkdir()
    rows = write(tmp_path / "mine", FAULTS["sound"][0], ROWS[:2])
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert check("mine", rows).passed
    with pytest.raises(UnknownName, match="'mine'"):
        check("mine", good_rows(rows, Defaults("exact")))


def test_what_was_extracted_is_shown_of_the_first_rows_and_of_those_that_fail(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"reference": "12", "accept": [r"so \boxed{12}", r"\boxed{13}"], "refuse": ["14"]}
    path.write_text(json.dumps(row) + "\n")
    lines = str(check("numeric", path, time_s=60.0)).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("what was read"))
    assert "extracted '12'" in lines[first + 1]
    assert "extracted '14'" in lines[first + 3]
    assert any("extracted '13'" in line for line in lines[:first]), "among the failures"


def test_parameters_come_from_the_command_and_from_rows_that_have_their_own(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    plain = {"reference": "10", "accept": ["10.4"], "refuse": ["10.6"]}
    own = {**plain, "refuse": ["10.41"], "verifier": {"name": "numeric", "params": {"abs_tol": 0.4}}}
    named = {**plain, "verifier": "numeric"}
    other = {**plain, "verifier": {"name": "exact", "params": {}}}
    path.write_text("".join(json.dumps(r) + "\n" for r in (plain, own, named, other)))
    assert check("numeric", path, params={"abs_tol": 0.5}, time_s=60.0).passed
    assert not check("numeric", path, time_s=60.0).passed
    command = ["verify", "--check", "numeric", str(path), "--params"]
    assert main([*command, '{"abs_tol": 0.5}']) == 0
    assert main([*command, '{"abs_tol": 0.7}']) == 1
    capsys.readouterr()
    for params, said in (("0.5", "an object such as"), ("{", "an object such as"), ('{"tol": 1}', "abs_tol")):
        assert main([*command, params]) == 1
        assert said in capsys.readouterr().err


def test_parameters_are_those_of_a_named_verifier(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"reference": "10", "response": "10.4"}\n')
    assert main(["verify", str(path), "--verifier", "numeric", "--params", '{"abs_tol": 0.5}']) == 0
    assert json.loads(capsys.readouterr().out)["score"] == 1.0
    assert main(["verify", str(path), "--params", '{"abs_tol": 0.5}']) == 1
    assert "name one of them" in capsys.readouterr().err
