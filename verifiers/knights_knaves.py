"""Knights, who always tell the truth, and knaves, who always lie: the roles are checked against the statements."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import Answer, after_thinking, boxed_or_tagged
from verizero.verifiers.base import VerifierParams, verifier

MAX_PEOPLE = 16
STOP = re.compile(r"[\n;]|[.!?](?=\s)")
OPEN = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|might|could)\b|\\neq?\b|[≠≢]|!=", re.IGNORECASE)
OTHERWISE = re.compile(r"(?:^|[\n;.!?])[ (]{0,2}(?:or|alternatively)\b", re.IGNORECASE)
SUPPOSED = re.compile(r"\b(?:if|suppose|supposing|assume|assuming|unless|whether|were)\b", re.IGNORECASE)


class KnightsKnavesParams(VerifierParams):
    """The words for the two roles."""

    truthful: str = Field("knight", min_length=1, description="who tells the truth")
    lying: str = Field("knave", min_length=1, description="who lies")


@verifier
def knights_knaves(attempt: Attempt, params: KnightsKnavesParams) -> Verdict:
    """Return 1 if the answer gives each person one role, and the roles agree with every statement.

    Reference: {"people": [names], "statements": [one formula per person, what that person says]} or with "solution":
    {name: role}. Formulas: ["knight", i], ["knave", i], ["not", f], ["and", f, ...], ["or", f, ...], ["->", f, g],
    ["<=>", f, g], people counted from 0 ("telling-truth" and "lying" are understood too). Someone with two roles is a
    contradiction, someone without one leaves the puzzle unsolved, "or" between roles is a hedge: all are wrong. What
    is only supposed ("if Ann is a knight") gives nobody a role.
    """
    people, statements, solution = _puzzle(attempt.reference, params)
    answer = _roles_text(attempt)
    if answer.text is None:
        return answer.no_answer()
    extracted = answer.text[:400]
    roles: dict[str, bool] = {}
    claims = _claims(answer.text, people, params)
    if claims is None:
        return Verdict("graded", 0.0, "hedged", extracted)
    for name, role in claims:
        if roles.setdefault(name, role) != role:
            return Verdict("graded", 0.0, f"contradiction: {name}", extracted)
    if not roles:
        return Verdict("no_answer", 0.0, "no_roles", extracted)
    missing = [p for p in people if p not in roles]
    if missing:
        return Verdict("graded", 0.0, f"no_role: {missing[0]}", extracted)
    assignment = [roles[p] for p in people]
    if statements is None:
        wrong = [p for p, truthful in zip(people, assignment, strict=True) if solution[p] != truthful]
    else:
        wrong = [p for p, s, t in zip(people, statements, assignment, strict=True) if holds(s, assignment) != t]
    reason = f"does_not_fit: {wrong[0]}" if wrong else "consistent"
    return Verdict("graded", float(not wrong), reason, extracted)


def holds(formula: Any, truthful: Sequence[bool]) -> bool:
    """True if a statement holds, where `truthful[i]` is True if person i is a knight.

    Raises: DataError on an unknown connective or person.
    """
    match formula:
        case ["knight" | "telling-truth", int(i)] if 0 <= i < len(truthful):
            return truthful[i]
        case ["knave" | "lying", int(i)] if 0 <= i < len(truthful):
            return not truthful[i]
        case ["not", f]:
            return not holds(f, truthful)
        case ["and", *parts] if parts:
            return all(holds(f, truthful) for f in parts)
        case ["or", *parts] if parts:
            return any(holds(f, truthful) for f in parts)
        case ["->", f, g]:
            return not holds(f, truthful) or holds(g, truthful)
        case ["<=>", f, g]:
            return holds(f, truthful) == holds(g, truthful)
    raise DataError(f"reference.statements: not a formula over {len(truthful)} people: {formula!r:.80}")


def solutions(statements: Sequence[Any]) -> list[tuple[bool, ...]]:
    """Return all assignments that agree with the statements, person i saying `statements[i]`; True is a knight."""
    n = len(statements)
    every = itertools.product((True, False), repeat=n)
    return [roles for roles in every if all(holds(statements[i], roles) == roles[i] for i in range(n))]


def _roles_text(attempt: Attempt) -> Answer:
    part = after_thinking(attempt)
    if part.text is None:
        return part
    answer = boxed_or_tagged(part.text)
    if answer is not None:
        return answer
    if attempt.truncated:
        return Answer(None, "truncated")
    conclusion = list(re.finditer(r"\b(?:conclusion|final answer|answer)\b[*\s]*:", part.text, re.IGNORECASE))
    if conclusion:
        return Answer(part.text[conclusion[-1].end() :], "cue")
    return part


def _claims(text: str, people: Sequence[str], params: KnightsKnavesParams) -> list[tuple[str, bool]] | None:
    """Return each person that the text calls a knight (True) or a knave, in order; None if it leaves a role open.

    Every repetition in the patterns is bounded, so that no text is slow.
    """
    lines = [" ".join(line.split()) for line in text[:20_000].splitlines()]
    by_lines = "\n".join(line for line in lines if line)
    text = by_lines.replace("\n", " ")  # of equal length, so that places in one are places in the other
    person = "|".join(re.escape(p) for p in sorted(people, key=len, reverse=True))  # longest first: Anna before Ann
    names = rf"(?P<names>(?:{person})(?:(?: |,|&|and\b|both\b){{1,9}}(?:{person})){{0,{MAX_PEOPLE}}})\b"
    role = f"(?P<role>{re.escape(params.truthful)}|{re.escape(params.lying)})s?\\b"
    verb = (
        r"(?:(?:is|are|must be|has to be|=|:|->|→|\\to|\|)[*\"'| ]{0,4})?(?P<not>not )?(?:both )?"
        r"(?:(?:an?|the) )?(?:\\text\{)?[*\"'( ]{0,4}"
    )
    claim = re.compile(rf"\b{names}[*\"'|) }}]{{0,6}}{verb}{role}", re.IGNORECASE)
    listed = re.compile(rf"\b{role}[* ]{{0,4}}(?::|are\b)[* ]{{0,4}}{names}", re.IGNORECASE)
    also = re.compile(
        rf"[*\"' ]{{0,4}}(?:and|or|&|/|,)[* ]{{0,3}}(?:an? |the |also ){{0,2}}{role}(?![* ]{{0,4}}(?::|are\b))", re.I
    )
    by_fold = {p.casefold(): p for p in people}
    claims = []
    for match in [*listed.finditer(text), *claim.finditer(text)]:
        sentence, before = _around(by_lines, match.start(), match.end())
        if SUPPOSED.search(before):
            continue
        if OPEN.search(sentence) or also.match(text, match.end()):
            return None
        negated = bool(match.groupdict().get("not"))
        truthful = (match["role"].casefold() == params.truthful.casefold()) != negated
        claims += [
            (by_fold[n.casefold()], truthful) for n in re.findall(rf"\b(?:{person})\b", match["names"], re.IGNORECASE)
        ]
    return None if claims and OTHERWISE.search(by_lines) else claims


def _around(text: str, start: int, end: int) -> tuple[str, str]:
    """Return the sentence around text[start:end], and its part before `end`; at most 400 characters each way."""
    low, high = max(0, start - 400), min(len(text), end + 400)
    first = max((m.end() for m in STOP.finditer(text, low, start)), default=low)
    last = STOP.search(text, end, high)
    return text[first : last.start() if last else high], text[first:end]


def _puzzle(reference: Any, params: KnightsKnavesParams) -> tuple[list[str], Sequence[Any] | None, Mapping[str, bool]]:
    people = reference.get("people") if isinstance(reference, Mapping) else None
    if not isinstance(people, list) or not 0 < len(people) <= MAX_PEOPLE or len(set(people)) != len(people):
        raise DataError(f"reference.people: expected 1 to {MAX_PEOPLE} distinct names, got {people!r:.80}")
    statements = reference.get("statements")
    if statements is not None:
        if not isinstance(statements, list) or len(statements) != len(people):
            raise DataError(f"reference.statements: expected one per person ({len(people)}), got {statements!r:.80}")
        return people, statements, {}
    solution = reference.get("solution")
    words = {params.truthful.casefold(): True, params.lying.casefold(): False}
    if not isinstance(solution, Mapping) or {str(v).casefold() for v in solution.values()} - set(words):
        raise DataError(f"reference.solution: expected name -> {params.truthful!r} or {params.lying!r}")
    if set(solution) != set(people):
        raise DataError("reference.solution: its names are not those of 'people'")
    return people, None, {p: words[str(solution[p]).casefold()] for p in people}
