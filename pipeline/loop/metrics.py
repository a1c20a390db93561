"""Write the results of one RL step: its line of metrics.jsonl, its samples in rollouts.jsonl, alarms about graders.

Metrics of episodes (turns, endings, tools, forks) are at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from verizero.pipeline.data.render import end_of_prompts
from verizero.pipeline.errors import GradersFailed
from verizero.pipeline.loop.batch import Batch
from verizero.pipeline.models.flops import update_flops
from verizero.pipeline.report.row_types import MessageRow, RolloutRow, StepRow, VerifierAlarm
from verizero.pipeline.rows import rows
from verizero.pipeline.run.collapse import num_roll_backs
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.session import StageSetup, Workers
from verizero.pipeline.run.state import Item, RunState
from verizero.pipeline.scoring.score import GradingTally, tells_right
from verizero.pipeline.scoring.select import classify_group
from verizero.pipeline.types import (
    ENDINGS,
    STATUSES,
    Episode,
    Group,
    KeptTokens,
    Rollout,
    ScoredRollout,
    StepMetrics,
    Turn,
)

HOW_TO_FIX_GRADERS = (
    "Fix the grader or the environment (`verizero verify --check` and `verizero doctor` try them without a run); the "
    "same command then continues from the last checkpoint"
)


def record_step(
    workers: Workers, setup: StageSetup, state: RunState, recorder: Recorder, item: Item, batch: Batch
) -> StepRow:
    """Write the metrics of one step and the responses of some groups; return the row of metrics."""
    state.num_prompts_used += len(batch.sampled)
    state.num_responses += sum(len(g.members) for g in batch.sampled)
    for group in batch.sampled:
        workers.ledger.record_group(group)
    prompts = [g.members[0].rollout.prompt_ids for g in batch.sampled if g.members]
    row = {**mean_of_updates(batch), **rollout_metrics(batch)}
    row |= end_of_prompts(workers.rollouts.generation.renderer.decode, prompts) | batch.metrics
    row["policy/version"] = float(state.policy_version)
    row["rollout/version"] = float(max((m.rollout.policy_version for g in batch.sampled for m in g.members), default=0))
    row["reference/version"] = float(state.reference_version)
    row["prompts/distinct"] = float(len(workers.ledger))
    row["temperature"] = setup.config.rollout.temperature
    row["update/skipped"] = float(not batch.updates)
    row |= workers.rollouts.engine.counts()
    row["tokens/generated"] = float(state.stage.num_tokens)
    for tally in batch.tallies:
        consequence = "they left their groups, none was scored 0"
        report_failures(recorder, setup, (state.stage.name, state.rl_step + 1), tally, batch.sampled, consequence)
    recorder.work.add("generate", sum(m.rollout.num_sampled for g in batch.sampled for m in g.members))
    if batch.updates:
        # Without the training mask, so that the diagnosis can notice a wrong one.
        trained = [m.rollout for groups, _ in batch.updates for g in groups for m in g.members if m.reward is not None]
        row["responses/trained"] = float(len(trained))
        row["responses/tokens"] = float(sum(r.num_sampled for r in trained))
    for groups, update in batch.updates:
        recorder.work.add("update", *trained_tokens_and_flops(workers, setup, groups, update))
    step_row = StepRow(
        stage=item.stage,
        stage_kind=item.kind,
        round=item.round,
        step=state.rl_step + 1,
        metrics=row,
        **recorder.take_measures(),
    )
    recorder.store.metrics(step_row)
    recorder.track(row, state.rl_step + 1)
    write_samples(workers, setup, state, recorder, item, batch)
    shown = {
        "reward": row.get("reward/sampled", 0.0),
        "groups": float(len(batch.groups)),
        "kl": row.get("kl/k3", row.get("distill/kl", 0.0)),
    }
    recorder.progress.advance(state.step + 1, shown)
    return step_row


def mean_of_updates(batch: Batch) -> StepMetrics:
    """Return the metrics of the step's update; of several, means, and the sum of their optimiser steps."""
    rows = [metrics for _, metrics in batch.updates]
    if len(rows) < 2:
        return dict(*rows)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: sum(values) / (1 if name == "updates" else len(values)) for name, values in columns.items()}


