"""Runs of episodes with vLLM: each turn's prompt continues the row, and log-probs are the trainer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.real_vllm import needs_vllm
from tests.stages.sessions import replacing, run_all
from tests.stages.sevens import recipe, rows
from tests.warm import VLLM, warm
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save_final

pytestmark = pytest.mark.integration
GAMES = {
    "data": {
        "train": [{"generator": {"name": "guess", "params": {"high": 6, "num_demonstrations": 0}}, "verifier": None}],
        "overlap": {"on_overlap": "report"},
    },
    "model": {"create": {"characters": "123456789 abcdefghijklmnopqrstuvwxyz?\n"}},
    "episodes": {"cut_turn": "answer", "max_turns": 3},
    "rl": {"algorithm": {"entropy_coef": 0.05}, "prompts_per_step": 2, "group_size": 4, "select": {"keep": "all"}},
}


def prompts_of(engine: Any) -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Return a list that will hold the prompts and answers of the engine."""
    seen: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = []
    plain = engine.generate

    def generate(requests: Any, *more: Any) -> Any:
        answers = plain(requests, *more)
        seen.extend((r.prompt_ids, [c.token_ids for c in own]) for r, own in zip(requests, answers, strict=True))
        return answers

    engine.generate = generate
    return seen


def played(config: RunConfig, folder: Path) -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Do the run; return prompts and answers of its engine."""
    with open_run(config, folder, folder / "run", "auto", Silent()) as session:
        seen = prompts_of(session.workers.rollouts.engine)
        run_all(session, replacing())
        save_final(session.run, session.workers.backend)
    return seen


@pytest.mark.slow
@needs_vllm
@pytest.mark.parametrize(("how", "next_turn"), [("vllm", "together"), ("vllm_server", "as_ready")])
def test_episodes_are_sampled_as_the_trainer_computes_them(how: str, next_turn: str, tmp_path: Path) -> None:
    vllm = {"servers": 1, "concurrency": 8} if how == "vllm_server" else {}
    episodes = {**GAMES["episodes"], "next_turn": next_turn}
    config = recipe(how, 2, **{**GAMES, "episodes": episodes, "rollout": {"engine": how, "vllm": vllm}})
    seen = warm(VLLM).call(played, config, tmp_path)
    found = rows(tmp_path / "run")
    assert len(found) == 2
    for row in found:
        assert row["episodes/turns"] > 1.5
        assert 0 < row["mismatch/p99"] < 1e-3
        assert row["masked/mismatch"] == 0
    timed = {"together": [], "as_ready": ["episodes.next_turn=as_ready"]}[next_turn]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["bytes_depend_on_time"] == timed
    assert json.loads((tmp_path / "run" / "parity.json").read_text())["differs"] is False
    first = min(len(prompt) for prompt, _ in seen)
    known = {prompt + answer for prompt, answers in seen for answer in answers}
    later = [prompt for prompt, _ in seen if len(prompt) > first]
    assert later
    for prompt in later:
        assert any(prompt[:n] in known for n in range(first + 1, len(prompt))), "a turn's prompt begins anew"
