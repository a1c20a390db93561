"""Graders in a process of their own: the same verdicts, none lost when it dies, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import alive, until
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.sandbox import SandboxConfig
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.scoring.early_grading import attempt_of
from verizero.pipeline.scoring.grader_process import GraderProcess
from verizero.pipeline.scoring.purity import may_leave
from verizero.pipeline.scoring.score import Scorer
from verizero.pipeline.types import Attempt, EndedResponse, Prompt, Rollout
from verizero.verifiers.base import load

NOISY = """
from verizero.verifiers.base import verifier

@verifier
def noisy(attempt):
    print("graded", attempt.response, flush=True)
    return attempt.response == attempt.reference
"""
CODE = {"fn": "f", "tests": [{"args": [x], "expected": 2 * x} for x in range(3)]}
ASKED = {
    "math": [Attempt("\\boxed{\\frac12}", "0.5"), Attempt("\\boxed{2}", "0.5"), Attempt("<think>", "1")],
    "code": [Attempt("def f(x): return 2 * x", CODE), Attempt("def f(x): return x", CODE), Attempt("1 +", CODE)],
    "loud": [Attempt("a", "a"), Attempt("b", "a")],
}


@pytest.fixture
def choices(tmp_path: Path) -> dict[str, VerifierChoice]:
    (tmp_path / "noisy.py").write_text(NOISY)
    parts = [{"path": "noisy.py:noisy"}]
    return {
        "math": VerifierChoice(name="math"),
        "code": VerifierChoice(name="code"),
        "loud": VerifierChoice.model_validate(
            {"name": "combine", "params": {"parts": parts}}, context={"base": tmp_path}
        ),
    }


@pytest.fixture
def graders(choices: dict[str, VerifierChoice], tmp_path: Path) -> Iterator[GraderProcess]:
    made = GraderProcess(SandboxConfig(), tmp_path, choices)
    yield made
    made.close()


def here(choices: dict[str, VerifierChoice], base: Path) -> dict[str, Any]:
    return {k: load(c.name, c.path, base).bind(c.params, base) for k, c in choices.items()}


def without_seconds(verdicts: Any) -> list[tuple[Any, ...]]:
    return [(v.status, v.score, v.reason, v.extracted) for v in verdicts]


def process_of(graders: GraderProcess) -> subprocess.Popen[bytes]:
    graders.start()
    assert graders._process is not None
    return graders._process


@pytest.mark.integration
def test_verdicts_are_those_of_this_process(
    graders: GraderProcess, choices: dict[str, VerifierChoice], tmp_path: Path
) -> None:
    """Also of a verifier that prints, and of one that runs programs."""
    bound = here(choices, tmp_path)
    for key, attempts in ASKED.items():
        assert without_seconds(graders.score(key, attempts)) == without_seconds(bound[key].score(attempts)), key
    assert os.getpriority(os.PRIO_PROCESS, process_of(graders).pid) > os.getpriority(os.PRIO_PROCESS, 0)


def test_what_a_dead_process_leaves_is_graded_here(
    graders: GraderProcess, choices: dict[str, VerifierChoice], tmp_path: Path
) -> None:
    scorer = Scorer(ScoringConfig(), here(choices, tmp_path), process=graders)
    prompts = {f"p{i}": Prompt(f"p{i}", "q", "math", a.reference) for i, a in enumerate(ASKED["math"])}
    rollouts = [Rollout(f"p{i}", 0, (1,), (2,), (0.0,), a.response, "stop", 0) for i, a in enumerate(ASKED["math"])]
    wanted = [m.reward for m in scorer.score(prompts, rollouts)[0]]
    assert wanted == [1.0, 0.0, 0.0]
    for kills in (False, True):
        early = scorer.grade_early()
        process = process_of(graders)
        if kills:
            process.kill()
        early.add([EndedResponse(i, prompts[r.prompt_id], r.text, "stop") for i, r in enumerate(rollouts)])
        assert [m.reward for m in scorer.score(prompts, rollouts, early=early)[0]] == wanted
        asked = [attempt_of(prompts[r.prompt_id], r.text, "stop") for r in rollouts]
        assert len(early.verdicts(["math"] * 3, asked)[0]) == 3, "all were graded ahead"
    scorer.close()
    assert graders.score("math", ASKED["math"]) is None


def test_closing_ends_it_and_asking_a_closed_one_starts_none(graders: GraderProcess) -> None:
    process = process_of(graders)
    graders.close()
    assert process.poll() is not None
    graders.start()
    assert graders._process is None
    assert graders.score("math", ASKED["math"]) is None


@pytest.mark.integration
def test_it_ends_when_its_trainer_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from verizero.pipeline.config.choices import VerifierChoice\n"
        "from verizero.pipeline.config.sandbox import SandboxConfig\n"
        "from verizero.pipeline.scoring.grader_process import GraderProcess\n"
        "graders = GraderProcess(SandboxConfig(), Path('.'), {'math': VerifierChoice(name='math')})\n"
        "graders.start()\nprint(graders._process.pid, flush=True)\ntime.sleep(600)"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pid = int(trainer.stdout.readline())
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    until(lambda: not alive([pid]), "its end", 60)


def test_what_holds_a_model_or_a_connection_stays(choices: dict[str, VerifierChoice], tmp_path: Path) -> None:
    assert all(may_leave(bound) for bound in here(choices, tmp_path).values())
    judge = load("judge").bind()
    assert not may_leave(judge)
    assert not may_leave(load("reward_model").bind({"model": tmp_path}))
    assert not may_leave(load("combine").bind({"parts": [{"name": "math"}, {"name": "judge"}]}))
    assert not may_leave(object())
