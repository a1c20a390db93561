"""Pairs of a better and a worse response, and labels of steps: from files, or made of graded responses."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from verizero.pipeline.config.data import Column
from verizero.pipeline.config.pairs import PairingConfig, PairSource
from verizero.pipeline.data.conversations import as_message
from verizero.pipeline.data.policy_text import CLOSE, OPEN
from verizero.pipeline.data.rows_of_source import (
    Missing,
    SourceCounts,
    good_rows,
    pick,
    pick_optional,
    rows_of,
    taken,
    verifier_key,
    with_context,
)
from verizero.pipeline.errors import DataError
from verizero.pipeline.rows import require_single
from verizero.pipeline.types import Group, Prompt, ScoredRollout, Verdict
from verizero.verifiers._steps import split_steps, step_ends

log = logging.getLogger(__name__)

OnWrong = Literal["keep", "drop"]
Grade = Callable[[Sequence[tuple[Prompt, str]]], list[Verdict]]
"""Returns a verdict for each (prompt, response)."""
TRANSCRIPT = re.compile(r"\n\n(Human|Assistant):")
SPEAKERS = {"Human": "user", "Assistant": "assistant"}
TRUE, FALSE = (True, 1, "true", "True", "1"), (False, 0, "false", "False", "0")

Steps = tuple[tuple[str, float], ...]
"""(text, 1 for right or 0 for wrong) of the steps that have a label, in order."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with a better and a worse response; a row with a label has only one of them.

    A row with labelled steps has its response as `chosen`.
    """

    id: str
    prompt: Prompt
    chosen: str | None
    rejected: str | None
    labelled_steps: Steps | None = None
    """None for a row without steps."""

    @property
    def sides(self) -> tuple[str | None, str | None]:
        """Both responses, the chosen one first."""
        return self.chosen, self.rejected

    def to_row(self) -> dict[str, Any]:
        """Return the pair, or the response with its steps, as a readable row of a file."""
        head = {"id": self.id, "prompt": self.prompt.question}
        if self.labelled_steps is not None:
            return {**head, "response": self.chosen, "steps": self.labelled_steps}
        return {**head, "chosen": self.chosen, "rejected": self.rejected}


@dataclass(slots=True)
class PairsRead:
    """The pairs of all sources, counts of each source's rows, and the rows that were left out."""

    pairs: list[Pair] = field(default_factory=list)
    counts: list[SourceCounts] = field(default_factory=list)
    left_out: list[tuple[Any, str]] = field(default_factory=list)
    """(row, why)."""


def read_pairs(sources: Sequence[PairSource], seed: int, base_dir: Path | str = ".") -> PairsRead:
    """Return the pairs of all sources. Relative paths start in `base_dir`, the recipe's folder.

    Rows with an empty side or with equal ones are left out, counted and named.
    Raises: DataError naming the file, line, column and remedy for a row that is not of this form (see `on_bad_row`), or
    a source of which nothing is left.
    """
    result = PairsRead()
    for source in sources:
        counts = SourceCounts(source.label, what="pairs")
        chosen = taken(_usable_pairs(source, Path(base_dir), counts), source, seed)
        result.left_out += counts.left_out
        if not chosen:
            raise DataError(f"no row of {source.label} is left: {counts}; give pairs whose sides differ")
        counts.num_loaded = len(chosen)
        if counts.skipped:
            log.warning("%s", counts)
        result.pairs += chosen
        result.counts.append(counts)
    return result


