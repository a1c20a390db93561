"""The few responses that are sampled before training, and what they show."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.checks.before import CHANGE, chat_model, looked, of_chat, recipe, sums
from tests.stages.tiny import TREE, tiny
from verizero.pipeline.checks.before.parts import LocalParts, read_local_parts
from verizero.pipeline.checks.before.pass_rates import Sampled, judge
from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run import algorithm
from verizero.pipeline.types import FinishReason, Rollout, ScoredRollout, Verdict
from verizero.pipeline.whole_run import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model that was trained by SFT to add."""
    base = tmp_path_factory.mktemp("trained")
    train(
        tiny({"stages": ["sft"], "rl": None, "sft": {"steps": 400}, "evaluation": {"k": 1}}),
        base,
        base / "run",
        "auto",
        Progress(),
    )
    return base / "run" / "model"


def after(model: Path, longest: int = 36, **changes: Any) -> RunConfig:
    """Return a recipe of RL that starts from the model."""
    rollout = {"max_response_tokens": longest}
    return tiny({"stages": ["rl"], "sft": None, "rollout": rollout, **changes}, [f"model={{path: {model}}}"])


@pytest.mark.integration
@pytest.mark.parametrize("backend", ["torch", "fsdp"])
def test_a_model_that_is_sometimes_right_has_nothing(trained: Path, tmp_path: Path, backend: str) -> None:
    checks, findings = looked(after(trained, train={"backend": backend}), tmp_path, without_model=False)
    assert findings == {}
    right, total = map(int, re.findall(r"\d+", checks["pass rates"].result)[:2])
    assert 0 < right < total == 64


@pytest.mark.integration
def test_a_model_that_writes_an_end_at_which_generation_does_not_stop_is_found(trained: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained, model)
    for name, values in (("tokenizer_config", {"eos_token": "<pad>"}), ("generation_config", {"eos_token_id": 0})):
        path = model / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    _, findings = looked(after(model), tmp_path, without_model=False)
    assert findings["end_token_missing"].level == "problem"
    assert "write <eos> and continue" in findings["end_token_missing"].sentence
    assert "add 1 to eos_token_id" in findings["end_token_missing"].remedy


def test_a_model_that_is_made_in_the_run_is_not_sampled(tmp_path: Path) -> None:
    checks, _ = looked(tiny(), tmp_path, without_model=False)
    assert checks["pass rates"].result == "the model is made in this run"
    assert not checks["pass rates"].tried


def test_a_model_that_a_stage_trains_first_is_not_sampled(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model": {"path": chat_model(tmp_path), "create": None}}
    checks, _ = looked(
        recipe(tmp_path, sums(demonstration="1"), stages=["sft", "rl"], sft=TREE["sft"], **changes), tmp_path, False
    )
    assert checks["pass rates"].result == "stage sft trains the model before any stage samples from it"


def graded(recipe_: LocalParts, scores: list[float | None], cut: int = 0, limit: int = 8) -> list[Finding]:
    """Return what is found in responses of these scores; None: without an answer. The first `cut` were cut off."""
    prompts = {p.id: p for p in recipe_.train[: len(scores)]}
    scored = []
    for i, (name, score) in enumerate(zip(prompts, scores, strict=True)):
        ended: FinishReason = "length" if i < cut else "stop"
        response = Rollout(name, 0, (1,), (2, 3), (-0.1, -0.1), "text", ended, 0)
        verdict = Verdict("no_answer") if score is None else Verdict("graded", score)
        scored.append(ScoredRollout(response, verdict, score))
    return judge(Sampled(recipe_, prompts, scored, limit))


@pytest.mark.parametrize(
    ("scores", "cut", "cause"),
    [
        ([0.0, 1.0] * 10, 0, None),
        ([0.0] * 20, 0, "too_hard"),
        ([1.0] * 20, 0, "too_easy"),
        ([0.5] * 20, 0, None),
        ([0.0, 1.0] * 10, 2, None),
        ([0.0, 1.0] * 10, 4, "length_cap"),
        ([0.0] * 20, 19, "end_token_missing"),
        ([None] * 12 + [1.0] * 8, 0, "other_template"),
        ([None] * 8 + [1.0] * 12, 0, None),
    ],
)
def test_the_cause_is_that_of_the_responses(
    scores: list[float | None], cut: int, cause: str | None, tmp_path: Path
) -> None:
    config = of_chat(tmp_path, chat_model(tmp_path))
    local_parts = read_local_parts(config, tmp_path)
    findings = graded(local_parts, scores, cut)
    for change in [c for f in findings for c in CHANGE.findall(f.remedy)]:
        parse(config.model_dump(mode="json"), [change])
    assert [f.cause for f in findings] == ([] if cause is None else [cause])
    # Where the time allowed shorter responses only, a cut tells nothing of the recipe's limit.
    if cause in ("length_cap", "end_token_missing"):
        assert graded(local_parts, scores, cut, limit=4) == []


@pytest.mark.parametrize(("num", "level"), [(20, "problem"), (1, "warning"), (0, None)])
def test_a_verifier_that_fails_on_sampled_responses_is_a_finding(num: int, level: str | None, tmp_path: Path) -> None:
    recipe_ = read_local_parts(of_chat(tmp_path, chat_model(tmp_path)), tmp_path)
    prompts = {p.id: p for p in recipe_.train[:20]}
    failed = Verdict("verifier_error", reason="ValueError: 7")
    scored = [
        ScoredRollout(Rollout(name, 0, (1,), (2,), (-0.1,), "text", "stop", 0), verdict, None)
        for i, name in enumerate(prompts)
        for verdict in [failed if i < num else Verdict("graded", float(i % 2))]
    ]
    findings = judge(Sampled(recipe_, prompts, scored, 8))
    assert [(f.cause, f.level) for f in findings] == ([] if level is None else [("infrastructure_zeros", level)])
    assert level is None or f"fails on {num} of 20 sampled responses, first with: ValueError: 7" in findings[0].sentence


@pytest.mark.integration
@pytest.mark.parametrize("seconds", [0.1, 9.0])
def test_a_slow_machine_is_not_asked_and_says_so(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [0.0, seconds * algorithm.PROBE_TOKENS]
    monkeypatch.setattr(algorithm, "time", SimpleNamespace(monotonic=iter(readings).__next__))
    config = of_chat(tmp_path, chat_model(tmp_path))
    checks, findings = looked(config, tmp_path, without_model=False)
    assert checks["pass rates"].tried == (seconds < 1)
    if seconds < 1:
        assert " 64 responses to 16 training prompts" in checks["pass rates"].result
    else:
        assert findings["not_measured"].level == "note"
        assert "were not measured: a token of 64 responses takes 9.0 s here" in findings["not_measured"].sentence
