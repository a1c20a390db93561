"""References that the verifier refuses when they are given as the answer, and prompts that have two of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verizero.pipeline.checks.before.parts import LocalParts
from verizero.pipeline.checks.finding import Checked, Finding, Level
from verizero.pipeline.checks.limits import MANY_FAILED
from verizero.pipeline.config.choices import ENVIRONMENT, is_path
from verizero.pipeline.data.prompts import spread
from verizero.pipeline.errors import ConfigError, DataError, IsolationError
from verizero.pipeline.scoring.sandbox_setup import open_sandbox
from verizero.pipeline.scoring.score import Grader, bind_verifiers
from verizero.pipeline.types import Attempt, Prompt, Verdict
from verizero.verifiers.base import BoundVerifier
from verizero.verifiers.mathematics.grader import gold_text

MOST = 300
"""Rows of each verifier whose references are graded."""
READ_AS_ANSWERS = frozenset({"math", "numeric", "exact", "choice"})
"""Verifiers whose reference is the answer itself."""
QUERIES = frozenset({"sql"})
"""Verifiers whose reference is a program that answers."""
MANY, SOME = 0.05, 0.01
"""Shares of refused references that are a problem, and a warning."""
SHOWN = 3
EXPLAINS = frozenset({"too_hard", "false_negatives"})
"""Causes that a verifier explains by what it cannot grade: the rates, not another verifier's references."""


def grader_of(recipe: LocalParts, prompt: Prompt, only_cheap: bool = False) -> Grader | None:
    """Return the verifier of a prompt; one that runs programs gets the recipe's sandbox.

    only_cheap: return None if it needs a model or a service.
    Raises: DataError for a verifier that does not exist or refuses its parameters; IsolationError or ConfigError where
    its programs cannot run here.
    """
    grader = bind_verifiers([prompt], recipe.config.verifiers, recipe.base_dir)[prompt.verifier]
    if only_cheap and not (isinstance(grader, BoundVerifier) and grader.is_cheap):
        return None
    open_sandbox(recipe.config.sandbox, [grader], lambda text: None)
    return grader


def look(recipe: LocalParts) -> Checked:
    """Give each reference as a response to the verifier of its row."""
    by_key: dict[str, list[Prompt]] = {}
    for prompt in (*recipe.train, *recipe.evaluation):
        if prompt.verifier:
            by_key.setdefault(prompt.verifier, []).append(prompt)
    if not by_key:
        return Checked("references", False, "no row is graded" if recipe.train else recipe.why_none)
    looks = [_look(recipe, key, prompts) for key, prompts in by_key.items()]
    is_any = any(tried for tried, _, _ in looks)
    results = [text if tried or not is_any else f"not tried, {text}" for tried, text, _ in looks]
    return Checked("references", is_any, "; ".join(results), tuple(f for *_, findings in looks for f in findings))


def _look(recipe: LocalParts, key: str, prompts: Sequence[Prompt]) -> tuple[bool, str, list[Finding]]:
    """Return whether the references of one verifier were graded, a line about them, and what was found."""
    choice = recipe.config.verifiers.get(key)
    name = key.partition("{")[0] if choice is None else choice.name or key  # for a function of a file its key
    is_sure = name in READ_AS_ANSWERS | QUERIES
    if key == ENVIRONMENT:
        return False, f"{key}: its environment decides", []
    if not is_sure and not (is_path(name) if choice is None else choice.path is not None):
        return False, f"{key}: a reference of it holds no response", []
    try:
        grader = grader_of(recipe, prompts[0], only_cheap=not is_sure)
    except (IsolationError, ConfigError) as exc:
        return False, f"{key}: {exc}", []
    if grader is None:
        return False, f"{key}: it needs a model or a service", []
    some = spread(prompts, MOST)
    bad = [(p, v) for p, v in zip(some, best_verdicts(grader, name, some), strict=True) if not v.is_correct]
    failed, refused = ([(p, v) for p, v in bad if v.is_infrastructure is is_failure] for is_failure in (True, False))
    findings: list[Finding] = []
    if failed and not is_sure:  # that a function of the user fails is its own fault, whatever a reference holds
        findings.append(failing(recipe, key, failed, len(some), "references, given to it as responses"))
    if not is_sure and len(bad) > len(some) / 2:
        text = f"{key}: {len(some) - len(bad)} of {len(some)} references pass as a response, so they may be none"
        return True, f"{text}; it fails on {len(failed)}", findings
    if shown := bad if is_sure else refused:
        findings.append(_refused(recipe, key, is_sure, shown, len(some)))
    if name in READ_AS_ANSWERS:
        findings += _two_references(recipe, grader, name, prompts)
    of = "" if len(prompts) == len(some) else f" of {len(prompts)}"
    fails = f", the verifier fails on {len(failed)}" if failed else ""
    return True, f"{len(some)}{of} references of {key}: {len(refused)} refused{fails}", findings