def check_verdicts(read: PairsRead, grade: Grade, on_wrong: OnWrong) -> None:
    """Grade the chosen sides of pairs that name a verifier; count wrong ones, and keep or drop them.

    If the grader fails, the pair stays as it is.
    """
    to_grade = [i for i, p in enumerate(read.pairs) if p.prompt.verifier and p.chosen is not None]
    verdicts = grade([(read.pairs[i].prompt, read.pairs[i].chosen or "") for i in to_grade])
    # A failed grader has no opinion, so it never makes a pair wrong.
    wrong = {i for i, v in zip(to_grade, verdicts, strict=True) if not v.is_correct and not v.is_left_out}
    failed = sum(v.is_left_out for v in verdicts)
    counts = SourceCounts("chosen sides graded", num_read=len(to_grade), num_loaded=len(to_grade), what="kept")
    for i in sorted(wrong):
        counts.skip(f"wrong by the verifier, {'kept' if on_wrong == 'keep' else 'dropped'}", read.pairs[i].id)
    if failed:
        counts.skip("grader failed, kept", f"{failed} in all")
    if on_wrong == "drop":
        counts.num_loaded -= len(wrong)
        read.left_out += [(read.pairs[i].to_row(), "the verifier calls the chosen side wrong") for i in sorted(wrong)]
        read.pairs[:] = [pair for i, pair in enumerate(read.pairs) if i not in wrong]
    if not read.pairs:
        raise DataError(
            "the verifier calls every chosen side wrong; check mapping.answer, or set on_wrong_chosen: keep"
        )
    if counts.skipped:
        log.warning("%s", counts)
        read.counts.append(counts)


def pairs_of(group: Group, rules: PairingConfig, draw: Random) -> list[tuple[ScoredRollout, ScoredRollout]]:
    """Return up to `per_prompt` (better, worse) pairs of a group, drawn at random.

    No response is in two pairs unless `reuse`.

    Better are those of the group's highest reward, worse those at least `min_gap` below it; of responses of equal
    tokens only the first counts, and one whose grader failed is neither. None where the group has no such gap.

    Raises: DataError for an episode of several turns.
    """
    require_single((m.rollout for m in group.members), "a pair of responses (stages of preference)")
    members: dict[tuple[int, ...], ScoredRollout] = {}
    for m in group.members:
        if m.reward is not None and m.rollout.response_ids:
            # Equal tokens on both sides would cancel in the loss.
            members.setdefault(tuple(m.rollout.response_ids), m)
    if not members:
        return []
    best = max(_reward(m) for m in members.values())
    # Exact: equal verdicts give bit-equal rewards, and near ones are ruled out by min_gap.
    better = [m for m in members.values() if _reward(m) == best]
    worse = [m for m in members.values() if _reward(m) <= best - rules.min_gap]
    better, worse = draw.sample(better, len(better)), draw.sample(worse, len(worse))
    pairs = [(winner, loser) for winner in better for loser in worse]
    if rules.reuse:
        # Else the first of the better would be in all that are kept.
        return draw.sample(pairs, len(pairs))[: rules.per_prompt]
    chosen: list[tuple[ScoredRollout, ScoredRollout]] = []
    for winner, loser in pairs:
        if len(chosen) == rules.per_prompt:
            break
        if not any(m is winner or m is loser for pair in chosen for m in pair):
            chosen.append((winner, loser))
    return chosen


def _reward(member: ScoredRollout) -> float:
    assert member.reward is not None
    return member.reward


def _usable_pairs(source: PairSource, base_dir: Path, counts: SourceCounts) -> Iterator[Pair]:
    """Yield the good pairs of a source."""
    usable = good_rows(rows_of(source, base_dir), counts, source.on_bad_row, partial(_pair, source=source))
    for place, row, pair in usable:
        problem = _reason_to_drop(pair)
        if problem is not None:
            counts.leave_out(problem, place, row, problem)
        else:
            yield pair


def _reason_to_drop(pair: Pair) -> str | None:
    """Return why the pair is dropped, as a reason to count; None if it is not."""
    if any(side is not None and not side.strip() for side in pair.sides):
        return "with an empty side"
    return "with equal sides" if pair.chosen == pair.rejected else None


