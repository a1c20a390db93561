"""The end token of each response is left out of the loss, so that the policy does not learn when to stop."""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts

ONE_TOKEN = (0.7, 1.3)
"""Tokens a response that are sampled and not trained on: one each."""


def look(run: RunFacts) -> Finding | None:
    """Find one token less trained than sampled a response, over the responses of the last updates."""
    lengths = run.trained_and_sampled_lengths()
    if lengths is None:
        return None
    trained, sampled, evidence = lengths
    masked = sum(
        run.mean_at_end(f"masked/{name}") or 0.0 for name in ("overlong", "off_policy", "mismatch", "rejected")
    )
    if masked or not ONE_TOKEN[0] <= sampled - trained <= ONE_TOKEN[1]:
        return None
    return Finding(
        "mask_leaves_end",
        "problem",
        0.9,
        f"{sampled:.1f} tokens of each response were sampled and {trained:.1f} are trained on: the last one, the end "
        "token, is left out.",
        evidence,
        "look at the response mask (pipeline/train/collate.py), or at the change that was made to it",
    )