def best_verdicts(grader: Grader, name: str, prompts: Sequence[Prompt]) -> list[Verdict]:
    """Return the verdicts on the references of prompts of one verifier, each in the form that suits it best."""
    ways = [responses(name, p.reference) for p in prompts]
    best: dict[int, Verdict] = {}
    # One way after another, so that most references are graded once.
    for number in range(max(map(len, ways), default=0)):
        left = [i for i in range(len(prompts)) if number < len(ways[i]) and not (i in best and best[i].is_correct)]
        attempts = [Attempt(ways[i][number], prompts[i].reference, prompts[i].question) for i in left]
        for i, verdict in zip(left, grader.score(attempts), strict=True):
            best[i] = verdict if i not in best or verdict.is_correct else best[i]
    return [best[i] for i in range(len(prompts))]


def responses(name: str, reference: Any) -> tuple[str, ...]:
    r"""Return the ways to give a reference: responses("math", "42") == ("\\boxed{42}", "<answer>42</answer>", "42")."""
    if name in QUERIES:
        query = reference.get("query", reference.get("sql")) if isinstance(reference, Mapping) else reference
        return (f"```sql\n{query}\n```",)
    value = next(_answers(name, reference), None)
    if value is None:  # a verifier may refuse it, but not fail
        return (str(reference),)
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


def _level(share: float) -> Level:
    return "problem" if share >= MANY else "warning" if share >= SOME else "note"


def failing(
    recipe: LocalParts, key: str, failed: Sequence[tuple[Prompt, Verdict]], total: int, responses: str
) -> Finding:
    """Return the finding that a verifier itself fails on some of `total` responses, which `responses` names."""
    share = len(failed) / total
    return Finding(
        min(1.0, 0.7 + share),
        f"The verifier {key} fails on {len(failed)} of {total} {responses}, first with: {failed[0][1].reason:.160}. "
        "A response that it fails on has no reward.",
        tuple(recipe.evidence(p, f"{p.reference!r:.40}: {v.status} {v.reason:.80}") for p, v in failed[:SHOWN]),
        "correct the verifier, which returns no_answer for what it cannot read, or the rows that it fails on; try "
        "it with `verizero verify --check`",
        EXPLAINS,
        cause="infrastructure_zeros",
        level="problem" if share >= MANY_FAILED else "warning",
    )


def _refused(recipe: LocalParts, key: str, is_sure: bool, bad: Sequence[tuple[Prompt, Verdict]], total: int) -> Finding:
    """Return the finding that references are refused or, by a verifier whose references are answers, failed on."""
    share = len(bad) / total
    reasons = Counter(v.reason.partition(":")[0] for _, v in bad).most_common(2)
    return Finding(
        min(1.0, 0.7 + share),
        f"{len(bad)} of {total} references of {key} are refused when they are the answer, or the verifier fails on "
        f"them ({', '.join(f'{reason}: {n}' for reason, n in reasons)}). No response to such a row can be right.",
        tuple(recipe.evidence(p, f"{p.reference!r:.60}: {v.status} {v.reason:.60}") for p, v in bad[:SHOWN]),
        "correct these rows, or the column that mapping.answer of their source names",
        EXPLAINS,
        cause="wrong_references",
        level=_level(share if is_sure else min(share, SOME)),
    )


def _two_references(recipe: LocalParts, grader: Grader, name: str, prompts: Sequence[Prompt]) -> list[Finding]:
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
    shown = [p for pair in odd[:SHOWN] for p in pair]
    return [
        Finding(
            0.9,
            f"{len(odd)} rows of {name} ask what another row asks and have another reference: one of the two is wrong.",
            tuple(recipe.evidence(p, f"{p.question!r:.50} -> {p.reference!r:.40}") for p in shown),
            "keep the right row of each pair",
            cause="wrong_references",
            level=_level(len(odd) / len(prompts)),
        )
    ]
