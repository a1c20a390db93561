"""Records that stay with the rank that sampled them, carried groups, and batches in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.runs import assert_same_bytes, assert_same_run, by_one, by_ranks, rows
from verizero.pipeline.errors import RunError

CHANGES = (
    "rollout.max_staleness=1", "rollout.top_p=0.9",
    "rl.algorithm={name: grpo, num_minibatches: 2, keep_sampling: true}",
    "rl.prompts_per_step=4", "rl.group_size=3", "report.samples_per_step=1000",
)  # fmt: skip


@pytest.mark.run
def test_ranks_that_have_some_of_the_records_do_what_one_does_and_continue_it(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = by_one(recipe, "one", *CHANGES), by_ranks(recipe, "two", *CHANGES)
    assert_same_run(two, one)
    metrics = [row["metrics"] for row in rows(two) if row["kind"] == "step"]
    # Which step leaves groups over depends on the samples, hence on how a processor rounds.
    holding = [i for i, m in enumerate(metrics[:-1], start=1) if m["groups/carried_out"] > 0]
    assert holding, "the checkpoint that the killed run continues from must hold groups"
    for name in ("groups/in_flight", "sampling/kept_mean"):
        assert sum(m[name] for m in metrics) > 0, name
    monkeypatch.setenv("FUSE", f"1|round 1 step {holding[-1] + 1}: update|1|kill")
    with pytest.raises(RunError, match="ended by SIGKILL"):
        by_ranks(recipe, "killed", *CHANGES)
    monkeypatch.delenv("FUSE")
    assert_same_bytes(by_ranks(recipe, "killed", *CHANGES), two)