def _pair(row: Mapping[str, Any], number: int, source: PairSource) -> Pair:
    """Return the pair of a row, also with empty sides. Raises: DataError naming the column."""
    columns = source.mapping
    chosen = rejected = None
    before: Turns = ()
    has_steps = False
    if _has(row, columns.chosen.column) or _has(row, columns.rejected.column):
        before, chosen = _side(row, columns.chosen)
        other, rejected = _side(row, columns.rejected)
        # Two conversations would make the loss compare answers to different questions.
        if before != other:
            raise DataError("the conversations before the two answers differ; a pair has one prompt")
    elif _has(row, columns.completion.column):
        before, text = _side(row, columns.completion)
        is_good = _label(pick(row, columns.label))
        chosen, rejected = (text, None) if is_good else (None, text)
    elif _has(row, columns.steps.column):
        has_steps = True
    else:
        present = ", ".join(map(repr, row)) or "none"
        raise DataError(
            f"the row has neither {columns.chosen.column!r} and {columns.rejected.column!r} nor "
            f"{columns.completion.column!r} with {columns.label.column!r} nor {columns.steps.column!r} with "
            f"{columns.step_labels.column!r}; columns there: {present} (mapping)"
        )
    system, question = _prompt(row, source, before)
    question = with_context(question, row, columns.context)
    steps: Steps | None = None
    if has_steps:
        chosen, steps = read_steps(pick(row, columns.steps), pick_optional(row, columns.step_labels), source)
    row_id, domain = pick_optional(row, columns.id), source.domain or pick_optional(row, columns.domain)
    verifier = source.verifier.key if source.verifier else verifier_key(pick_optional(row, columns.verifier))
    answer = pick_optional(row, columns.answer)
    name = f"{source.label}/{number}" if row_id is None else str(row_id)
    prompt = Prompt(
        id=name,
        question=question,
        # A response with steps is graded by their labels.
        verifier="" if verifier is None or answer is None or steps else str(verifier),
        reference=answer,
        domain=str(domain or "default"),
        system=system,
    )
    return Pair(name, prompt, chosen, rejected, steps)


def _has(row: Mapping[str, Any], path: str) -> bool:
    return path in row or path.partition(".")[0] in row


Turns = tuple[tuple[str, str], ...]
"""(role, content) of the messages of a chat."""


def _side(row: Mapping[str, Any], column: Column) -> tuple[Turns, str]:
    """Return the messages before a side's answer, and the answer. A missing side is an error, an empty one is not."""
    name = column.column
    if not _has(row, name):
        raise Missing(f"there is no column {name!r}; columns there: {', '.join(map(repr, row))}")
    value = pick_optional(row, column) if name in row else pick(row, column)
    if value is None:
        return (), ""
    turns = _transcript(value) if isinstance(value, str) else _turns(value, name)
    if isinstance(value, str) and len(turns) < 2:
        return (), value
    if turns[-1][0] != "assistant":
        raise DataError(f"column {name!r}: a chat must end with the assistant's answer, got role {turns[-1][0]!r}")
    return turns[:-1], turns[-1][1]


def _transcript(text: str) -> Turns:
    """Return the messages of a text of HH-RLHF, "\\n\\nHuman: ...\\n\\nAssistant: ..."; nothing for another text."""
    before, *parts = TRANSCRIPT.split(text)
    if before.strip():
        return ()
    return tuple((SPEAKERS[who], words.strip()) for who, words in zip(parts[::2], parts[1::2], strict=True))


def _turns(value: Any, column: str) -> Turns:
    """Return the messages of a chat, in any form of `conversations.py`; thinking is written before the answer."""
    messages: list[Any] = [as_message(m) for m in value] if isinstance(value, list) else [None]
    if not all(isinstance(m, Mapping) and isinstance(m.get("content"), str) for m in messages):
        raise DataError(f"column {column!r} must be text or a list of {{role, content}}, got {value!r:.80}")
    if any(m.get("calls") for m in messages):
        raise DataError(
            f"column {column!r}: a message calls a tool, and the sides of pairs are texts; leave the row out"
        )
    thoughts = (f"{OPEN}{m['thinking']}{CLOSE}" if m.get("thinking") else "" for m in messages)
    return tuple((str(m["role"]), thought + m["content"]) for m, thought in zip(messages, thoughts, strict=True))


