"""Say which rules cannot judge a run of another trainer, for lack of which numbers."""

from __future__ import annotations

from verizero.pipeline.diagnosis.logs.facts import Reading

RESPONSES, REFERENCES, EVALUATION, DEMONSTRATIONS = "responses", "references", "evaluation", "demonstrations"
NEEDS: dict[str, tuple[str, ...]] = {}


def silent_rules(reading: Reading) -> tuple[str, ...]:
    """Return a line for each thing that is missing, with the causes that are not judged without it."""
    return ()
