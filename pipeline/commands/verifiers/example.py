"""The letters of a word in the order of the alphabet."""

from __future__ import annotations

from pydantic import Field

from verifiers.base import Attempt, Verdict, VerifierParams, final_answer, verifier


class Params(VerifierParams):
    """What may differ. These are the parameters of the recipe; a wrong one is refused when it is loaded."""

    ignore_case: bool = Field(True, description="B and b are the same letter")


@verifier
def sorted_letters(attempt: Attempt, params: Params) -> Verdict:
    """1 if the answer is the reference's letters in order.

    `final_answer` cuts thinking, then takes the last box, `<answer>` tags, "Answer: ..." or a one-line response. Say
    why a score is what it is: reasons help when a run goes wrong. An exception here is no wrong answer: the response
    leaves its group, and is counted.
    """
    found = final_answer(attempt)
    if found.text is None:
        return found.no_answer()
    wanted, said = "".join(sorted(attempt.reference)), found.text
    if params.ignore_case:
        wanted, said = wanted.lower(), said.lower()
    if said == wanted:
        return Verdict("graded", 1.0, "equal", said)
    if sorted(said) == sorted(wanted):
        return Verdict("graded", 0.0, "not_in_order", said)
    return Verdict("graded", 0.0, "other_letters", said)
