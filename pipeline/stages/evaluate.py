"""Held-out evaluation: k samples and one greedy response to each prompt, verified, and summed up by domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import BASE
from verizero.pipeline.loop.metrics import report_failures, require_verdicts, sample_rows
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.report.estimates import PromptSamples, summarize_domain
from verizero.pipeline.report.row_types import EvaluationRow, RolloutRow
from verizero.pipeline.report.trackers.base import MOST_SAMPLES
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import ResponseKind
from verizero.pipeline.run.collapse import num_roll_backs
from verizero.pipeline.run.graders import overlaps_grading
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.rollouts import gather_groups, share_of
from verizero.pipeline.run.session import Run, Session, Workers
from verizero.pipeline.run.state import Item
from verizero.pipeline.scoring.score import GradingTally, tells_right
from verizero.pipeline.scoring.select import form_groups
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Group, Prompt

SHOWN_PROMPTS = 24
"""Prompts a domain whose samples are written to rollouts.jsonl: the same ones at every evaluation."""


def evaluate(session: Session, item: Item, wrap: PhaseWrapper) -> dict[str, Any]:
    """Return every domain's measures; write them to metrics.jsonl, and samples of some prompts to rollouts.jsonl."""
    run, workers, state = session.run, session.workers, session.state
    recorder, setup = session.recorder, session.setup
    config = setup.config
    recorder.step_label = f"evaluate {item.label}"
    recorder.progress.begin(recorder.step_label, 0, 1)
    workers.rollouts.publish(workers.backend, state.policy_version)
    workers.rollouts.wait()
    sampled, greedy, tally = wrap("evaluate", answer_and_grade)(run, workers, recorder, config)
    fate = "they are left out of what is measured, none was counted as wrong"
    report_failures(recorder, setup, (state.stage.name, state.rl_step), tally, [*sampled, *greedy], fate)
    domains: dict[str, Any] = {}
    in_table: list[RolloutRow] = []
    names = sorted({g.prompt.domain for g in sampled})
    for domain in names:
        of_domain = [pair for pair in zip(sampled, greedy, strict=True) if pair[0].prompt.domain == domain]
        samples = [prompt_samples(group, greedy_group) for group, greedy_group in of_domain]
        domains[domain] = {
            **summarize_domain(samples, config.evaluation.k),
            **count_failures([group for pair in of_domain for group in pair]),
        }
        shown, stage = [group for group, _ in of_domain[:SHOWN_PROMPTS]], f"evaluation/{item.label}"
        times = num_roll_backs(state)
        rows = [sample_rows(g, stage, item.round, state.rl_step, roll_backs=times) for g in shown]
        recorder.store.rollouts(row for of_prompt in rows for row in of_prompt)
        in_table += [of_prompt[0] for of_prompt in rows[: max(1, MOST_SAMPLES // len(names))]]
    evaluation_row = EvaluationRow(
        stage=item.stage,
        stage_kind=None if item.stage == BASE else setup.kind,
        round=item.round,
        step=state.rl_step,
        label=item.label,
        k=config.evaluation.k,
        domains=domains,
        verdicts=dict(sorted(tally.statuses.items())),
        retried=tally.retried,
        time=recorder.take_times(),
    )
    recorder.store.metrics(evaluation_row)
    for domain in domains:
        own_groups = [g for g in (*sampled, *greedy) if g.prompt.domain == domain]
        require_verdicts(f"{recorder.step_label}, domain {domain!r}", own_groups)
    recorder.track_samples(item.label, in_table, state.rl_step)
    measures = [(d, m, v) for d, row in domains.items() for m, v in row.items() if isinstance(v, dict)]
    recorder.track({f"evaluation/{domain}/{measure}": v["value"] for domain, measure, v in measures}, state.rl_step)
    pass_rates = {
        f"{d} {name}": row[name]["value"]
        for d, row in domains.items()
        # The score where it says more: where credit is partial.
        for name in ("pass@1", *(["score"] if "score_by_prompt" in row else []), "reward")
        if name in row
    }
    recorder.progress.advance(1, pass_rates)
    recorder.say(f"{item.label}: " + ", ".join(f"{name} {value:.3f}" for name, value in pass_rates.items()))
    recorder.callbacks.call(run.ranks, evaluation_row)
    return domains


def answer_and_grade(
    run: Run, workers: Workers, recorder: Recorder, config: RunConfig
) -> tuple[list[Group], list[Group], GradingTally]:
    """Return the sampled groups of k, the greedy groups of one, prompt by prompt; and what the graders did."""
    share = share_of(run.ranks, evaluation_prompts(config, run.data.evaluation))
    prompts, scorer, k = share.prompts, workers.graders.scorer, config.evaluation.k
    sampling = Sampling(config.rollout.max_response_tokens, config.evaluation.temperature, config.evaluation.top_p)
    greedy = Sampling(config.rollout.max_response_tokens, temperature=0)
    # the stream names no step: every evaluation draws the same numbers, so that differences are the policy's
    kinds = [ResponseKind("evaluation", k, sampling), ResponseKind("greedy", 1, greedy)]
    early = scorer.grade_early() if overlaps_grading(config.scoring, workers.backend.model.device) else None
    with recorder.timed("evaluate/generate"):
        count = recorder.counter(len(prompts) * (k + 1))
        rollouts = workers.rollouts.sample(prompts, kinds, (), None if early is None else early.add, count)
    with recorder.timed("evaluate/verify"):
        scored, tally = scorer.score({p.id: p for p in prompts}, rollouts, early=early)
        cut = len(prompts) * k
        columns = [form_groups(prompts, scored[:cut], k), form_groups(prompts, scored[cut:], 1)]
        (sampled, best), tally = gather_groups(run.ranks, share, columns, tally)
    recorder.add_seconds("evaluate/graders", tally.busy_s)
    return sampled, best, tally


def count_failures(groups: Sequence[Group]) -> dict[str, int]:
    """Return the number of responses, and of those whose grader failed, which count in no measure."""
    verdicts = [m.verdict for g in groups for m in g.members]
    return {"num_responses": len(verdicts), "grader_failures": sum(v.is_infrastructure for v in verdicts)}


def evaluation_prompts(config: RunConfig, prompts: list[Prompt]) -> list[Prompt]:
    """Return the held-out prompts, or a seeded choice of `evaluation.limit` of each domain."""
    limit = config.evaluation.limit
    if limit is None:
        return prompts
    chosen: list[Prompt] = []
    for domain in sorted({p.domain for p in prompts}):
        of_domain = [p for p in prompts if p.domain == domain]
        chosen += stream(config.seed, "evaluation", domain).sample(of_domain, min(limit, len(of_domain)))
    return chosen


def prompt_samples(group: Group, greedy: Group | None = None) -> PromptSamples:
    """Return the answers that estimates are made of. Those whose grader failed say nothing of the policy."""
    graded = [m for m in group.members if not m.verdict.is_left_out]
    greedy_verdict = None if greedy is None else greedy.members[0].verdict
    return PromptSamples(
        prompt_id=group.prompt.id,
        correct=tuple(m.verdict.is_correct for m in graded),
        answers=tuple(m.verdict.extracted for m in graded),
        lengths=tuple(m.rollout.num_sampled for m in graded),
        truncated=tuple(m.rollout.was_cut for m in graded),
        scores=tuple(m.verdict.score if m.verdict.status == "graded" else 0.0 for m in graded),
        greedy_correct=None if greedy_verdict is None or greedy_verdict.is_left_out else greedy_verdict.is_correct,
        rewards=tuple(m.verdict.score if m.verdict.reward is None else m.verdict.reward for m in graded),
        tells_right=all(tells_right(v) for v in (*(m.verdict for m in graded), greedy_verdict) if v is not None),
    )
