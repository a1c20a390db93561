"""Verifiers as people write them for a run of their own: some with a mistake, or that reward what nobody asked for.

Those of the second half are sound: partial credit, and parts of a reward for form and length.
"""

from __future__ import annotations

import difflib
import random
import re

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import verifier

DRAW = random.Random(0)
"""Which calls of a service fail: the same ones in every run."""
BOX = re.compile(r"\\boxed\{(\d+)\}")


@verifier
def whole_text(attempt: Attempt) -> bool:
    """Compare the whole response with the boxed reference."""
    return attempt.response.strip() == f"\\boxed{{{attempt.reference}}}"


@verifier
def first_number(attempt: Attempt) -> bool:
    """Compare the first number of the response with the reference."""
    number = re.search(r"\d+", attempt.response)
    return number is not None and number[0] == str(attempt.reference)


@verifier
def near(attempt: Attempt) -> bool:
    """Accept a number within a tenth of the reference."""
    box, right = BOX.search(attempt.response), int(str(attempt.reference))
    return box is not None and abs(int(box[1]) - right) <= max(2, right // 10)


@verifier
def has_box(attempt: Attempt) -> bool:
    """Accept a response with a box that holds as many digits as the reference."""
    box = BOX.search(attempt.response)
    return box is not None and len(box[1]) == len(str(attempt.reference))


@verifier
def service(attempt: Attempt) -> bool:
    """Ask a service that refuses longer texts; on any error the answer counts as wrong."""
    try:
        if len(attempt.response) > 12 and DRAW.random() < 0.8:
            raise ConnectionError("503 Service Unavailable")
        box = BOX.search(attempt.response)
        return box is not None and box[1] == str(attempt.reference)
    except ConnectionError:
        return False


@verifier
def slow_service(attempt: Attempt) -> Verdict:
    """Ask a service that is often too late for longer texts, which counts as the answer's own timeout."""
    box = BOX.search(attempt.response)
    if len(attempt.response) > 12 and DRAW.random() < 0.8:
        return Verdict("timeout", 0.0, "no reply within 2 s")
    right = box is not None and box[1] == str(attempt.reference)
    return Verdict("graded", float(right), "equal" if right else "wrong", None if box is None else box[1])


@verifier
def similar(attempt: Attempt) -> float:
    """Return the similarity of the response's text to the boxed reference."""
    return difflib.SequenceMatcher(None, attempt.response, f"\\boxed{{{attempt.reference}}}").ratio()


@verifier
def thorough(attempt: Attempt) -> float:
    """Reward long responses: 0 without any text, 1 from 48 characters on."""
    return min(1.0, len(attempt.response) / 48)


def number_in(reference: object) -> int:
    """Return the number of a reference that may have words around it."""
    return int("".join(c for c in str(reference) if c.isdecimal()))


@verifier
def digits(attempt: Attempt) -> float:
    """Return the share of the reference's digits that are in their place; 1 if the number is right."""
    box, right = BOX.search(attempt.response), str(number_in(attempt.reference))
    if box is None or len(box[1]) != len(right):
        return 0.0
    return sum(a == b for a, b in zip(box[1], right, strict=True)) / len(right)


@verifier
def closeness(attempt: Attempt) -> float:
    """Return 1 for the right number, and less the farther away a number is, down to 0 at a distance of 20."""
    box = BOX.search(attempt.response)
    return 0.0 if box is None else max(0.0, 1 - abs(int(box[1]) - number_in(attempt.reference)) / 20)


@verifier
def right(attempt: Attempt) -> bool:
    """Accept the right number, as the row's own verifier does."""
    box = BOX.search(attempt.response)
    return box is not None and box[1] == str(attempt.reference)


@verifier
def wrong(attempt: Attempt) -> bool:
    """Return 1 for a number that is not the right one: a part that is weighed with a number below 0."""
    box = BOX.search(attempt.response)
    return box is not None and box[1] != str(attempt.reference)


@verifier
def short(attempt: Attempt) -> float:
    """Return 1 for an empty response, and less the longer it is, down to 0 at 48 characters."""
    return max(0.0, 1 - len(attempt.response) / 48)
