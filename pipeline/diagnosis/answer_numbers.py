"""Compare the numbers in responses' answers with their references, to check the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verizero.pipeline.diagnosis.run_facts import RunFacts, Sample
from verizero.pipeline.types import Attempt
from verizero.verifiers.answer import final_answer

MIN_RESPONSES = 20
"""With fewer responses, a share of them is too noisy."""
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class AnswerNumbers:
    """Responses of a domain, by their verdict and by whether their number equals the reference."""

    refused_right: tuple[Sample, ...]
    """Score 0, though the number equals the reference."""
    refused_wrong: int
    accepted_wrong: tuple[Sample, ...]
    """Score 1, though the number differs from the reference."""
    accepted_right: int

    @property
    def accepts_wrong(self) -> float | None:
        """Share of accepted responses with a wrong number; None if there are few responses."""
        return _share(len(self.accepted_wrong), self.accepted_right)

    @property
    def refuses_right(self) -> float | None:
        """Share of refused responses with the right number; None if there are few responses."""
        return _share(len(self.refused_right), self.refused_wrong)


def answer_numbers(run: RunFacts, domain: str) -> AnswerNumbers:
    """Sort the training responses of a domain by score and number. Those without a number are left out."""
    by_verdict: dict[tuple[float, bool], list[Sample]] = {(0.0, True): [], (0.0, False): [], (1.0, True): []}
    by_verdict[1.0, False] = []
    for sample in run.samples:
        if sample.row.domain != domain or sample.row.ending is not None or sample.row.score not in (0.0, 1.0):
            continue
        number, reference = number_of(_answer(sample)), number_of(run.references.get(sample.row.prompt_id))
        if number is not None and reference is not None:
            by_verdict[
                sample.row.score, abs(number - reference) <= RELATIVE_TOLERANCE * max(1.0, abs(reference))
            ].append(sample)
    return AnswerNumbers(
        tuple(by_verdict[0.0, True]),
        len(by_verdict[0.0, False]),
        tuple(by_verdict[1.0, False]),
        len(by_verdict[1.0, True]),
    )


def example_of(samples: Sequence[Sample], run: RunFacts) -> str:
    """Return a sentence with the first sample's answer and reference; empty if there is no sample."""
    if not samples:
        return ""
    row = samples[0].row
    return f" For example {_answer(samples[0])!r:.30}, with the reference {run.references[row.prompt_id]!r:.30}."


def _answer(sample: Sample) -> str | None:
    row = sample.row
    return row.extracted if row.extracted is not None else final_answer(Attempt(row.response, None)).text


def number_of(text: str | None) -> float | None:
    """Return the number that a text is; None if it is none."""
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest >= MIN_RESPONSES else None