def _prompt(row: Mapping[str, Any], source: PairSource, before: Turns) -> tuple[str | None, str]:
    """System message, if any, and question: of the prompt's column, else of the messages before the answers."""
    column = source.mapping.prompt
    system = pick_optional(row, source.mapping.system)
    if column.column == "prompt" and "prompt" not in row and "question" in row:
        column = column.model_copy(update={"column": "question"})
    if not _has(row, column.column) and before:
        turns = before
    else:
        value = pick(row, column)
        if isinstance(value, str):
            return None if system is None else str(system), value
        turns = _turns(value, column.column)
        if before and before != turns:
            raise DataError("the prompt and the conversation before the answers differ; a pair has one prompt")
    roles = [loser for loser, _ in turns]
    if roles not in (["user"], ["system", "user"]):
        raise DataError(f"the prompt must be one user message, after a system message if any; got roles {roles}")
    row_value = turns[0][1] if len(turns) == 2 else system
    return None if row_value is None else str(row_value), turns[-1][1]


def _label(value: Any) -> bool:
    if value in TRUE:
        return True
    if value in FALSE:
        return False
    raise DataError(f"the label must be true or false, got {value!r:.80}")


def read_steps(steps: Any, labels: Any, source: PairSource) -> tuple[str, Steps]:
    """Return the response that a row's steps make, and its labelled steps. Raises: DataError naming the step."""
    names = f"column {source.mapping.steps.column!r}", f"column {source.mapping.step_labels.column!r}"
    if not isinstance(steps, list) or not steps:
        raise DataError(f"{names[0]} must be a list of steps, got {steps!r:.80}")
    for number, text in enumerate(steps, 1):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{names[0]}, step {number}: a step is a text, got {text!r:.80}")
    if not isinstance(labels, list):
        raise DataError(f"{names[1]} must be a list with a label for each step, got {labels!r:.80}")
    if len(labels) != len(steps):
        raise DataError(f"{names[1]} has {len(labels)} labels for the {len(steps)} steps of {names[0]}")
    rewards = [_label_of_step(value, number, names[1]) for number, value in enumerate(labels, 1)]
    labelled = [(text.strip(), r) for text, r in zip(steps, rewards, strict=True) if r is not None]
    if not labelled:
        raise DataError(f"{names[0]}: none of {len(steps)} steps has a label; leave the row out")
    return source.step_separator.join(steps), tuple(labelled)


def check_pieces(name: str, response: str, steps: Sequence[tuple[str, float]], step_end: str) -> None:
    """Raise DataError for two labelled steps in one piece of the response, which the model would score once."""
    stops, stop = [], 0
    for piece in split_steps(response, step_end):
        stop += len(piece)
        stops.append(stop)
    taken: dict[int, int] = {}
    for number, (end, _) in enumerate(step_ends(response, steps), 1):
        piece_number = next(i for i, stop in enumerate(stops) if end <= stop)
        if piece_number in taken:
            raise DataError(
                f"row {name!r}: labelled steps {taken[piece_number]} and {number} are one piece, as "
                f"reward_model.step_end={step_end!r} has no match between them; set step_end to what ends a step, or "
                "step_separator of the source"
            )
        taken[piece_number] = number


def _label_of_step(value: Any, number: int, name: str) -> float | None:
    """Return 1 for a right step, 0 for a wrong one, None for one without a label."""
    if value is None:
        return None
    if value in ("+", "-"):
        return float(value == "+")
    if not isinstance(value, str) and value in (1, 0):  # true and false too
        return float(value)
    raise DataError(f"{name}, step {number}: the label must be true or false, 1 or 0, + or -, got {value!r:.80}")
