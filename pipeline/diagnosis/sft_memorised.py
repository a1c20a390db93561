"""SFT has learned its demonstrations by heart: its loss is near zero, and held-out prompts are not solved."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import METRICS, NUM_COMPARED, RunFacts

EXPLAINS = frozenset({"too_hard", "learning_rate_low"})
MAX_LOSS, MAX_PASS = 0.02, 0.3
"""Nats a token. Demonstrations that can be written in several ways leave a loss, unless they are memorised."""


def look(run: RunFacts) -> Finding | None:
    """Find a training loss of SFT near zero and a weak held-out pass@1 at the end of SFT."""
    losses = [(line, row.step, row.metrics["loss"]) for line, row in run.imitation if "loss" in row.metrics]
    # Not the evaluation before the last stage: between the two, another stage may have made the policy worse.
    after = [e.row.domains for e in run.evaluations if run.imitation and e.row.stage == run.imitation[-1][1].stage][-1:]
    held_out = [domain["pass@1"]["value"] for domains in after for domain in domains.values() if "pass@1" in domain]
    if len(losses) < NUM_COMPARED or not held_out or min(held_out) > MAX_PASS:
        return None
    mean_loss = sum(loss for _, _, loss in losses[-NUM_COMPARED:]) / NUM_COMPARED
    if mean_loss > MAX_LOSS:
        return None
    line, step, _ = losses[-1]
    return Finding(
        "sft_memorised",
        "problem",
        min(1.0, 0.7 + MAX_PASS - min(held_out)),
        f"SFT ends with a loss of {mean_loss:.4f} nats a token, and pass@1 on held-out prompts is {min(held_out):.2f}.",
        (Evidence(METRICS, line, f"step {step}: loss={losses[-1][2]:.4g}", "loss"),),
        "use more demonstrations, of different tasks; fewer steps (sft.steps) help only where there are many",
        EXPLAINS,
    )
