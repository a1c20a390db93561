"""Groups of graded responses outside RL: for pairs, demonstrations and pass rates; and rewards by another judge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from verizero.pipeline.config.pairs import Judge, JudgedConfig
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import generate_rollouts
from verizero.pipeline.run.dealing import gather_groups, share_of
from verizero.pipeline.run.graders import bind_grader
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.session import Run, StageSetup, Workers
from verizero.pipeline.scoring.early_grading import attempt_in
from verizero.pipeline.scoring.score import GradingTally, Scorer
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
    """Return `num` graded responses of the published policy to each prompt, as they are sampled in RL.

    `stream` names the random numbers; `scorer` grades (None: that of the rows' own verifiers). Every rank samples and
    grades its share, and gets all groups.
    """
    how = setup.config.rollout
    sampling = Sampling(how.max_response_tokens, how.temperature, how.top_p, how.top_k)
    share = share_of(run.ranks, prompts)
    own = share.prompts
    with recorder.timed("generate"):
        count = recorder.counter(len(own) * num)
        rollouts = generate_rollouts(workers.rollouts.generation, own, num, sampling, *stream, count=count)
    with recorder.timed("verify"):
        scored, tally = (scorer or workers.graders.scorer).score({p.id: p for p in own}, rollouts, with_components=True)
        (groups,), tally = gather_groups(run.ranks, share, [form_groups(own, scored, num)], tally)
    recorder.add_seconds("graders", tally.busy_s)
    return groups, tally


def rewarded_by_judge(
    run: Run, workers: Workers, recorder: Recorder, groups: Sequence[Group], judge: Judge, how: JudgedConfig
) -> list[Group]:
    """Return the groups with the judge's scores as rewards. The judge is the policy itself or another verifier.

    With the judge None the groups stay as they are. A response on which the judge failed has no reward. Verdicts stay
    those of the prompts' own verifiers.
    """
    if judge is None:
        return list(groups)
    share, scorer = share_of(run.ranks, [g.prompt for g in groups]), workers.graders.scorer
    own = [groups[i] for i in share.places]
    members = [(g.prompt, m) for g in own for m in g.members]
    with recorder.timed("verify"):
        if judge == "policy":
            verdicts = _judged_by_policy(run, workers, members, how)
        else:
            attempts = [attempt_in(p, m.rollout) for p, m in members]
            verdicts = bind_grader(run.folder, run.base_dir, judge).score(attempts)
        scores = iter(verdicts)

        def rewarded(member: ScoredRollout) -> ScoredRollout:
            return replace(member, reward=scorer.reward(member.rollout, next(scores)), components=())

        judged = [replace(g, members=tuple(map(rewarded, g.members))) for g in own]
        (whole,), _ = gather_groups(run.ranks, share, [judged], GradingTally({}, 0, 0.0))
    return whole


def _judged_by_policy(
    run: Run, workers: Workers, members: Sequence[tuple[Prompt, ScoredRollout]], how: JudgedConfig
) -> list[Verdict]:
    """Return the policy's own scores, asked with the rubric: greedily, so that equal responses get equal scores."""
    questions = [
        replace(
            prompt,
            id=f"{prompt.id}/judged/{m.rollout.sample}",
            question=how.rubric.replace("{question}", prompt.question).replace("{response}", m.rollout.text),
        )
        for prompt, m in members
    ]
    greedy = Sampling(how.max_tokens, temperature=0)
    judgements = generate_rollouts(workers.rollouts.generation, questions, 1, greedy, "judged")
    return [read_judgement(r.text, how.scale) for r in judgements]


def read_judgement(text: str, scale: float) -> Verdict:
    """Return the last "score: <number>" of a judgement as a share of `scale`; without one, a failure of the grader."""
    scores = SCORE.findall(text)
    if not scores or not 0 <= float(scores[-1]) <= scale:
        return Verdict("verifier_error", reason=f"no score from 0 to {scale:g} in the judgement: {text[-80:]!r}")
    return Verdict("graded", float(scores[-1]) / scale, f"judged: {text[-80:]!r}")
