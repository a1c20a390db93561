"""Responses of the present policy outside RL's loop: sampled, graded, put into groups; and ranked by another judge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pipeline.config.data import VerifierChoice
from pipeline.config.pairs import Judge, JudgedConfig
from pipeline.config.stages import MODEL
from pipeline.rollout.collect import collect
from pipeline.rollout.engine import Sampling
from pipeline.run.dealing import share_of, together
from pipeline.run.session import Session
from pipeline.scoring.ahead import attempt_of
from pipeline.scoring.score import Bound, Tally
from pipeline.scoring.select import form_groups
from pipeline.types import Group, Prompt, ScoredRollout, Verdict
from verifiers.base import load

SCORE = re.compile(r"score\s*[:=]\s*(-?\d+(?:\.\d+)?)", re.IGNORECASE)


def sample_groups(
    session: Session, prompts: Sequence[Prompt], num: int, *names: str | int
) -> tuple[list[Group], Tally]:
    """`num` graded responses of the published policy to each prompt. `names`: of the stream of random numbers.

    Responses are drawn as in RL; every rank samples and grades its share, and has all groups in the end.
    """
    how = session.config.rollout
    sampling = Sampling(how.max_response_tokens, how.temperature, how.top_p, how.top_k)
    share = share_of(session.ranks, prompts)
    own = share.prompts
    with session.timed("generate"):
        rollouts = collect(session.engine, session.data.renderer, own, num, sampling, session.config.seed, *names)
    with session.timed("verify"):
        scored, tally = session.scorer.score({p.id: p for p in own}, rollouts, with_components=True)
        (groups,), tally = together(session.ranks, share, [form_groups(own, scored, num)], tally)
    session.count("graders", tally.busy_s)
    return groups, tally


def ranked(session: Session, groups: Sequence[Group], judge: Judge, how: JudgedConfig) -> list[Group]:
    """The groups with the judge's scores as rewards: the policy's own, or another verifier's; None: as they are.

    Where the judge failed, the response has no reward; the verdict stays that of the prompt's own verifier.
    """
    if judge is None:
        return list(groups)
    share = share_of(session.ranks, [g.prompt for g in groups])
    own = [groups[i] for i in share.places]
    members = [(g.prompt, m) for g in own for m in g.members]
    with session.timed("verify"):
        if judge == "policy":
            verdicts = _by_policy(session, members, how)
        else:
            verdicts = bind_grader(session, judge).score(
                [attempt_of(p, m.rollout.text, m.rollout.finish_reason) for p, m in members]
            )
        rest = iter(verdicts)
        judged = [replace(g, members=tuple(_rewarded(session, m, next(rest)) for m in g.members)) for g in own]
        (whole,), _ = together(session.ranks, share, [judged], Tally({}, 0, 0.0))
    return whole


def bind_grader(session: Session, choice: VerifierChoice) -> Bound:
    """A verifier that a stage names; `stage:NAME` is the model that the earlier stage NAME has left.

    Raises: ConfigError.
    """
    params = dict(choice.params)
    if choice.stage is not None:
        params["model"] = str((session.shared / "stages" / choice.stage / MODEL).resolve())
    return load(choice.name, choice.path, session.base_dir).bind(params, session.base_dir)


def _rewarded(session: Session, member: ScoredRollout, verdict: Verdict) -> ScoredRollout:
    return replace(member, reward=session.scorer.reward(member.rollout, verdict), components=())


def _by_policy(session: Session, members: Sequence[tuple[Prompt, ScoredRollout]], how: JudgedConfig) -> list[Verdict]:
    """The policy's own scores, asked with the rubric; greedily, so that one response has one score."""
    asked = [
        replace(
            prompt,
            id=f"{prompt.id}/judged/{m.rollout.sample}",
            question=how.rubric.replace("{question}", prompt.question).replace("{response}", m.rollout.text),
        )
        for prompt, m in members
    ]
    sampling = Sampling(how.max_tokens, temperature=0)
    said = collect(session.engine, session.data.renderer, asked, 1, sampling, session.config.seed, "judged")
    return [read_judgement(r.text, how.scale) for r in said]


def read_judgement(text: str, scale: float) -> Verdict:
    """The last "score: <number>" of a judgement as a share of the full score; a failure of the grader without one."""
    found = SCORE.findall(text)
    if not found or not 0 <= float(found[-1]) <= scale:
        return Verdict("verifier_error", reason=f"no score from 0 to {scale:g} in the judgement: {text[-80:]!r}")
    return Verdict("graded", float(found[-1]) / scale, f"judged: {text[-80:]!r}")