def write_samples(
    workers: Workers, setup: StageSetup, state: RunState, recorder: Recorder, item: Item, batch: Batch
) -> None:
    """Write the responses of some groups to rollouts.jsonl, on rank 0."""
    if not workers.backend.ranks.is_first:
        return
    recorder.store.rollouts(
        line
        for group in batch.sampled[: setup.config.report.samples_per_step]
        for line in sample_rows(group, item.stage, item.round, state.rl_step + 1, num_roll_backs(state))
    )


def trained_tokens_and_flops(
    workers: Workers, setup: StageSetup, groups: Sequence[Group], update: StepMetrics
) -> tuple[int, float]:
    """Return the tokens that an update trained on, counted again in each epoch, and the update's FLOPs."""
    rollouts = [m.rollout for g in groups for m in g.members if m.reward is not None]
    sizes = [row_size(turns) for r in rollouts for turns in rows(r)]
    # Each optimiser step takes one minibatch; an update that ended early took fewer.
    num_epochs = update.get("updates", 1.0) / setup.algorithm.params.num_minibatches
    tokens = sum(n for n, _ in sizes)
    return round(num_epochs * tokens), num_epochs * update_flops(workers.backend.model, sizes)


def rollout_metrics(batch: Batch) -> StepMetrics:
    """Return metrics of rewards, lengths and verdicts of all groups that the step sampled, dropped ones included."""
    members = [(g.prompt.domain, m) for g in batch.sampled for m in g.members]
    row: StepMetrics = {f"groups/{reason}": float(n) for reason, n in batch.counts.items()}
    row["groups/sampled"] = float(len(batch.sampled))
    row["groups/trained"] = float(len(batch.groups))
    if not members:
        return row
    rewards = [m.reward for _, m in members if m.reward is not None]
    row["reward/sampled"] = sum(rewards) / max(1, len(rewards))
    for domain in sorted({d for d, _ in members}):
        of_domain = [m.reward for d, m in members if d == domain and m.reward is not None]
        row[f"reward/mean/{domain}"] = sum(of_domain) / max(1, len(of_domain))
    row |= accuracy_metrics(members)
    greedy = [g.greedy_reward for g in batch.sampled if g.greedy_reward is not None]
    if greedy:
        row["reward/greedy"] = sum(greedy) / len(greedy)
    components = [m.components for _, m in members if m.components]
    for k, column in enumerate(zip(*components, strict=True)):
        row[f"reward/component/{k}"] = sum(column) / len(column)
    parts: dict[str, list[float]] = {}
    for name, value in (part for _, m in members for part in m.verdict.parts):
        parts.setdefault(name, []).append(value)
    for name, values in sorted(parts.items()):
        if finite := [value for value in values if math.isfinite(value)]:
            row[f"reward/part/{name}"] = sum(finite) / len(finite)
        if len(finite) < len(values):
            row[f"reward/not_finite/{name}"] = float(len(values) - len(finite))
    row["length/mean"] = sum(m.rollout.num_sampled for _, m in members) / len(members)
    row["truncated"] = sum(m.rollout.was_cut for _, m in members) / len(members)
    row |= kept_metrics([t.kept for _, m in members for t in m.rollout.turns if t.kept is not None])
    row |= episode_metrics([m.rollout for _, m in members])
    total = sum(t.total for t in batch.tallies)
    for status in STATUSES:
        if status == "environment_error" and all(m.rollout.episode is None for _, m in members):
            continue
        if status == "abstained" and not any(t.statuses.get(status) for t in batch.tallies):
            continue
        row[f"verdict/{status}"] = sum(t.statuses.get(status, 0) for t in batch.tallies) / max(1, total)
    row["verdict/responses"] = float(total)
    row["verdict/retried"] = float(sum(t.retried for t in batch.tallies))
    return row


