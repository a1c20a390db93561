"""Pairs of a better and a worse response: read them from files, or make them from graded responses."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from verizero.pipeline.config.columns import Column
from verizero.pipeline.config.pairs import PairingConfig, PairSource
from verizero.pipeline.data.columns import Missing, pick, pick_optional
from verizero.pipeline.data.files import PlacedRow, read_file, read_hub
from verizero.pipeline.data.graded_by import verifier_key
from verizero.pipeline.data.source_rows import SourceCounts, good_rows
from verizero.pipeline.data.step_labels import read_steps
from verizero.pipeline.errors import DataError
from verizero.pipeline.rows import require_single
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Group, Prompt, ScoredRollout, Verdict

log = logging.getLogger(__name__)

OnWrong = Literal["keep", "drop", "swap"]
Grade = Callable[[Sequence[tuple[Prompt, str]]], list[Verdict]]
"""Returns a verdict for each (prompt, response)."""
TRANSCRIPT = re.compile(r"\n\n(Human|Assistant):")
SPEAKERS = {"Human": "user", "Assistant": "assistant"}
TRUE, FALSE = (True, 1, "true", "True", "1"), (False, 0, "false", "False", "0")


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with a better and a worse response; a row with a label has only one of them.

    A row with labelled steps has its response as `chosen`.
    """

    id: str
    prompt: Prompt
    chosen: str | None
    rejected: str | None
    labelled_steps: tuple[tuple[str, float], ...] | None = None
    """(text, 1 for right or 0 for wrong) of the steps that have a label, in order; None for a row without steps."""

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


def read_pairs(
    sources: Sequence[PairSource], seed: int, base_dir: Path | str = ".", places: dict[str, str] | None = None
) -> PairsRead:
    """Return the pairs of all sources. Relative paths start in `base_dir`, the recipe's folder.

    Rows with an empty side or with equal ones are left out, counted and named. `places` is told the place of each
    pair's row by its id, e.g. "pairs.jsonl line 3".
    Raises: DataError naming the file, line, column and remedy for a row that is not of this form (see `on_bad_row`), or
    a source of which nothing is left.
    """
    result = PairsRead()
    for source in sources:
        counts = SourceCounts(source.label, what="pairs")
        chosen = []
        for place, pair in _usable_pairs(source, Path(base_dir), counts):
            chosen.append(pair)
            if places is not None:
                places[pair.id] = place
        result.left_out += counts.left_out
        if source.shuffle:
            stream(seed, "data", "shuffle", source.label).shuffle(chosen)
            # Cut after the shuffle: the limit is then a random sample, not the head of the file.
            chosen = chosen[: source.limit]
        if not chosen:
            raise DataError(f"no row of {source.label} is left: {counts}; give pairs whose sides differ")
        counts.num_loaded = len(chosen)
        if counts.skipped:
            log.warning("%s", counts)
        result.pairs += chosen
        result.counts.append(counts)
    return result


def check_verdicts(read: PairsRead, grade: Grade, on_wrong: OnWrong) -> None:
    """Grade the chosen sides of pairs that name a verifier; count wrong ones, and keep, drop or swap them.

    swap: the sides are exchanged if the rejected one is right; else the pair is dropped. If the grader fails, the pair
    stays as it is.
    """
    to_grade = [i for i, p in enumerate(read.pairs) if p.prompt.verifier and p.chosen is not None]
    verdicts = grade([(read.pairs[i].prompt, read.pairs[i].chosen or "") for i in to_grade])
    # A failed grader has no opinion, so it never makes a pair wrong.
    wrong = {i for i, v in zip(to_grade, verdicts, strict=True) if not v.is_correct and not v.is_left_out}
    failed = sum(v.is_left_out for v in verdicts)
    counts = SourceCounts("chosen sides graded", num_read=len(to_grade), num_loaded=len(to_grade), what="kept")
    to_turn = [i for i in sorted(wrong) if read.pairs[i].rejected is not None] if on_wrong == "swap" else []
    # Only a rejected side that is right can take the place of the chosen one.
    rejected_verdicts = grade([(read.pairs[i].prompt, read.pairs[i].rejected or "") for i in to_turn])
    right = {i for i, v in zip(to_turn, rejected_verdicts, strict=True) if v.is_correct}
    # A row with a label has one side: turning it round makes it a bad example of the same text.
    if on_wrong == "swap":  # a label is turned round without asking
        right |= {i for i in wrong if read.pairs[i].rejected is None}
    remaining: list[Pair] = []
    dropped = wrong - right if on_wrong != "keep" else set()
    reasons = dict.fromkeys(wrong, "wrong by the verifier")
    for i, pair in enumerate(read.pairs):
        if i in reasons:
            outcome = "kept" if on_wrong == "keep" else "swapped" if i in right else "dropped"
            counts.skip(f"{reasons[i]}, {outcome}", pair.id)
        # Under "keep" nothing is gone, and under "drop" nothing is right, so one loop serves all three.
        if i in dropped:
            read.left_out.append((pair.to_row(), "the verifier calls the chosen side wrong"))
            continue
        remaining.append(replace(pair, chosen=pair.rejected, rejected=pair.chosen) if i in right else pair)
    if failed:
        counts.skip("grader failed, kept", f"{failed} in all")
    if not remaining:
        raise DataError(
            "the verifier calls every chosen side wrong; check mapping.answer, or set on_wrong_chosen: keep"
        )
    counts.num_loaded = len(to_grade) - len(dropped)
    read.pairs[:] = remaining
    if counts.skipped:
        log.warning("%s", counts)
        read.counts.append(counts)


