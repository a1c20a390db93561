"""The letters of a word in the order of the alphabet."""

from __future__ import annotations

from pydantic import Field

from verizero.verifiers.base import Attempt, Verdict, VerifierParams, final_answer, verifier


class Params(VerifierParams):
    """Parameters of the recipe; a wrong one is refused when the recipe is loaded."""

    ignore_case: bool = Field(True, description="B and b are the same letter")


@verifier
def sorted_letters(attempt: Attempt, params: Params) -> Verdict:
    """Return 1 if the answer is the reference's letters in order.

    `final_answer` cuts thinking, then takes the last box, `<answer>` tags, "Answer: ..." or a one-line response. Give a
    reason with each score: reasons help when a run goes wrong. An exception here is not a wrong answer: the response
    leaves its group, and is counted.
    """
    final = final_answer(attempt)
    if final.text is None:
        return final.no_answer()
    wanted, answer = "".join(sorted(attempt.reference)), final.text
    if params.ignore_case:
        wanted, answer = wanted.lower(), answer.lower()
    if answer == wanted:
        return Verdict("graded", 1.0, "equal", answer)
    if sorted(answer) == sorted(wanted):
        return Verdict("graded", 0.0, "not_in_order", answer)
    return Verdict("graded", 0.0, "other_letters", answer)