def accuracy_metrics(members: Sequence[tuple[str, ScoredRollout]]) -> StepMetrics:
    """Return the share of right responses, over all and by domain, as a held-out pass@1 counts them.

    `members`: (domain, response). The mean reward differs from it if credit is partial or a reward has components.
    """
    graded = [(domain, m.verdict.is_correct) for domain, m in members if not m.verdict.is_left_out]
    if not graded or not all(tells_right(m.verdict) for _, m in members):
        return {}
    row: StepMetrics = {"correct/sampled": sum(right for _, right in graded) / len(graded)}
    for domain in sorted({d for d, _ in graded}):
        of_domain = [right for d, right in graded if d == domain]
        row[f"correct/mean/{domain}"] = sum(of_domain) / len(of_domain)
    return row


def kept_metrics(kept: list[KeptTokens]) -> StepMetrics:
    """Return the mean size of the sets that top-p or top-k left, and the shares of tokens sampled uncut and bounded."""
    num_tokens = sum(len(k.sizes) for k in kept)
    if num_tokens == 0:
        return {}
    num_cut = sum(n > 0 for k in kept for n in k.sizes)
    return {
        "sampling/kept_mean": sum(sum(k.sizes) for k in kept) / max(1, num_cut),
        "sampling/uncut": 1 - num_cut / num_tokens,
        "sampling/bounded": sum(k.num_bounded for k in kept) / num_tokens,
    }


def report_failures(
    recorder: Recorder,
    setup: StageSetup,
    stage_and_step: tuple[str, int],
    tally: GradingTally,
    groups: Sequence[Group],
    consequence: str,
) -> None:
    """Write an alarm if graders failed more often than the recipe allows.

    `stage_and_step`: as the step's line of metrics has them. `consequence`: what the failure means for the responses.
    """
    if tally.failure_rate <= setup.config.scoring.alarm_rate:
        return
    failure = first_failure(groups)
    example = f"First: {failure}" if failure else ""
    alarm: dict[str, Any] = {
        "failure_rate": tally.failure_rate,
        "responses": tally.total,
        "where": recorder.step_label,
        "first": example,
    }
    stage, step = stage_and_step
    recorder.store.metrics(VerifierAlarm(stage=stage, step=step, **alarm))
    recorder.listener("verizero.verifier.alarm", alarm)
    text = (
        f"{recorder.step_label}: graders failed on {tally.failure_rate:.0%} of {tally.total} responses ({consequence})."
    )
    recorder.say(f"{text} {example}".rstrip())


def require_verdicts(context: str, groups: Sequence[Group]) -> None:
    """Raise GradersFailed if graders failed on every response of the groups. `context` begins the message."""
    verdicts = [m.verdict for g in groups for m in g.members]
    if verdicts and all(v.status == "abstained" for v in verdicts):
        raise GradersFailed(
            f"{context}: the reward function returned None for all {len(verdicts)} responses, so there is nothing to "
            "learn from; return a number for some of them"
        )
    if verdicts and all(v.is_left_out for v in verdicts):
        raise GradersFailed(
            f"{context}: graders failed on all {len(verdicts)} responses, first with {first_failure(groups)}. "
            f"{HOW_TO_FIX_GRADERS}"
        )


def first_failure(groups: Sequence[Group]) -> str:
    """Return status and reason of the first verdict in which a grader failed; "" if none did."""
    verdict = next((m.verdict for g in groups for m in g.members if m.verdict.is_infrastructure), None)
    return "" if verdict is None else f"{verdict.status}: {verdict.reason}"


