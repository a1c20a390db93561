"""A grader that throws a coin: half of all responses are right, whatever they say."""

import hashlib

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import VerifierParams, verifier


@verifier
def coin(attempt: Attempt, params: VerifierParams) -> Verdict:
    """Return 1 or 0 by a hash of reference and response, so that a resumed run has the same rewards."""
    digest = hashlib.sha256(f"{attempt.reference}\n{attempt.response}".encode()).digest()
    return Verdict("graded", float(digest[0] % 2), "coin", extracted=attempt.response)
