"""Instructions that a program can check: counts, keywords, case, bullets, language, edges, format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._constraints import AnyConstraint, Constraint, bounds
from verizero.verifiers.answer import after_thinking, too_long
from verizero.verifiers.base import VerifierParams, verifier

CONSTRAINT: TypeAdapter[Constraint] = TypeAdapter(AnyConstraint)
IFEVAL_COUNTS = {
    "length_constraints:number_words": ("words", "num_words"),
    "length_constraints:number_sentences": ("sentences", "num_sentences"),
    "detectable_content:number_placeholders": ("placeholders", "num_placeholders"),
    "detectable_format:number_highlighted_sections": ("highlights", "num_highlights"),
}


class InstructionsParams(VerifierParams):
    """The score of a response that keeps some of its instructions."""

    grading: Literal["all", "fraction"] = Field("all", description="all: 1 only if every one holds; else their share")
    max_chars: int = Field(50_000, ge=1, description="a longer response breaks every instruction")


@verifier
def instructions(attempt: Attempt, params: InstructionsParams) -> Verdict:
    """Return 1 if the response after thinking keeps every instruction (or the share that it keeps).

    Reference: a list of constraints such as {"type": "words", "min": 50, "max": 80} (all in
    `verifiers/_constraints.py`), or IFEval's {"instruction_id_list": [..], "kwargs": [..]}. An empty response is no
    answer, also where every constraint would hold of it.
    """
    constraints = _constraints(attempt.reference)
    part = after_thinking(attempt)
    if part.text is None:
        return part.no_answer()
    if len(part.text) > params.max_chars:
        return too_long(part.text)
    kept = [c.holds(part.text, attempt.prompt) for c in constraints]
    if all(kept):
        return Verdict("graded", 1.0, "all_kept")
    broken = [c.type for c, held in zip(constraints, kept, strict=True) if not held]
    score = sum(kept) / len(kept) if params.grading == "fraction" else 0.0
    return Verdict("graded", score, f"broken: {', '.join(broken)}"[:200])


def from_ifeval(instruction: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constraint (as data) of one IFEval instruction id with its arguments.

    Raises: DataError if the id is unknown.
    """
    args = {k: v for k, v in arguments.items() if v is not None}
    if instruction in IFEVAL_COUNTS:
        what, key = IFEVAL_COUNTS[instruction]
        return {"type": what, **bounds(args.get("relation"), int(args[key]))}
    exact = args.get("num_bullets") or args.get("num_paragraphs")
    table: dict[str, Any] = {
        "keywords:existence": lambda: {"type": "keywords", "include": args["keywords"]},
        "keywords:forbidden_words": lambda: {"type": "keywords", "exclude": args["forbidden_words"]},
        "keywords:frequency": lambda: _frequency(args),
        "keywords:letter_frequency": lambda: {
            "type": "letters",
            "letter": args["letter"],
            **bounds(args.get("let_relation"), int(args["let_frequency"])),
        },
        "language:response_language": lambda: {"type": "language", "code": args["language"]},
        "length_constraints:number_paragraphs": lambda: {"type": "sections", "separator": "***", "count": exact},
        "length_constraints:nth_paragraph_first_word": lambda: {
            "type": "first_word",
            "word": args["first_word"],
            "paragraph": args["nth_paragraph"],
            "paragraphs": args["num_paragraphs"],
        },
        "detectable_content:postscript": lambda: {"type": "postscript", "marker": args["postscript_marker"]},
        "detectable_format:number_bullet_lists": lambda: {"type": "bullets", "min": exact, "max": exact},
        "detectable_format:constrained_response": lambda: {
            "type": "one_of",
            "phrases": ["My answer is yes.", "My answer is no.", "My answer is maybe."],
        },
        "detectable_format:multiple_sections": lambda: {
            "type": "sections",
            "marker": args["section_spliter"],
            "count": args["num_sections"],
        },
        "detectable_format:json_format": lambda: {"type": "json"},
        "detectable_format:title": lambda: {"type": "title"},
        "combination:two_responses": lambda: {
            "type": "sections",
            "separator": "******",
            "count": 2,
            "distinct": True,
        },
        "combination:repeat_prompt": lambda: {"type": "edges", "repeat_prompt": True},
        "startend:end_checker": lambda: {"type": "edges", "end": args["end_phrase"]},
        "startend:quotation": lambda: {"type": "edges", "quoted": True},
        "change_case:capital_word_frequency": lambda: _capitals(args),
        "change_case:english_capital": lambda: {"type": "case", "case": "upper"},
        "change_case:english_lowercase": lambda: {"type": "case", "case": "lower"},
        "punctuation:no_comma": lambda: {"type": "without", "characters": ",，、"},
    }
    if instruction not in table:
        raise DataError(f"reference.instruction_id_list: {instruction!r} is unknown; known: {', '.join(sorted(table))}")
    made: dict[str, Any] = table[instruction]()
    return made


def _frequency(args: Mapping[str, Any]) -> dict[str, Any]:
    allowed = bounds(args.get("relation"), int(args["frequency"]))
    times, at_most = allowed.get("min", 0), allowed.get("max")
    return {"type": "keywords", "include": [args["keyword"]], "times": times, "at_most": at_most}


def _capitals(args: Mapping[str, Any]) -> dict[str, Any]:
    allowed = bounds(args.get("capital_relation"), int(args["capital_frequency"]))
    return {"type": "case", "capital_words_min": allowed.get("min", 0), "capital_words_max": allowed.get("max")}


def _constraints(reference: Any) -> list[Constraint]:
    if isinstance(reference, Mapping) and "instruction_id_list" in reference:
        ids = reference["instruction_id_list"]
        try:
            arguments = reference.get("kwargs") or [{}] * len(ids)
            reference = [from_ifeval(i, k or {}) for i, k in zip(ids, arguments, strict=True)]
        except (KeyError, ValueError, TypeError) as exc:
            raise DataError(f"reference.kwargs: {type(exc).__name__}: {exc}") from exc
    if isinstance(reference, Mapping):
        reference = reference.get("constraints")
    if not isinstance(reference, list) or not reference:
        raise DataError(f"reference: expected a non-empty list of constraints, got {reference!r:.80}")
    made = []
    for i, item in enumerate(reference):
        try:
            made.append(CONSTRAINT.validate_python(item))
        except ValidationError as exc:
            first = exc.errors()[0]
            where = ".".join(str(x) for x in first["loc"])
            raise DataError(f"reference[{i}].{where}: {first['msg']}, got {first['input']!r:.80}") from exc
    return made
