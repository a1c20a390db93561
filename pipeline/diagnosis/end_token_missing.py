"""Responses do not end: nearly all of them run into the length limit, from the first step on.

Either the policy was never shown how to stop (demonstrations without the end token), or the engine does not take its
end token for one (a tokenizer of another model, a chat template whose turn ends with another token). Such a response
has no final answer, or an answer followed by noise.
"""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts, Sample
from verizero.verifiers.answer import boxed_or_tagged

EXPLAINS = frozenset({"too_hard", "length_cap", "false_negatives", "wrong_references", "infrastructure_zeros"})
MIN_CUT, MIN_ANSWERED, MAX_READ = 0.9, 0.02, 500
"""Shares of responses: cut, and with an answer before they are cut; responses that are read for one."""


def look(run: RunFacts) -> Finding | None:
    """Find nearly all responses cut in the first steps and in the last."""
    cut_at_start, cut_at_end = run.mean_at_start("truncated"), run.mean_at_end("truncated")
    if cut_at_start is None or cut_at_end is None or min(cut_at_start, cut_at_end) < MIN_CUT:
        return None
    if share_answered_if_cut(run.samples) < MIN_ANSWERED:
        return None  # none comes as far as an answer, or nobody can look: a limit that is too low is more usual
    is_plain = run.setting("model", "path") is not None and run.setting("data", "template", "name") != "chat"
    return Finding(
        "end_token_missing",
        "problem",
        min(cut_at_start, cut_at_end),
        f"{cut_at_end:.0%} of the responses are cut at the length limit and none learns to stop: {_why(run)}.",
        run.evidence("truncated"),
        "compare the last token of a demonstration with the tokenizer's end token"
        + ("; for a chat model: --set data.template.name=chat" if is_plain else ""),
        EXPLAINS,
    )


def share_answered_if_cut(samples: Sequence[Sample]) -> float:
    """Return the share of responses that hold an answer in a box or tags; 0 if there are no responses."""
    read = samples[:MAX_READ]
    answers = [boxed_or_tagged(s.row.response) for s in read]
    return sum(a is not None and a.text is not None for a in answers) / max(1, len(read))


def _why(run: RunFacts) -> str:
    trained_ends = [row.metrics["ends/trained"] for _, row in run.imitation if "ends/trained" in row.metrics]
    if trained_ends and max(trained_ends) == 0:
        return "no demonstration of SFT had the end token as its last"
    return "the end token is never sampled, or the engine does not know it"