def pairs_of(group: Group, rules: PairingConfig, draw: Random) -> list[tuple[ScoredRollout, ScoredRollout]]:
    """Return up to `per_prompt` (better, worse) pairs of a group; no response is in two pairs unless `reuse`.

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
    chosen: list[tuple[ScoredRollout, ScoredRollout]] = []
    for winner, loser in _ordered(better, worse, rules, draw):
        if len(chosen) == rules.per_prompt:
            break
        if rules.reuse or not any(m is winner or m is loser for pair in chosen for m in pair):
            chosen.append((winner, loser))
    return chosen


def _ordered(
    better: list[ScoredRollout], worse: list[ScoredRollout], rules: PairingConfig, draw: Random
) -> list[tuple[ScoredRollout, ScoredRollout]]:
    """Return all allowed pairs, the preferred ones first."""
    if rules.choose == "random":
        better, worse = draw.sample(better, len(better)), draw.sample(worse, len(worse))
    pairs = [(winner, loser) for winner in better for loser in worse]
    if rules.choose == "random" and rules.reuse:
        pairs = draw.sample(pairs, len(pairs))  # else the first of the better would be in all that are kept
    if rules.max_length_ratio is not None:
        pairs = [p for p in pairs if max(_lengths(p)) <= rules.max_length_ratio * min(_lengths(p))]
    if rules.choose == "hardest":
        # The policy finds the worse response about as likely as the better one, or likelier. Sorts are stable, so equal
        # runs keep equal pairs.
        pairs.sort(key=lambda p: _confidence(p[0]) - _confidence(p[1]))
    elif rules.choose == "length_matched":
        pairs.sort(key=lambda p: abs(_lengths(p)[0] - _lengths(p)[1]))
    return pairs


def _lengths(pair: tuple[ScoredRollout, ScoredRollout]) -> tuple[int, int]:
    return len(pair[0].rollout.response_ids), len(pair[1].rollout.response_ids)


def _confidence(member: ScoredRollout) -> float:
    """Return the mean log-prob of the response's tokens when it was sampled."""
    return sum(member.rollout.logprobs) / len(member.rollout.logprobs)


def _reward(member: ScoredRollout) -> float:
    assert member.reward is not None
    return member.reward


def _rows(source: PairSource, base_dir: Path) -> Iterator[PlacedRow]:
    if source.file is not None:
        return read_file(base_dir / source.file, source.file)
    assert source.hub is not None
    return read_hub(source.hub, base_dir)


def _usable_pairs(source: PairSource, base_dir: Path, counts: SourceCounts) -> Iterator[tuple[str, Pair]]:
    """Good pairs of one source with the places of their rows, up to its limit (of shuffled rows the caller's)."""
    limit = None if source.shuffle else source.limit
    num_taken = 0
    usable = good_rows(_rows(source, base_dir), counts, source.on_bad_row, partial(_pair, source=source))
    for place, row, pair in usable:
        problem = _reason_to_drop(pair)
        if problem is not None:
            counts.leave_out(problem, place, row, problem)
            continue
        yield place, pair
        num_taken += 1
        if num_taken == limit:
            return


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
        before, chosen = _side(row, columns.chosen.column)
        other, rejected = _side(row, columns.rejected.column)
        # Two conversations would make the loss compare answers to different questions.
        if before != other:
            raise DataError("the conversations before the two answers differ; a pair has one prompt")
    elif _has(row, columns.completion.column):
        before, text = _side(row, columns.completion.column)
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
    steps: tuple[tuple[str, float], ...] | None = None
    if has_steps:
        chosen, steps = read_steps(pick(row, columns.steps), pick_optional(row, columns.step_labels), question, source)
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


def _side(row: Mapping[str, Any], column: str) -> tuple[Turns, str]:
    """Return the messages before a side's answer, and the answer. A missing side is an error, an empty one is not."""
    if not _has(row, column):
        raise Missing(f"there is no column {column!r}; columns there: {', '.join(map(repr, row))}")
    value: Any = row.get(column) if column in row else pick(row, Column(column=column))
    if value is None or value == []:
        return (), ""
    turns = _transcript(value) if isinstance(value, str) else _turns(value, column)
    if isinstance(value, str) and len(turns) < 2:
        return (), value
    if turns[-1][0] != "assistant":
        raise DataError(f"column {column!r}: a chat must end with the assistant's answer, got role {turns[-1][0]!r}")
    return turns[:-1], turns[-1][1]


def _transcript(text: str) -> Turns:
    """Return the messages of a text of HH-RLHF, "\\n\\nHuman: ...\\n\\nAssistant: ..."; nothing for another text."""
    before, *parts = TRANSCRIPT.split(text)
    if before.strip():
        return ()
    return tuple((SPEAKERS[who], words.strip()) for who, words in zip(parts[::2], parts[1::2], strict=True))


def _turns(value: Any, column: str) -> Turns:
    if not isinstance(value, list) or not all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in value):
        raise DataError(f"column {column!r} must be text or a list of {{role, content}}, got {value!r:.80}")
    if not all(isinstance(m["content"], str) for m in value):
        raise DataError(f"column {column!r}: message content must be text")
    return tuple((str(m["role"]), str(m["content"])) for m in value)


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
