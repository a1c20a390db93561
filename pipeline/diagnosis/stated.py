"""The numbers that responses state, compared with the references of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verizero.pipeline.diagnosis.reading import Reading, Sample
from verizero.pipeline.types import Attempt
from verizero.verifiers.answer import final_answer

FEWEST = 20
"""Responses below which a share of them says little."""
ALIKE = 1e-9


@dataclass(frozen=True, slots=True)
class Stated:
    """Responses of one domain whose number and whose reference's number are known."""

    refused_right: tuple[Sample, ...]
    """Graded 0, and the number is the reference's."""
    refused_wrong: int
    accepted_wrong: tuple[Sample, ...]
    """Graded 1, and the number is another."""
    accepted_right: int

    @property
    def accepts_wrong(self) -> float | None:
        """The share of the accepted responses that state another number; None for few responses."""
        return _share(len(self.accepted_wrong), self.accepted_right)

    @property
    def refuses_right(self) -> float | None:
        """The share of the refused responses that state the reference's number; None for few responses."""
        return _share(len(self.refused_right), self.refused_wrong)


def stated(run: Reading, domain: str) -> Stated:
    """Return the training responses of a domain, by verdict and by the number that they end with."""
    by_verdict: dict[tuple[float, bool], list[Sample]] = {(0.0, True): [], (0.0, False): [], (1.0, True): []}
    by_verdict[1.0, False] = []
    for sample in run.samples:
        if sample.row.domain != domain or sample.row.ending is not None or sample.row.score not in (0.0, 1.0):
            continue
        number, right = _number(_answer(sample)), _number(run.references.get(sample.row.prompt_id))
        if number is not None and right is not None:
            by_verdict[sample.row.score, abs(number - right) <= ALIKE * max(1.0, abs(right))].append(sample)
    return Stated(
        tuple(by_verdict[0.0, True]),
        len(by_verdict[0.0, False]),
        tuple(by_verdict[1.0, False]),
        len(by_verdict[1.0, True]),
    )


def shown(samples: Sequence[Sample], run: Reading) -> str:
    """Return the first response with its reference, for a sentence; empty if there is none."""
    if not samples:
        return ""
    row = samples[0].row
    return f" For example {_answer(samples[0])!r:.30}, with the reference {run.references[row.prompt_id]!r:.30}."


def _answer(sample: Sample) -> str | None:
    row = sample.row
    return row.extracted if row.extracted is not None else final_answer(Attempt(row.response, None)).text


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest >= FEWEST else None
