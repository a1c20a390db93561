"""Responses do not end: nearly all of them run into the length limit, from the first step on.

Either the policy was never shown how to stop (demonstrations without the end token), or the engine does not take its
end token for one (a tokenizer of another model, a chat template whose turn ends with another token). Such a response
has no final answer, or an answer followed by noise.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.reading import Reading

EXPLAINS = frozenset({"too_hard", "length_cap", "false_negatives", "wrong_references", "infrastructure_zeros"})
NEARLY_ALL = 0.9


def look(run: Reading) -> Finding | None:
    """Find nearly all responses cut in the first steps and in the last."""
    early, late = run.early("truncated"), run.late("truncated")
    if early is None or late is None or min(early, late) < NEARLY_ALL:
        return None
    is_plain = run.setting("model", "path") is not None and run.setting("data", "template", "name") != "chat"
    return Finding(
        "end_token_missing",
        "problem",
        min(early, late),
        f"{late:.0%} of the responses are cut at the length limit and none learns to stop: {_why(run)}.",
        run.shown("truncated"),
        "compare the last token of a demonstration with the tokenizer's end token"
        + ("; for a chat model: --set data.template.name=chat" if is_plain else ""),
        EXPLAINS,
    )


def _why(run: Reading) -> str:
    ends = [row.metrics["ends/trained"] for _, row in run.imitation if "ends/trained" in row.metrics]
    if ends and max(ends) == 0:
        return "no demonstration of SFT had the end token as its last"
    return "the end token is never sampled, or the engine does not know it"
