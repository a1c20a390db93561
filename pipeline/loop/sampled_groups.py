"""Sample and grade groups outside RL (for pairs, demonstrations and pass rates); rewards by another judge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from verizero.pipeline.config.pairs import Judge, JudgedConfig
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import generate_rollouts
from verizero.pipeline.run.graders import bind_grader
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.rollouts import gather_groups, share_of
from verizero.pipeline.run.session import Run, StageSetup, Workers
from verizero.pipeline.scoring.score import GradingTally, Scorer, attempt_in
from verizero.pipeline.scoring.select import form_groups
from verizero.pipeline.types import Group, Prompt, ScoredRollout, Verdict

SCORE = re.compile(r"score\s*[:=]\s*(-?\d+(?:\.\d+)?)", re.IGNORECASE)
SAMPLED_AT_ONCE = 128
"""Prompts answered in one phase (a task in Prefect)."""


def sample_groups(
    run: Run,
    workers: Workers,
    setup: StageSetup,
    recorder: Recorder,
    prompts: Sequence[Prompt],
    num: int,
    *stream: str | int,
    scorer: Scorer | None = None,
) -> tuple[list[Group], GradingTally]:
    """Return `num` graded responses of the published policy to each prompt, sampled as in RL.

    `stream` names the stream of random numbers. `scorer` grades; None: the rows' own verifiers do. Every rank samples
    and grades its share, and gets all groups.
    """
    config = setup.config.rollout
    sampling = Sampling(config.max_response_tokens, config.temperature, config.top_p, config.top_k)
    share, scorer = share_of(run.ranks, prompts), scorer or workers.graders.scorer
    with recorder.timed("generate"):
        count_response = recorder.counter(len(share.prompts) * num)
        rollouts = generate_rollouts(
            workers.rollouts.generation, share.prompts, num, sampling, *stream, count=count_response
        )
    with recorder.timed("verify"):
        scored, tally = scorer.score({p.id: p for p in share.prompts}, rollouts, with_components=True)
        (groups,), tally = gather_groups(run.ranks, share, [form_groups(share.prompts, scored, num)], tally)
    recorder.add_seconds("graders", tally.busy_s)
    return groups, tally


def rewarded_by_judge(
    run: Run, workers: Workers, recorder: Recorder, groups: Sequence[Group], judge: Judge, config: JudgedConfig
) -> list[Group]:
    """Return the groups with the scores of a judge as rewards: the policy itself, or another verifier.

    Without a judge the groups stay as they are. A response on which the judge failed has no reward. Verdicts stay
    those of the prompts' own verifiers.
    """
    if judge is None:
        return list(groups)
    share, scorer = share_of(run.ranks, [g.prompt for g in groups]), workers.graders.scorer
    groups_of_rank = [groups[i] for i in share.indices]
    members = [(g.prompt, m) for g in groups_of_rank for m in g.members]
    with recorder.timed("verify"):
        if judge == "policy":
            verdicts = _judged_by_policy(run, workers, members, config)
        else:
            attempts = [attempt_in(p, m.rollout) for p, m in members]
            verdicts = bind_grader(run.folder, run.base_dir, judge).score(attempts)
        scores = iter(verdicts)

        def rewarded(member: ScoredRollout) -> ScoredRollout:
            return replace(member, reward=scorer.reward(member.rollout, next(scores)), components=(), steps=())

        judged = [replace(g, members=tuple(map(rewarded, g.members))) for g in groups_of_rank]
        (all_groups,), _ = gather_groups(run.ranks, share, [judged], GradingTally({}, 0, 0.0))
    return all_groups


def _judged_by_policy(
    run: Run, workers: Workers, members: Sequence[tuple[Prompt, ScoredRollout]], config: JudgedConfig
) -> list[Verdict]:
    """Return the policy's scores of the responses by the rubric, sampled greedily: equal responses get equal scores."""
    questions = [
        replace(
            prompt,
            id=f"{prompt.id}/judged/{m.rollout.sample}",
            question=config.rubric.replace("{question}", prompt.asked).replace("{response}", m.rollout.text),
            message=None,
        )
        for prompt, m in members
    ]
    greedy = Sampling(config.max_tokens, temperature=0)
    judgements = generate_rollouts(workers.rollouts.generation, questions, 1, greedy, "judged")
    return [read_judgement(r.text, config.scale) for r in judgements]


def read_judgement(text: str, scale: float) -> Verdict:
    """Return a verdict by the last "score: <number>" of a judgement, over `scale`; without one, a verifier_error."""
    scores = SCORE.findall(text)
    if not scores or not 0 <= float(scores[-1]) <= scale:
        return Verdict("verifier_error", reason=f"no score from 0 to {scale:g} in the judgement: {text[-80:]!r}")
    return Verdict("graded", float(scores[-1]) / scale, f"judged: {text[-80:]!r}")
