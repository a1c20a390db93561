"""Held-out evaluation: k samples and one greedy response to each prompt, verified, summed up by domain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.config.stages import BASE
from pipeline.loop.steps import Wrap, grades_beside
from pipeline.report.estimates import PromptSamples, summarize_domain
from pipeline.rollout.collect import collect
from pipeline.rollout.engine import Sampling
from pipeline.run import lag
from pipeline.run.dealing import share_of, together
from pipeline.run.rollouts import hand_over
from pipeline.run.schedule import Item
from pipeline.run.session import Session
from pipeline.scoring.score import Tally
from pipeline.scoring.select import form_groups
from pipeline.seeds import stream
from pipeline.stages.rl import again, sample_rows, say_failures
from pipeline.types import Group, Prompt, Rollout

SHOWN_PROMPTS = 24
"""Prompts a domain whose samples go to rollouts.jsonl; the same ones at every evaluation."""


def evaluate(session: Session, item: Item, wrap: Wrap) -> dict[str, Any]:
    """Every domain's measures; also a line of metrics.jsonl, and samples of some prompts in rollouts.jsonl."""
    session.where = f"evaluate {item.label}"
    session.progress.begin(session.where, 0, 1)
    hand_over(session, session.state.policy_version)
    if session.runahead is not None:
        session.runahead.settle()
    lag.hold(session)
    sampled, greedy, tally = wrap("evaluate", run)(session)
    say_failures(
        session, tally, [*sampled, *greedy], "they are left out of what is measured, none was counted as wrong"
    )
    domains: dict[str, Any] = {}
    for domain in sorted({g.prompt.domain for g in sampled}):
        own = [(g, one) for g, one in zip(sampled, greedy, strict=True) if g.prompt.domain == domain]
        samples = [prompt_samples(group, one) for group, one in own]
        domains[domain] = {
            **summarize_domain(samples, session.config.evaluation.k, session.config.seed),
            **failures([group for pair in own for group in pair]),
        }
        shown = [group for group, _ in own[:SHOWN_PROMPTS]]
        stage = f"evaluation/{item.label}"
        rows = (r for g in shown for r in sample_rows(g, stage, item.round, session.state.rl_step))
        session.store.rollouts({**row, **again(session.state)} for row in rows)
    session.store.metrics(
        {
            "kind": "evaluation",
            "stage": item.stage,
            **({"stage_kind": session.config.stages[0].kind} if item.stage != BASE else {}),
            "round": item.round,
            "step": session.state.rl_step,
            "label": item.label,
            "k": session.config.evaluation.k,
            "domains": domains,
            "verdicts": dict(sorted(tally.statuses.items())),
            "retried": tally.retried,
            "time": session.take_times(),
        }
    )
    measures = [(d, m, v) for d, row in domains.items() for m, v in row.items() if isinstance(v, dict)]
    flat = {f"evaluation/{domain}/{measure}": v["value"] for domain, measure, v in measures}
    session.track(flat, session.state.rl_step)
    shown_numbers = {f"{d} pass@1": row["pass@1"]["value"] for d, row in domains.items() if "pass@1" in row}
    session.progress.advance(1, shown_numbers)
    said = ", ".join(f"{name} {value:.3f}" for name, value in shown_numbers.items())
    session.progress.say(f"{item.label}: {said}")
    return domains


def run(session: Session) -> tuple[list[Group], list[Group], Tally]:
    """The sampled groups of k, the greedy groups of one, prompt by prompt; and what graders did."""
    config, share = session.config, share_of(session.ranks, evaluation_prompts(session))
    prompts = share.prompts
    sampling = Sampling(config.rollout.max_response_tokens, config.evaluation.temperature, config.evaluation.top_p)
    greedy = Sampling(config.rollout.max_response_tokens, temperature=0)
    # the stream names no step: every evaluation draws with the same numbers, so differences are the policy's
    by_id = {p.id: p for p in prompts}
    ahead = session.scorer.ahead() if grades_beside(session) else None
    rollouts: list[Rollout] = []
    with session.timed("evaluate/generate"):
        for name, num, how in (("evaluation", config.evaluation.k, sampling), ("greedy", 1, greedy)):
            reader = None if ahead is None else partial(ahead.add, offset=len(rollouts))
            rollouts += collect(
                session.engine, session.data.renderer, prompts, num, how, config.seed, name, reader=reader
            )
    with session.timed("evaluate/verify"):
        scored, tally = session.scorer.score(by_id, rollouts, ahead=ahead)
        cut = len(prompts) * config.evaluation.k
        own = [form_groups(prompts, scored[:cut], config.evaluation.k), form_groups(prompts, scored[cut:], 1)]
        (sampled, best), tally = together(session.ranks, share, own, tally)
    session.count("evaluate/graders", tally.busy_s)
    return sampled, best, tally


def failures(groups: Sequence[Group]) -> dict[str, int]:
    """How many responses were sampled, and of how many the grader failed: those stand in no measure."""
    verdicts = [m.verdict for g in groups for m in g.members]
    return {"num_responses": len(verdicts), "grader_failures": sum(v.is_infrastructure for v in verdicts)}


def evaluation_prompts(session: Session) -> list[Prompt]:
    """The held-out prompts, or a seeded choice of `evaluation.limit` of each domain."""
    limit, prompts = session.config.evaluation.limit, session.data.evaluation
    if limit is None:
        return prompts
    chosen: list[Prompt] = []
    for domain in sorted({p.domain for p in prompts}):
        own = [p for p in prompts if p.domain == domain]
        chosen += stream(session.config.seed, "evaluation", domain).sample(own, min(limit, len(own)))
    return chosen


def prompt_samples(group: Group, greedy: Group) -> PromptSamples:
    """What estimates are made of: responses whose grader failed are left out, they say nothing of the policy."""
    graded = [m for m in group.members if not m.verdict.is_infrastructure]
    first = greedy.members[0]
    return PromptSamples(
        prompt_id=group.prompt.id,
        correct=tuple(m.verdict.is_correct for m in graded),
        answers=tuple(m.verdict.extracted for m in graded),
        lengths=tuple(len(m.rollout.response_ids) for m in graded),
        truncated=tuple(m.rollout.finish_reason == "length" for m in graded),
        greedy_correct=None if first.verdict.is_infrastructure else first.verdict.is_correct,
    )
