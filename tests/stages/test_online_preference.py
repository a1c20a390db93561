"""Online preferences: groups sampled, ranked by verifier or judge, the best trained against the worst; resumed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.data import VerifierChoice
from pipeline.config.pairs import RUBRIC, JudgedConfig
from pipeline.config.run import RunConfig
from pipeline.config.scoring import ScoringConfig
from pipeline.errors import ConfigError
from pipeline.loop.sampled_groups import read_judgement, rewarded_by_judge
from pipeline.report.progress import Silent
from pipeline.rollout.engine import Completion
from pipeline.run.graders import Graders
from pipeline.scoring.score import Scorer
from pipeline.train.ranks import ALONE
from pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict
from pipeline.whole_run import train
from tests.stages.kill_driver import fingerprint
from tests.stages.test_preference import killed_at
from tests.stages.tiny import tiny

SECTION = {
    "loss": {"name": "dpo"},
    "rounds": 2,
    "steps_per_round": 2,
    "prompts_per_step": 3,
    "group_size": 6,
    "optimizer": {"learning_rate": 1e-3},
}


def recipe(**given: Any) -> RunConfig:
    return tiny({"stages": ["sft", "online_preference"], "online_preference": {**SECTION, **given}})


def steps_of(folder: Path) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [r["metrics"] for r in lines if r["kind"] == "step" and r["stage"] == "online_preference"]


@pytest.mark.integration
@pytest.mark.parametrize(("loss", "schedule"), [("dpo", "every_round"), ("simpo", None)])
def test_best_trains_against_worst_and_a_stopped_run_ends_with_the_same_bytes(
    tmp_path: Path, loss: str, schedule: str | None
) -> None:
    config = recipe(loss={"name": loss}, reference=None if schedule is None else {"schedule": schedule})
    train(config, tmp_path, tmp_path / "whole", "auto", Silent())
    found = steps_of(tmp_path / "whole")
    assert len(found) == 4
    assert all(m["pairs"] >= 1 for m in found)
    assert all(
        m["groups/kept"] == m["groups/trained"] + m["groups/carried_out"] - m["groups/carried_in"] for m in found
    )
    if loss == "dpo":
        assert [m["reference/version"] for m in found] == [1, 1, 2, 2]
        assert found[0]["preference/margin"] == pytest.approx(0.0, abs=1e-6), "the reference is the policy"
        assert abs(found[1]["preference/margin"]) > 1e-5
        assert found[2]["preference/margin"] == pytest.approx(0.0, abs=1e-6)
    killed_at(config, tmp_path / "stopped", "update", 3)
    train(config, tmp_path, tmp_path / "stopped", "must", Silent())
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": {"name": "dpo", "beta": 0}}, "beta = 0"),
        ({"group_size": 1}, "group_size must be >= 2"),
        ({"loss": {"name": "simpo"}, "reference": {"schedule": "every_round"}}, "'simpo' has no reference"),
        ({"loss": {"name": "dpo"}, "reference": {"schedule": "none"}}, "'dpo' needs a reference"),
        ({"judge": "polcy"}, "polcy"),
        ({"algorithm": {"name": "grpo"}}, "unknown key 'online_preference.algorithm'"),
    ],
)
def test_what_makes_no_sense_is_refused_while_the_recipe_loads(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as found:
        recipe(**given)
    assert words in str(found.value)


class Judging:
    """An engine that judges by a table: what the rubric's text holds -> what it says."""

    version = 0

    def __init__(self, said: dict[str, str]) -> None:
        self.said, self.asked = said, []

    def generate(self, requests: Any, sampling: Any) -> list[list[Completion]]:
        assert sampling.temperature == 0
        self.asked += ["".join(map(chr, r.prompt_ids)) for r in requests]
        out = []
        for text in self.asked[-len(requests) :]:
            reply = next(v for k, v in self.said.items() if f"answer: {k}\n" in text)
            out.append([Completion(tuple(map(ord, reply)), (0.0,) * len(reply), "stop")])
        return out


class Letters:
    """A character is a token."""

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(map(ord, prompt.question))

    def decode(self, ids: Any) -> str:
        return "".join(map(chr, ids))


def judged(engine: Any, groups: list[Group], judge: Any) -> list[Group]:
    run: Any = SimpleNamespace(
        ranks=ALONE, data=SimpleNamespace(renderer=Letters()), seed=0, base_dir=None, shared=Path()
    )
    graders = Graders(Scorer(ScoringConfig(), {}))
    workers: Any = SimpleNamespace(rollouts=SimpleNamespace(engine=engine), graders=graders)
    recorder: Any = SimpleNamespace(timed=lambda phase: nullcontext())
    return rewarded_by_judge(run, workers, recorder, groups, judge, JudgedConfig())


def group(*texts: str) -> Group:
    members = tuple(
        ScoredRollout(Rollout("p", i, (1,), (2,), (-0.1,), text, "stop", 0), Verdict("graded", 0.0), 0.0)
        for i, text in enumerate(texts)
    )
    return Group(Prompt("p", "what is 1+1?", "exact", "2"), members)


def test_the_policy_judges_itself_by_the_rubric_and_one_without_a_score_has_no_reward() -> None:
    engine = Judging({"2": "well. Score: 5", "3": "score: 1\nno, score = 0.5", "4": "who knows", "5": "score: 9"})
    (found,) = judged(engine, [group("2", "3", "4", "5")], "policy")
    assert [m.reward for m in found.members] == [1.0, 0.1, None, None]
    assert [m.verdict.status for m in found.members] == ["graded"] * 4, "the verifier's verdict stays"
    assert "question: what is 1+1?" in engine.asked[0]
    assert engine.asked[0] == RUBRIC.replace("{question}", "what is 1+1?").replace("{response}", "2")


def test_another_verifier_ranks_instead_of_the_prompts_own() -> None:
    choice = VerifierChoice(name="length", params={"max_length": 4, "buffer": 2, "unit": "characters"})
    (found,) = judged(None, [group("12", "12345")], choice)
    assert found.members[0].reward == 1.0
    assert found.members[1].reward is not None
    assert found.members[1].reward < 1.0


def test_without_a_judge_groups_stay_as_they_are() -> None:
    groups = [group("1", "2")]
    assert judged(None, groups, None) == groups


@pytest.mark.parametrize(("text", "score"), [("Score: 2.5", 0.5), ("score=0", 0.0), ("score : 3, so score: 4", 0.8)])
def test_the_last_score_of_a_judgement_counts(text: str, score: float) -> None:
    assert read_judgement(text, 5).score == pytest.approx(score)


@pytest.mark.parametrize("text", ["", "five", "score: many", "score: 6", "score: -1"])
def test_a_judgement_without_a_score_is_a_graders_failure(text: str) -> None:
    assert read_judgement(text, 5).is_infrastructure
