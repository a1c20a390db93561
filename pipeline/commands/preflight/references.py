"""References that the verifier refuses when they are given as the answer, and prompts that have two of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from verizero.pipeline.commands.preflight.checked import Checked, evidence_at, not_tried, spread
from verizero.pipeline.commands.preflight.graders import failing, grader_of, is_cheap, name_of
from verizero.pipeline.commands.preflight.local_parts import LocalParts
from verizero.pipeline.config.choices import ENVIRONMENT, is_path
from verizero.pipeline.data.hints import answer_of
from verizero.pipeline.diagnosis.finding import Evidence, Finding, Level
from verizero.pipeline.errors import ConfigError, DataError, IsolationError
from verizero.pipeline.scoring.score import Grader
from verizero.pipeline.types import Attempt, Prompt, Verdict
from verizero.verifiers.mathematics.grader import gold_text

NAME = "references"
MOST, FEW = 300, 20
"""Rows of each verifier whose references are graded, and those that a function of the user is called with."""
READ_AS_ANSWERS = frozenset({"math", "numeric", "exact", "choice"})
"""Verifiers whose reference is the answer itself."""
QUERIES = frozenset({"sql"})
"""Verifiers whose reference is a program that answers."""
MANY, SOME = 0.05, 0.01
"""Shares of refused references that are a problem, and a warning."""
SHOWN = 3


@dataclass
class Graded:
    """The verdicts on the references of one verifier."""

    key: str
    is_sure: bool
    """True for a verifier whose reference is known to be an answer."""
    passed: int = 0
    refused: list[tuple[Prompt, Verdict]] = field(default_factory=list)
    failed: list[tuple[Prompt, Verdict]] = field(default_factory=list)
    """References on which the verifier itself failed."""

    @property
    def total(self) -> int:
        """The number of references."""
        return self.passed + len(self.refused) + len(self.failed)


def look(recipe: LocalParts) -> Checked:
    """Give each reference as a response to the verifier of its row."""
    prompts = [p for p in (*recipe.train.prompts, *recipe.evaluation.prompts) if p.verifier]
    if not prompts:
        return not_tried(NAME, "no row is graded" if recipe.train.prompts else recipe.train.why_none)
    by_key: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_key.setdefault(prompt.verifier, []).append(prompt)
    looks = [_look(recipe, key, prompts_of_key) for key, prompts_of_key in by_key.items()]
    is_any = any(tried for tried, _, _ in looks)
    results = [text if tried or not is_any else f"not tried, {text}" for tried, text, _ in looks] + list(
        recipe.train.absent.values()
    )[:1]
    return Checked(NAME, is_any, "; ".join(results), tuple(f for *_, findings in looks for f in findings))


def _look(recipe: LocalParts, key: str, prompts: Sequence[Prompt]) -> tuple[bool, str, list[Finding]]:
    """Return whether the references of one verifier were graded, a line about them, and what was found."""
    reason = _untried(recipe, key, prompts)
    if reason is not None:
        return False, f"{key}: {reason}", []
    try:
        grader = grader_of(recipe, key, prompts)
    except (IsolationError, ConfigError) as exc:
        return False, f"{key}: {exc}", []
    # By object: rows of the evaluation may have the ids of training rows.
    places = {id(p): rows.places[p.id] for rows in (recipe.train, recipe.evaluation) for p in rows.prompts}
    name = name_of(recipe, key)
    if answer_of(prompts[0]) is None and name not in READ_AS_ANSWERS | QUERIES:
        return _called(grader, key, spread(prompts, FEW), places)
    graded = grade(grader, key, name, spread(prompts, MOST))
    findings: list[Finding] = []
    if not graded.is_sure:  # that a function of the user fails is its own fault, whatever a reference holds
        failed = [(places[id(p)], p, v) for p, v in graded.failed]
        findings += failing(key, failed, graded.total, "references, given to it as responses")
        if graded.passed < graded.total / 2:
            text = f"{key}: {graded.passed} of {graded.total} references pass as a response, so they may be none"
            return bool(findings), text, findings
    findings += _refused(graded if graded.is_sure else replace(graded, failed=[]), places)
    if name in READ_AS_ANSWERS:
        findings += _two_references(grader, name, prompts, places)
    return True, _count(graded, len(prompts)), findings


def _called(
    grader: Grader, key: str, prompts: Sequence[Prompt], places: dict[int, str]
) -> tuple[bool, str, list[Finding]]:
    """Call a function of the user whose references hold no response: it may refuse what it gets, but not fail."""
    verdicts = grader.score([Attempt(str(p.reference), p.reference, p.question) for p in prompts])
    failed = [(places[id(p)], p, v) for p, v in zip(prompts, verdicts, strict=True) if v.is_infrastructure]
    findings = failing(key, failed, len(prompts), "references, written out and given to it as responses")
    text = f"{key}: a reference of it holds no response; it fails on {len(failed)} of {len(prompts)} calls"
    return True, text, findings


def grade(grader: Grader, key: str, name: str, prompts: Sequence[Prompt]) -> Graded:
    """Return the verdicts on the references of prompts of one verifier, each in the form that suits it best."""
    result = Graded(key, name in READ_AS_ANSWERS | QUERIES)
    ways = [responses(name, p.reference) for p in prompts]
    best: dict[int, Verdict] = {}
    # One way after another, so that most references are graded once.
    for number in range(max(map(len, ways), default=0)):
        left = [i for i in range(len(prompts)) if number < len(ways[i]) and not _passes(best.get(i))]
        attempts = [Attempt(ways[i][number], prompts[i].reference, prompts[i].question) for i in left]
        for i, verdict in zip(left, grader.score(attempts), strict=True):
            best[i] = verdict if i not in best or _passes(verdict) else best[i]
    for i, verdict in sorted(best.items()):
        if _passes(verdict):
            result.passed += 1
        else:
            (result.failed if verdict.is_infrastructure else result.refused).append((prompts[i], verdict))
    return result


def responses(name: str, reference: Any) -> tuple[str, ...]:
    """Return the ways in which a response can give the reference as its answer.

    Example: responses("math", "42") == ("\\\\boxed{42}", "<answer>42</answer>", "42").
    """
    if name in QUERIES:
        query = reference.get("query", reference.get("sql")) if isinstance(reference, Mapping) else reference
        return (f"```sql\n{query}\n```",)
    value = next(_answers(name, reference), "")
    return (f"\\boxed{{{value}}}", f"<answer>{value}</answer>", str(value))


def _answers(name: str, reference: Any) -> Iterator[str]:
    if isinstance(reference, Mapping):
        reference = reference.get("answer", reference.get("value"))
    for value in reference if isinstance(reference, list) else [reference]:
        if isinstance(value, str | int | float):
            try:
                yield gold_text(value) if name == "math" else str(value)  # a whole solution holds its answer
            except DataError:
                yield str(value)


def _untried(recipe: LocalParts, key: str, prompts: Sequence[Prompt]) -> str | None:
    """Return the reason for which references of a verifier are not graded; None if they are."""
    if key == ENVIRONMENT:
        return "its environment decides"
    name, choice = name_of(recipe, key), recipe.config.verifiers.get(key)
    if name in READ_AS_ANSWERS | QUERIES:
        return None
    if (choice is None and not is_path(name)) or (choice is not None and choice.path is None):
        return "a reference of it holds no response"
    return None if is_cheap(recipe, key, prompts) else "it needs a model or a service"


def _passes(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.is_correct


def _level(share: float) -> Level:
    return "problem" if share >= MANY else "warning" if share >= SOME else "note"


def _count(graded: Graded, num_rows: int) -> str:
    of = "" if num_rows == graded.total else f" of {num_rows}"
    failed = f", the verifier fails on {len(graded.failed)}" if graded.failed else ""
    return f"{graded.total}{of} references of {graded.key}: {len(graded.refused)} refused{failed}"


def _refused(graded: Graded, places: dict[int, str]) -> list[Finding]:
    bad = [*graded.failed, *graded.refused]
    if not bad:
        return []
    share = len(bad) / graded.total
    level = _level(share if graded.is_sure else min(share, SOME))
    reasons = Counter(v.reason.partition(":")[0] for _, v in bad).most_common(2)
    how = [
        f"{len(graded.refused)} are refused when they are the answer" if graded.refused else "",
        f"the verifier fails on {len(graded.failed)}" if graded.failed else "",
    ]
    return [
        Finding(
            "wrong_references",
            level,
            min(1.0, 0.7 + share),
            f"Of {graded.total} references, {graded.key}: {' and '.join(filter(None, how))} "
            f"({', '.join(f'{reason}: {n}' for reason, n in reasons)}). No response to such a row can be right.",
            tuple(
                evidence_at(places[id(p)], f"{p.reference!r:.60}: {v.status} {v.reason:.60}") for p, v in bad[:SHOWN]
            ),
            "correct these rows, or the column that mapping.answer of their source names",
            frozenset({"too_hard", "false_negatives"}),
        )
    ]


def _two_references(grader: Grader, name: str, prompts: Sequence[Prompt], places: dict[int, str]) -> list[Finding]:
    """Find equal prompts of which the verifier takes the reference of one for a wrong answer to another."""
    first: dict[tuple[str | None, str], Prompt] = {}
    pairs = []
    for prompt in (p for p in prompts if p.environment is None):
        other = first.setdefault((prompt.system, prompt.asked), prompt)
        if other.reference != prompt.reference:
            pairs.append((other, prompt))
    some = pairs[:MOST]
    verdicts = grader.score([Attempt(responses(name, a.reference)[0], b.reference, b.question) for a, b in some])
    odd = [pair for pair, v in zip(some, verdicts, strict=True) if not v.is_correct and not v.is_infrastructure]
    if not odd:
        return []
    shown: list[Evidence] = []
    for a, b in odd[:SHOWN]:
        shown += [evidence_at(places[id(p)], f"{p.question!r:.50} -> {p.reference!r:.40}") for p in (a, b)]
    return [
        Finding(
            "wrong_references",
            _level(len(odd) / len(prompts)),
            0.9,
            f"{len(odd)} rows of {name} ask what another row asks and have another reference: one of the two is wrong.",
            tuple(shown),
            "keep the right row of each pair",
        )
    ]
