"""Batches are not filled: few groups are left after selection, or whole updates are skipped.

Dynamic sampling throws away groups with equal rewards and samples others in their place, up to a limit. If most
prompts are too hard or too easy, the limit comes first, and an update has a few groups instead of a batch.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset({"too_hard", "too_easy", "learning_rate_low", "wrong_references", "false_negatives"})
HALF = 0.5
SOLVED = 0.9
"""Share of right responses above which few groups are left because the task is learned."""


def look(run: Reading) -> Finding | None:
    """Find that less than half of the wanted groups were trained on."""
    wanted = run.setting(run.section, "prompts_per_step")
    trained, sampled = run.late("groups/trained"), run.late("groups/sampled")
    if (
        not wanted
        or trained is None
        or sampled is None
        or trained >= HALF * wanted
        or (run.correct(late=True) or 0.0) >= SOLVED
    ):
        return None
    skipped = run.late("update/skipped") or 0.0
    also = f", and {skipped:.0%} of the last updates were skipped" if skipped else ""
    return Finding(
        "starvation",
        "problem",
        1 - trained / wanted,
        f"The last steps trained on {trained:.0f} of {wanted} groups although {sampled:.0f} were sampled{also}.",
        run.shown("groups/trained"),
        f"--set {run.section}.select.max_refills=8"
        if run.setting(run.section, "select", "max_refills") == 0
        else "choose prompts that are solved sometimes, by rated rows and data.sampling.pass_rate, or easier data",
        EXPLAINS,
    )
