"""A verifier for short runs of untrained policies."""

VERIFIER = """
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import VerifierParams, verifier


@verifier
def parity(attempt: Attempt, params: VerifierParams) -> Verdict:
    right = sum(map(ord, attempt.response)) % 2 == 0
    return Verdict("graded", float(right), "even" if right else "odd", extracted=attempt.response)
"""
"""Grades by chance: half of what an untrained policy says is right, so that groups differ and pairs exist."""
