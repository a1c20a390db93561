"""Reinforcement learning with verifiable rewards: rounds of generate, verify, select, update, publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.stages import ReferenceConfig, RlConfig
from pipeline.errors import NonFiniteError, RunError
from pipeline.loop import scheduling as staleness
from pipeline.loop.parity import hold_against_trainer
from pipeline.loop.rollback import mark_start, watch
from pipeline.loop.steps import Steps, Wrap, plain, restore_flights, stage_step, temperature
from pipeline.run import lag
from pipeline.run.build import hold_teacher
from pipeline.run.collapse import num_roll_backs
from pipeline.run.schedule import Item
from pipeline.run.session import Session
from pipeline.run.state import RunState
from pipeline.scoring.audit import disagree
from pipeline.scoring.score import Tally
from pipeline.scoring.second import Opinions
from pipeline.scoring.select import REASONS, acceptance_after, forecast, judge
from pipeline.types import Group, KeptTokens, StepMetrics, Verdict


@dataclass
class Batch:
    """What one step trains on, and how it came together."""

    groups: list[Group]
    sampled: list[Group]
    """Every group that this step generated, kept or not."""
    counts: dict[str, int]
    tallies: list[Tally]
    extra: StepMetrics = field(default_factory=dict)
    opinions: list[Opinions] | None = None
    """Second opinions on each group of `sampled`; None where the recipe asks for none."""


def run(session: Session, item: Item, steps: Steps, wrap: Wrap = plain) -> None:
    """The steps of one round, from where the state says; the reference moves first, where its schedule says so."""
    state, rl = session.state, session.rounds
    restore_flights(session)
    if staleness.out_of_tokens(session):
        return
    mark_start(session)
    begin(session, item)
    if state.step == 0 and item.round == 1 and session.engine.version != state.policy_version:
        steps.publish(session)  # no evaluation stood between the stage before and this one
    if not session.has_parity:
        hold_against_trainer(session, temperature(session))
        session.has_parity = True
    session.progress.begin(item.label, state.step, item.num_steps)
    while state.step < item.num_steps and not staleness.out_of_tokens(session):
        session.where = f"{item.label} step {state.step + 1}"
        watch(session, item, wrap("step", one_step)(session, item, steps))
        if state.step % session.config.checkpoint.every_steps == 0 and state.step < item.num_steps:
            session.save()
    if session.runahead is not None and (item.round == rl.rounds or staleness.out_of_tokens(session)):
        session.runahead.forget()


def one_step(session: Session, item: Item, steps: Steps) -> StepMetrics:
    """Fill a batch, improve the policy with it, hand the new weights to the engine; what happened, written down too."""
    state = session.state
    with session.timed("total"):
        batch = fill_batch(session, steps)
        batch.extra |= staleness.launch_ahead(session, item, batch.groups)
        metrics = improve(session, steps, batch.groups)
        if metrics is not None and lag.is_due(session):
            steps.publish(session)
        if session.second is not None:
            batch.opinions = session.second.take()
    row = record(session, item, batch, metrics)
    state.step += 1
    state.rl_step += 1
    move_reference(session, metrics or {})
    return row


def begin(session: Session, item: Item) -> None:
    """At the first step of a round: the optimiser of the first one, and the reference."""
    how = reference_config(session)
    session.has_reference = how.schedule != "none"
    if session.state.step == 0:
        if item.round == 1:
            start_optimizers(session)
        if session.has_reference and how.teacher is None and (item.round == 1 or how.schedule == "every_round"):
            refresh(session)
    if how.teacher is not None:
        hold_teacher(session, how.teacher)


def start_optimizers(session: Session) -> None:
    """Fresh optimisers whose schedules span every update of all rounds; and the critic, where there is one."""
    rl, parts = session.rounds, session.parts
    assert parts is not None
    steps, each = rl.rounds * rl.steps_per_round, parts.updates.num_epochs * parts.updates.num_minibatches
    warmup = 0 if parts.critic is None else min(steps, parts.critic.warmup_steps)
    session.backend.start(rl.optimizer, (steps - warmup) * each)
    if parts.critic is not None and isinstance(rl, RlConfig):
        rate = parts.critic.learning_rate or rl.optimizer.learning_rate
        optimizer = rl.critic or rl.optimizer.model_copy(update={"learning_rate": rate})
        session.backend.start_critic(parts.critic.shared, optimizer, steps * each)


def fill_batch(session: Session, steps: Steps) -> Batch:
    """Groups for one update: those carried over, then new ones until the batch is full or refills are used up."""
    rl = session.rounds
    state, want = session.state, rl.prompts_per_step
    fresh, num_stale = staleness.without_stale(session, state.carried)
    batch = Batch(fresh, [], dict.fromkeys(REASONS, 0), [])
    for attempt in range(1 + rl.select.max_refills):
        missing = want - len(batch.groups)
        if missing <= 0:
            break
        number = forecast(missing, state.acceptance, staleness.MOST_OVERSAMPLING * want)
        if (left := staleness.affordable(session)) is not None:
            number = min(number, left)
        if number == 0 and not staleness.flies(session):
            break
        prompts = steps.next_prompts(session, number)
        groups, tally = steps.verify(session, prompts, steps.generate(session, prompts, attempt))
        kept, counts = steps.select(session, groups)
        state.acceptance = acceptance_after(state.acceptance, len(kept), len(groups))
        fresh, more = staleness.without_stale(session, kept)
        num_stale += more
        batch.groups += fresh
        batch.sampled += groups
        if session.second is not None:
            session.second.ask(state.rl_step, groups)
        batch.tallies.append(tally)
        for reason, number in counts.items():
            batch.counts[reason] += number
    batch.extra["groups/carried_in"] = float(len(state.carried))
    surplus = batch.groups[want:]
    batch.groups = batch.groups[:want]
    state.carried = surplus if rl.select.carry_over else []
    batch.extra["groups/carried_out"] = float(len(state.carried))
    batch.extra["groups/surplus_dropped"] = float(len(surplus) - len(state.carried))
    batch.extra |= {} if session.runahead is None else {"groups/stale": float(num_stale)}
    return batch


def improve(session: Session, steps: Steps, groups: list[Group]) -> StepMetrics | None:
    """The update's metrics; None where there was nothing to train on or the update was refused.

    Raises: RunError after too many refused updates in a row.
    """
    rl = session.rounds
    short = len(groups) < rl.prompts_per_step
    if len(groups) < rl.select.min_groups or (short and rl.select.fallback == "skip"):
        session.progress.say(
            f"{session.where}: {len(groups)} of {rl.prompts_per_step} groups teach something; no update. If this goes "
            "on, the prompts are too easy or too hard"
        )
        return None
    try:
        metrics: StepMetrics = steps.update(session, groups)
    except NonFiniteError as exc:
        session.state.bad_steps += 1
        session.progress.say(f"{session.where}: {exc}")
        if session.state.bad_steps >= rl.max_bad_steps:
            raise RunError(
                f"{session.state.bad_steps} updates in a row were refused ({exc}); the last checkpoint is good. Lower "
                "rl.optimizer.learning_rate and start the same command under another name"
            ) from exc
        return None
    session.state.bad_steps = 0
    return metrics


def record(session: Session, item: Item, batch: Batch, metrics: StepMetrics | None) -> StepMetrics:
    """The metrics of one line of metrics.jsonl; also the responses of some groups in rollouts.jsonl."""
    state, config = session.state, session.config
    state.num_prompts_used += len(batch.sampled)
    state.num_responses += sum(len(g.members) for g in batch.sampled)
    for group in batch.sampled:
        graded = [m.verdict.is_correct for m in group.members if m.reward is not None]
        session.ledger.record(group.prompt.id, len(graded), sum(graded))
    row = {**(metrics or {}), **rollout_metrics(batch), **batch.extra}
    row["policy/version"] = float(state.policy_version)
    row["rollout/version"] = float(max((m.rollout.policy_version for g in batch.sampled for m in g.members), default=0))
    row["reference/version"] = float(state.reference_version)
    row["prompts/distinct"] = float(len(session.ledger))
    row["temperature"] = temperature(session)
    row["update/skipped"] = float(metrics is None)
    counts = getattr(session.engine, "counts", None)
    row |= {} if counts is None else counts()
    row["tokens/generated"] = float(state.num_tokens)
    warn_of_failures(session, batch)
    session.store.metrics(
        {
            "kind": "step",
            "stage": item.stage,
            "stage_kind": item.kind,
            "round": item.round,
            "step": state.rl_step + 1,
            "metrics": row,
            "time": session.take_times(),
        }
    )
    session.track(row, state.rl_step + 1)
    opinions = batch.opinions or [{} for _ in batch.sampled]
    session.store.rollouts(
        {**line, **again(state)}
        for i in groups_shown(batch, config.report.samples_per_step)
        for line in sample_rows(batch.sampled[i], item.stage, item.round, state.rl_step + 1, opinions[i])
    )
    session.progress.advance(
        state.step + 1,
        {"reward": row.get("reward/sampled", 0.0), "kept": float(len(batch.groups)), "kl": row.get("kl/k3", 0.0)},
    )
    return row


def again(state: RunState) -> dict[str, int]:
    """What marks a line of rollouts.jsonl after a roll-back, whose steps have been before: how many there were."""
    return {"roll_backs": n} if (n := num_roll_backs(state)) else {}


def rollout_metrics(batch: Batch) -> StepMetrics:
    """Rewards, lengths and verdicts of everything that the step generated, before any group was dropped."""
    members = [(g.prompt.domain, m) for g in batch.sampled for m in g.members]
    row: StepMetrics = {f"groups/{reason}": float(n) for reason, n in batch.counts.items()}
    row["groups/sampled"] = float(len(batch.sampled))
    row["groups/trained"] = float(len(batch.groups))
    if not members:
        return row
    rewards = [m.reward for _, m in members if m.reward is not None]
    row["reward/sampled"] = sum(rewards) / max(1, len(rewards))
    for domain in sorted({d for d, _ in members}):
        own = [m.reward for d, m in members if d == domain and m.reward is not None]
        row[f"reward/mean/{domain}"] = sum(own) / max(1, len(own))
    greedy = [g.greedy_reward for g in batch.sampled if g.greedy_reward is not None]
    if greedy:
        row["reward/greedy"] = sum(greedy) / len(greedy)
    parts = [m.components for _, m in members if m.components]
    row |= {f"reward/component/{k}": sum(column) / len(column) for k, column in enumerate(zip(*parts, strict=True))}
    row["length/mean"] = sum(len(m.rollout.response_ids) for _, m in members) / len(members)
    row["truncated"] = sum(m.rollout.finish_reason == "length" for _, m in members) / len(members)
    row |= kept_metrics([m.rollout.kept for _, m in members if m.rollout.kept is not None])
    total = sum(t.total for t in batch.tallies)
    for status in ("graded", "no_answer", "timeout", "verifier_error", "sandbox_error"):
        row[f"verdict/{status}"] = sum(t.statuses.get(status, 0) for t in batch.tallies) / max(1, total)
    row["verdict/responses"] = float(total)
    row["verdict/retried"] = float(sum(t.retried for t in batch.tallies))
    if batch.opinions is not None:
        row["verdict/second_opinions"] = float(sum(map(len, batch.opinions)))
        row["verdict/disagreements"] = float(sum(len(d) for d in disagreements(batch)))
    return row


def kept_metrics(kept: list[KeptTokens]) -> StepMetrics:
    """Of responses sampled with top-p or top-k: tokens in a set, the shares of places uncut and cut by the bound."""
    places = sum(len(k.sizes) for k in kept)
    if places == 0:
        return {}
    cut = [n for k in kept for n in k.sizes if n > 0]
    return {
        "sampling/kept_mean": sum(cut) / max(1, len(cut)),
        "sampling/uncut": 1 - len(cut) / places,
        "sampling/bounded": sum(k.num_bounded for k in kept) / places,
    }


def warn_of_failures(session: Session, batch: Batch) -> None:
    """Say so where graders fail more often than the recipe allows."""
    for tally in batch.tallies:
        say_failures(session, tally, batch.sampled, "they left their groups, none was scored 0")


def say_failures(session: Session, tally: Tally, groups: Sequence[Group], fate: str) -> None:
    """Raise the alarm where graders failed past the recipe's rate; `fate`: what became of those responses."""
    if tally.failure_rate <= session.config.scoring.alarm_rate:
        return
    first = next((m.verdict for g in groups for m in g.members if m.verdict.is_infrastructure), None)
    said = "" if first is None else f" First: {first.status}: {first.reason}"
    alarm = {"failure_rate": tally.failure_rate, "responses": tally.total, "where": session.where}
    alarm["first"] = said.strip()
    place = {"stage": session.state.stage, "step": session.state.rl_step}
    session.store.metrics({"kind": "alarm", "alarm": "verifier", **place, **alarm, "time": {}})
    session.events("verizero.verifier.alarm", alarm)
    session.progress.say(
        f"{session.where}: graders failed on {tally.failure_rate:.0%} of {tally.total} responses ({fate}).{said}"
    )


