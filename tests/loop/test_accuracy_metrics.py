"""The share of right responses among those that were sampled, as a held-out pass@1 counts them."""

from __future__ import annotations

from dataclasses import replace

from tests.loop.scripted import group_of
from verizero.pipeline.loop.batch import Batch
from verizero.pipeline.loop.metrics import rollout_metrics
from verizero.pipeline.types import Group, Verdict


def graded(number: int, domain: str, verdicts: list[Verdict], rewards: list[float | None]) -> Group:
    group = group_of(number, rewards)
    members = [replace(m, verdict=v) for m, v in zip(group.members, verdicts, strict=True)]
    return replace(group, prompt=replace(group.prompt, domain=domain), members=tuple(members))


def test_rewards_of_other_scales_and_failed_graders_change_no_share() -> None:
    right, half, silent = Verdict("graded", 1.0), Verdict("graded", 0.5), Verdict("no_answer")
    failed = Verdict("verifier_error", reason="down")
    groups = [
        graded(0, "sums", [right, half, silent, failed], [10.0, 5.0, -1.0, None]),
        graded(1, "words", [right, right], [3.0, 3.0]),
    ]
    metrics = rollout_metrics(Batch(groups, groups, {}, []))
    assert metrics["correct/mean/sums"] == 1 / 3
    assert metrics["correct/mean/words"] == 1
    assert metrics["correct/sampled"] == 3 / 5
    none_graded = [graded(0, "sums", [failed], [None])]
    assert "correct/sampled" not in rollout_metrics(Batch(none_graded, none_graded, {}, []))
