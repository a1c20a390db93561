"""Metrics of episodes (turns, endings, tools, forks), and their conversations as fields of rollouts.jsonl."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from verizero.pipeline.report.row_types import MessageRow
from verizero.pipeline.rows import rows
from verizero.pipeline.types import ENDINGS, Episode, Rollout, StepMetrics, Turn


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