def disagreements(batch: Batch) -> list[list[int]]:
    """For each sampled group, the members that the second verifier judges otherwise."""
    return [
        [i for i, verdict in sorted(opinions.items()) if disagree(group.members[i].verdict, verdict)]
        for group, opinions in zip(batch.sampled, batch.opinions or [{} for _ in batch.sampled], strict=True)
    ]


def groups_shown(batch: Batch, most: int) -> list[int]:
    """Sampled groups that are written down: the first `most`, and at most as many more with disagreements."""
    others = [i for i, found in enumerate(disagreements(batch)) if found and i >= most]
    return [*range(min(most, len(batch.sampled))), *others[:most]]


def opinion_row(first: Verdict, second: Verdict) -> dict[str, Any]:
    """The field "second" of a line of rollouts.jsonl."""
    said = {"status": second.status, "score": second.score, "reason": second.reason}
    return {**said, "disagrees": disagree(first, second)}


def sample_rows(
    group: Group, stage: str, round_: int, step: int, opinions: Opinions | None = None
) -> list[dict[str, Any]]:
    """One line of rollouts.jsonl for each response of the group; `opinions` stand under "second"."""
    second = opinions or {}
    kept = judge(group) == "kept"
    return [
        {
            "stage": stage,
            "round": round_,
            "step": step,
            "prompt_id": group.prompt.id,
            "domain": group.prompt.domain,
            "prompt": group.prompt.question,
            "response": m.rollout.text,
            "sample": m.rollout.sample,
            "reward": m.reward,
            "status": m.verdict.status,
            "score": m.verdict.score,
            "reason": m.verdict.reason,
            "extracted": m.verdict.extracted,
            "finish_reason": m.rollout.finish_reason,
            "length": len(m.rollout.response_ids),
            **({"kept_sizes": list(m.rollout.kept.sizes)} if m.rollout.kept is not None else {}),
            "kept": kept,
            **({"second": opinion_row(m.verdict, second[i])} if i in second else {}),
        }
        for i, m in enumerate(group.members)
    ]


