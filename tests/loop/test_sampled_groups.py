"""Rewards by another judge: the policy itself with a rubric, a verifier, or none."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.rollout.test_generate import Letters
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.pairs import RUBRIC, JudgedConfig
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.loop.sampled_groups import read_judgement, rewarded_by_judge
from verizero.pipeline.rollout.engine import Completion
from verizero.pipeline.rollout.generate import Generation
from verizero.pipeline.run.graders import Graders
from verizero.pipeline.scoring.score import Scorer
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict


class Judging:
    """An engine that judges by a table: the answer in the rubric's text -> its reply."""

    version = 0

    def __init__(self, replies):
        self.replies, self.asked = replies, []

    def generate(self, requests, sampling, listener=None):
        assert sampling.temperature == 0
        self.asked += ["".join(map(chr, r.prompt_ids)) for r in requests]
        out = []
        for text in self.asked[-len(requests) :]:
            reply = next(v for k, v in self.replies.items() if f"answer: {k}\n" in text)
            out.append([Completion(tuple(map(ord, reply)), (0.0,) * len(reply), "stop")])
        return out


def judged(engine, groups, judge):
    run = SimpleNamespace(ranks=ALONE, data=SimpleNamespace(renderer=Letters()), seed=0, base_dir=None, folder=Path())
    graders = Graders(Scorer(ScoringConfig(), {}))
    generation = Generation(engine, run.data.renderer, run.seed)
    workers = SimpleNamespace(rollouts=SimpleNamespace(generation=generation), graders=graders)
    recorder = SimpleNamespace(timed=lambda phase: nullcontext())
    return rewarded_by_judge(run, workers, recorder, groups, judge, JudgedConfig())


def group(*texts):
    members = tuple(
        ScoredRollout(Rollout("p", i, (1,), (2,), (-0.1,), text, "stop", 0), Verdict("graded", 0.0), 0.0)
        for i, text in enumerate(texts)
    )
    return Group(Prompt("p", "what is 1+1?", "exact", "2"), members)


def test_the_policy_judges_itself_by_the_rubric_and_one_without_a_score_has_no_reward():
    engine = Judging({"2": "well. Score: 5", "3": "score: 1\nno, score = 0.5", "4": "who knows", "5": "score: 9"})
    (ranked,) = judged(engine, [group("2", "3", "4", "5")], "policy")
    assert [m.reward for m in ranked.members] == [1.0, 0.1, None, None]
    assert [m.verdict.status for m in ranked.members] == ["graded"] * 4, "the verifier's verdict stays"
    assert "question: what is 1+1?" in engine.asked[0]
    assert engine.asked[0] == RUBRIC.replace("{question}", "what is 1+1?").replace("{response}", "2")


def test_another_verifier_ranks_instead_of_the_prompts_own():
    choice = VerifierChoice(name="length", params={"max_length": 4, "buffer": 2, "unit": "characters"})
    (ranked,) = judged(None, [group("12", "12345")], choice)
    assert ranked.members[0].reward == 1.0
    assert ranked.members[1].reward < 1.0


def test_without_a_judge_groups_stay_as_they_are():
    groups = [group("1", "2")]
    assert judged(None, groups, None) == groups


@pytest.mark.parametrize(("text", "score"), [("Score: 2.5", 0.5), ("score=0", 0.0), ("score : 3, so score: 4", 0.8)])
def test_the_last_score_of_a_judgement_counts(text, score):
    assert read_judgement(text, 5).score == pytest.approx(score)


@pytest.mark.parametrize("text", ["", "five", "score: many", "score: 6", "score: -1"])
def test_a_judgement_without_a_score_is_a_graders_failure(text):
    assert read_judgement(text, 5).is_infrastructure
