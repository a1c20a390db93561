"""Batches are not filled: few groups are left after selection, or whole updates are skipped.

Dynamic sampling throws away groups with equal rewards and samples others in their place, up to a limit. If most
prompts are too hard or too easy, the limit comes first, and an update has a few groups instead of a batch.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

EXPLAINS = frozenset({"too_hard", "too_easy", "learning_rate_low", "wrong_references", "false_negatives"})
MIN_SHARE_TRAINED = 0.5
MIN_RIGHT_IF_LEARNED = 0.9
"""Share of right responses above which few groups are left because the task is learned."""


def look(run: RunFacts) -> Finding | None:
    """Find that less than half of the wanted groups were trained on."""
    batch_groups = run.setting(run.section, "prompts_per_step")
    trained, sampled = run.mean_at_end("groups/trained"), run.mean_at_end("groups/sampled")
    if (
        not batch_groups
        or trained is None
        or sampled is None
        or trained >= MIN_SHARE_TRAINED * batch_groups
        or (run.share_right(at_end=True) or 0.0) >= MIN_RIGHT_IF_LEARNED
    ):
        return None
    skipped = run.mean_at_end("update/skipped") or 0.0
    note = f", and {skipped:.0%} of the last updates were skipped" if skipped else ""
    return Finding(
        "starvation",
        "problem",
        1 - trained / batch_groups,
        f"The last steps trained on {trained:.0f} of {batch_groups} groups although {sampled:.0f} were sampled{note}.",
        run.evidence("groups/trained"),
        f"--set {run.section}.select.max_refills=8"
        if run.setting(run.section, "select", "max_refills") == 0
        else "choose prompts that are solved sometimes, by rated rows and data.sampling.pass_rate, or easier data",
        EXPLAINS,
    )
