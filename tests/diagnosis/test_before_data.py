"""Data that a run refuses, and verifiers that fail: each is found before training, with its place and its remedy."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.diagnosis.before import chat_model, looked, of_chat, recipe, sums
from verizero.pipeline.cli import main
from verizero.pipeline.commands.preflight.local_parts import LocalParts, read_local_parts
from verizero.pipeline.commands.preflight.pass_rates import Sampled, judge
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import DataError
from verizero.pipeline.run import sampling
from verizero.pipeline.run.build import build_tokenizer, context_of
from verizero.pipeline.run.data import prepare_data
from verizero.pipeline.types import Rollout, ScoredRollout, Verdict


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def run_refuses(config: RunConfig, folder: Path) -> None:
    """Assert that a run does not start with this data."""
    with pytest.raises(DataError):
        prepare_data(config, build_tokenizer(config), context_of(config), folder, folder / "run")


@pytest.mark.parametrize("part", ["train", "evaluation", "demonstrations"])
def test_a_missing_file_is_a_finding_with_the_status_of_a_problem(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [r | {"demonstration": r["answer"]} for r in sums()]
    changes: dict[str, Any] = {"stages": ["sft", "rl"], "sft": {"steps": 1}} if part == "demonstrations" else {}
    config = recipe(tmp_path, rows, **changes, data={part: [{"file": "gone.jsonl"}]})
    run_refuses(config, tmp_path)
    checks, findings = looked(config, tmp_path)
    assert findings["data_refused"].level == "problem"
    assert "gone.jsonl" in findings["data_refused"].sentence
    assert "give a path from the recipe's folder" in findings["data_refused"].remedy
    assert [(e.file, e.text) for e in findings["data_refused"].evidence] == [("the recipe", f"data.{part}")]
    assert checks["rows"].tried == (part != "train")
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    assert main(["diagnose", "--before", str(path)]) == 3
    assert "PROBLEM  data_refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"question": "1+1=", "verifier": "math"}, "no answer"),
        ({**sums()[0], "id": "2"}, "'2'"),
        ({**sums()[0], "id": "new", "verifier": "maths"}, "maths"),
        ({**sums()[0], "id": "new", "question": 5}, "question"),
    ],
)
def test_a_bad_row_is_a_finding_with_its_line(row: dict[str, Any], named: str, tmp_path: Path) -> None:
    config = recipe(tmp_path, [*sums(4), row])
    run_refuses(config, tmp_path)
    checks, findings = looked(config, tmp_path)
    assert named in findings["data_refused"].sentence
    assert [(e.file, e.line) for e in findings["data_refused"].evidence] == [("train.jsonl", 5)]
    assert findings["data_refused"].remedy
    assert "first mend train.jsonl" in checks["rows"].result


def test_missing_texts_of_a_stage_are_a_finding(tmp_path: Path) -> None:
    write(tmp_path / "empty.jsonl", [])
    for file, reason in (("gone.txt", "gone.txt"), ("empty.jsonl", "has no text")):
        changes = {"stages": ["pretrain", "rl"], "pretrain": {"steps": 1, "text": [file]}}
        config = recipe(tmp_path, sums(), **changes)
        run_refuses(config, tmp_path)
        _, findings = looked(config, tmp_path)
        assert reason in findings["data_refused"].sentence
        assert findings["data_refused"].evidence[0].text == "pretrain.text"


PAIR = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}


def of_pairs(folder: Path, rows: list[dict[str, Any]] | None, stage: str = "preference", **section: Any) -> RunConfig:
    """Return a recipe with a stage that trains on these pairs of a file; None: the file is missing."""
    if rows is not None:
        write(folder / "pairs.jsonl", rows)
    source = {"file": "pairs.jsonl", **section.pop("source", {})}
    own = {"steps": 1, **({} if stage == "reward_model" else {"loss": {"name": "dpo"}})}
    return recipe(folder, sums(), stages=[stage], rl=None, **{stage: {"pairs": [source], **own, **section}})


@pytest.mark.parametrize("stage", ["preference", "reward_model"])
@pytest.mark.parametrize(
    ("rows", "line", "named"),
    [
        (None, None, "no file at"),
        ([], None, "no row of pairs.jsonl is left"),
        ([{**PAIR, "rejected": "2"}] * 3, None, "3 with equal sides"),
        ([{**PAIR, "chosen": " "}] * 3, None, "3 with an empty side"),
        ([PAIR, {"prompt": "1+1=", "chosen": "2"}], 2, "'rejected'"),
        ([PAIR, {"chosen": "2", "rejected": "3"}], 2, "prompt"),
        ([PAIR, {"prompt": "1+1=", "text": "2"}], 2, "neither 'chosen'"),
        ([{"prompt": "1+1=", "completion": "2", "label": True}] * 2, 1, "the loss takes pairs"),
        ([{**PAIR, "chosen": "2" * 100}] * 2, None, "longer than the model's context"),
        ([{**PAIR, "chosen": "\u4e8c"}] * 2, None, "does not know"),
    ],
)
def test_pairs_that_a_run_refuses_are_a_finding(
    rows: list[dict[str, Any]] | None, line: int | None, named: str, stage: str, tmp_path: Path
) -> None:
    config = of_pairs(tmp_path, rows, stage)
    run_refuses(config, tmp_path)
    _, findings = looked(config, tmp_path)
    assert findings["data_refused"].level == "problem"
    assert named in findings["data_refused"].sentence
    assert findings["data_refused"].remedy
    if line is not None:
        assert findings["data_refused"].evidence[0].line == line


def test_pairs_that_a_stage_refuses_as_it_begins_are_a_finding(tmp_path: Path) -> None:
    other = {**PAIR, "prompt": "2+2=", "chosen": "4"}
    for rows, stage, section, named in (
        ([PAIR] * 3, "reward_model", {}, "have one prompt"),
        ([PAIR, other], "preference", {"parts": 3}, "2 pairs for 3 parts"),
        ([PAIR] * 3, "preference", {"loss": {"name": "kto"}}, "have one prompt"),
        ([{**PAIR, "answer": "3"}, {**other, "answer": "5"}], "preference", DROPS, "every chosen side wrong"),
        ([{**PAIR, "answer": "2", "verifier": "maths"}, other], "preference", {}, "maths"),
    ):
        _, findings = looked(of_pairs(tmp_path, rows, stage, **section), tmp_path)
        assert named in findings["data_refused"].sentence


DROPS = {"on_wrong_chosen": "drop", "source": {"verifier": {"name": "math"}}}


def test_pairs_that_can_be_trained_on_have_nothing(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}+{i}=", "chosen": str(2 * i), "rejected": "0", "answer": str(2 * i)} for i in range(1, 30)]
    for stage in ("preference", "reward_model"):
        checks, findings = looked(of_pairs(tmp_path, rows, stage, **DROPS), tmp_path)
        assert findings == {}
        assert f"29 pairs of {stage}.pairs" in checks["data"].result


def test_pairs_whose_sides_are_in_the_wrong_columns_are_found(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}+{i}=", "chosen": "0", "rejected": str(2 * i), "answer": str(2 * i)} for i in range(1, 30)]
    _, findings = looked(of_pairs(tmp_path, rows, source={"verifier": {"name": "math"}}), tmp_path)
    assert "29 of 29 chosen sides of pairs" in findings["wrong_references"].sentence
    assert [(e.file, e.line) for e in findings["wrong_references"].evidence[:1]] == [("pairs.jsonl", 1)]


BODIES = {
    "divides": "return 1 / 0",
    "keys": 'return attempt.reference["value"] == attempt.response',
    "converts": "return float(attempt.response) == float(attempt.reference['value'])",
    "outside": "return 7.0",
}


@pytest.mark.parametrize("answer", ["8", {"tests": [1]}, ["a", "b"], 8])
@pytest.mark.parametrize("body", BODIES)
def test_a_verifier_that_fails_on_every_reference_is_a_finding(body: str, answer: Any, tmp_path: Path) -> None:
    source = f"from verizero.verifiers.base import verifier\n\n@verifier\ndef f(attempt):\n    {BODIES[body]}\n"
    (tmp_path / "own.py").write_text(source)
    data = {"train": [{"file": "train.jsonl", "verifier": {"path": "own.py:f"}}]}
    _, findings = looked(recipe(tmp_path, sums(20, answer=answer), data=data), tmp_path)
    finding = findings["infrastructure_zeros"]
    assert finding.level == "problem"
    assert "fails on 20 of 20 references" in finding.sentence
    assert [(e.file, e.line) for e in finding.evidence[:1]] == [("train.jsonl", 1)]
    assert "verifier_error" in finding.evidence[0].text
    assert "verify --check" in finding.remedy


def test_a_verifier_that_refuses_what_is_no_answer_is_no_finding(tmp_path: Path) -> None:
    body = "isinstance(attempt.reference, dict) and attempt.response == 'x'"
    (tmp_path / "own.py").write_text(
        f"from verizero.verifiers.base import verifier\n\n@verifier\ndef f(attempt):\n    return {body}\n"
    )
    data = {"train": [{"file": "train.jsonl", "verifier": {"path": "own.py:f"}}]}
    checks, findings = looked(recipe(tmp_path, sums(20, answer={"tests": [1]}), data=data), tmp_path)
    assert findings == {}
    assert "it fails on 0 of 20 calls" in checks["references"].result


def local_parts(folder: Path) -> LocalParts:
    return read_local_parts(of_chat(folder, chat_model(folder)), folder)


@pytest.mark.parametrize(("num", "level"), [(20, "problem"), (2, "problem"), (1, "warning"), (0, None)])
def test_a_verifier_that_fails_on_sampled_responses_is_a_finding(num: int, level: str | None, tmp_path: Path) -> None:
    recipe_ = local_parts(tmp_path)
    prompts = {p.id: p for p in recipe_.train.prompts[:20]}
    failed = Verdict("verifier_error", reason="ValueError: 7")
    scored = [
        ScoredRollout(Rollout(name, 0, (1,), (2,), (-0.1,), "text", "stop", 0), verdict, None)
        for i, name in enumerate(prompts)
        for verdict in [failed if i < num else Verdict("graded", float(i % 2))]
    ]
    findings = judge(recipe_, Sampled(prompts, scored, 8))
    assert [(f.cause, f.level) for f in findings] == ([] if level is None else [("infrastructure_zeros", level)])
    assert level is None or f"fails on {num} of 20 sampled responses, first with: ValueError: 7" in findings[0].sentence


@pytest.mark.integration
@pytest.mark.parametrize(
    ("seconds_per_token", "num_prompts"), [((0.1,), 16), ((9.0, 0.1), 4), ((9.0, 9.0, 0.1), 1), ((9.0, 9.0, 9.0), 0)]
)
def test_a_slow_machine_is_asked_less_and_says_so(
    seconds_per_token: tuple[float, ...], num_prompts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [at for s in seconds_per_token for at in (0.0, s * sampling.PROBE_TOKENS)]
    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=iter(readings).__next__))
    config = of_chat(tmp_path, chat_model(tmp_path))
    checks, findings = looked(config, tmp_path, without_model=False)
    result = checks["pass rates"].result
    assert checks["pass rates"].tried == (num_prompts > 0)
    assert ("not_measured" in findings) == (num_prompts == 0)
    if num_prompts == 0:
        assert findings["not_measured"].level == "note"
        assert "were not measured: a token of 4 responses takes 9.0 s here" in findings["not_measured"].sentence
    else:
        assert f" {4 * num_prompts} responses to {num_prompts} training prompts" in result
        assert ("fewer prompts than 16" in result) == (num_prompts < 16)