def reference_config(session: Session) -> ReferenceConfig:
    """When the reference moves: as the recipe says, else as the algorithm has it."""
    rl, parts = session.rounds, session.parts
    assert parts is not None
    if rl.reference is not None:
        return rl.reference
    return ReferenceConfig(schedule=parts.reference if rl.has_reference else "none")


def move_reference(session: Session, metrics: StepMetrics) -> None:
    """After a step: refresh the reference where its schedule asks for it (rounds do so at their beginning)."""
    config, state = reference_config(session), session.state
    if config.schedule == "every_n_steps" and config.every is not None and stage_step(session) % config.every == 0:
        refresh(session)
    elif config.schedule == "ema" and config.alpha is not None:
        refresh(session, config.alpha)
    elif config.schedule == "on_kl" and config.kl is not None and metrics.get("kl/k3", 0.0) > config.kl:
        refresh(session)
    elif config.schedule == "on_plateau" and config.patience is not None and "reward/mean" in metrics:
        reward = metrics["reward/mean"]
        if state.best_reward is None or reward > state.best_reward:
            state.best_reward, state.steps_since_best = reward, 0
        else:
            state.steps_since_best += 1
        if state.steps_since_best >= config.patience:
            refresh(session)
            state.best_reward, state.steps_since_best = None, 0


def refresh(session: Session, alpha: float = 1.0) -> None:
    """reference <- policy (a step of `alpha` towards it); its version goes up by one."""
    session.backend.refresh_reference(alpha)
    session.state.reference_version += 1