def sample_rows(group: Group, stage: str, round_: int, step: int, roll_backs: int = 0) -> list[RolloutRow]:
    """Return a row of rollouts.jsonl for each response of the group."""
    is_kept = classify_group(group) == "kept"
    return [
        RolloutRow(
            stage=stage,
            round=round_,
            step=step,
            prompt_id=group.prompt.id,
            domain=group.prompt.domain,
            prompt=group.prompt.asked,
            response=m.rollout.answer,
            sample=m.rollout.sample,
            reward=m.reward,
            status=m.verdict.status,
            score=m.verdict.score,
            reason=m.verdict.reason,
            extracted=m.verdict.extracted,
            finish_reason="length" if m.rollout.was_cut else "stop",
            length=m.rollout.num_sampled,
            kept_sizes=None if m.rollout.kept is None else tuple(m.rollout.kept.sizes),
            kept=is_kept,
            steps=m.verdict.steps or None,
            roll_backs=roll_backs or None,
            **episode_fields(m.rollout),
        )
        for m in group.members
    ]


def row_size(turns: Sequence[Turn]) -> tuple[int, int]:
    """Return the number of tokens of a row, and of those that train."""
    total = sum(len(t.observed) + len(t.sampled) for t in turns)
    return total, sum(len(t.sampled) for t in turns if t.trains)


def episode_metrics(rollouts: Sequence[Rollout]) -> StepMetrics:
    """Return the metrics of the episodes among the rollouts; empty without an episode.

    Means are over episodes. Counts of tools and forks are sums; `turns/K` is the mean reward of turn K, from 1, over
    the episodes whose environment gave one.
    """
    played = [(r, r.episode) for r in rollouts if r.episode is not None]
    if not played:
        return {}
    num = len(played)
    turns = [t for r, _ in played for t in r.turns]
    turns_in_rows = [t for r, _ in played for row in rows(r) for t in row]  # a fork repeats turns
    out: StepMetrics = {
        "episodes/turns": len(turns) / num,
        "episodes/rows": sum(len(e.rows) for _, e in played) / num,
        "tokens/sampled": float(sum(len(t.sampled) for t in turns)),
        "tokens/observed": float(sum(len(t.observed) for t in turns_in_rows)),
        "tokens/repeated": float(sum(len(t.sampled) for t in turns_in_rows if not t.trains)),
        "episodes/with_calls": sum(any(m.calls for m in e.messages) for _, e in played) / num,
    }
    endings = Counter(e.ending for _, e in played)
    out |= {f"episodes/ending/{name}": endings[name] / num for name in ENDINGS}
    counts: Counter[str] = Counter()
    for _, episode in played:
        counts.update(episode.counts)
    out |= {name if "/" in name else f"episodes/{name}": float(n) for name, n in sorted(counts.items())}
    rewards: dict[int, list[float]] = {}
    for r, _ in played:
        for k, turn in enumerate(r.turns, 1):
            if turn.reward is not None:
                rewards.setdefault(k, []).append(turn.reward)
    return out | {f"reward/turn/{k}": sum(v) / len(v) for k, v in sorted(rewards.items())}


def episode_fields(rollout: Rollout) -> dict[str, Any]:
    """Return the fields of a row of rollouts.jsonl that only episodes have."""
    episode = rollout.episode
    if episode is None:
        return {}
    fields = {"ending": episode.ending, "rows": len(episode.rows), "messages": message_rows(rollout, episode)}
    return fields | {"seed": episode.seed}


def message_rows(rollout: Rollout, episode: Episode) -> tuple[MessageRow, ...]:
    """Return the conversation, with tokens, reward and version of the turn of each message of the policy."""
    turns = iter(rollout.turns)
    out = []
    for message in episode.messages:
        turn = next(turns, None) if message.role == "assistant" else None
        out.append(
            MessageRow(
                role=message.role,
                text=message.content,
                calls=tuple({"id": c.id, "name": c.name, "arguments": dict(c.arguments)} for c in message.calls)
                or None,
                name=message.name,
                answers=message.answers,
                unread=message.unread,
                tokens=None if turn is None else len(turn.sampled),
                observed=None if turn is None else len(turn.observed),
                reward=None if turn is None else turn.reward,
                finish_reason=None if turn is None else turn.finish_reason,
                version=None if turn is None else turn.policy_version,
            )
        )
    return tuple(out)
