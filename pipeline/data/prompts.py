"""Prompts from the sources of a recipe, and hints to them. Skipped rows are counted; errors name file and line."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from verizero.pipeline import registry
from verizero.pipeline.config.choices import ENVIRONMENT, REWARDS, is_path
from verizero.pipeline.config.data import Source
from verizero.pipeline.data.conversations import demonstration_of, question_of, split_conversation, tools_of_row
from verizero.pipeline.data.generators import base as generators
from verizero.pipeline.data.rows_of_source import (
    Missing,
    SourceCounts,
    asked_of,
    good_rows,
    gradable,
    pick,
    pick_optional,
    row_of,
    rows_of,
    taken,
    unknown_verifier,
    verifier_key,
)
from verizero.pipeline.data.source_files import PlacedRow
from verizero.pipeline.errors import DataError, UnknownName
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Prompt

T = TypeVar("T")
log = logging.getLogger(__name__)


def load_prompts(sources: Sequence[Source], seed: int, base_dir: Path | str = ".") -> list[Prompt]:
    """Return the prompts of `read_prompts` alone; skipped rows are logged."""
    return read_prompts(sources, seed, base_dir)[0]


def read_prompts(
    sources: Sequence[Source], seed: int, base_dir: Path | str = ".", places: dict[str, str] | None = None
) -> tuple[list[Prompt], list[SourceCounts]]:
    """Return the prompts of all sources, in order, and counts of each source's rows.

    Relative paths are taken from `base_dir`, the recipe's folder. The same seed gives the same prompts. `places` is
    told the place of each prompt's row by its id, e.g. "train.jsonl line 3"; the ids that it has already are taken.
    Raises: DataError naming the file, line, column and remedy for a source without rows, a row that is not wanted as
    it is (see `on_bad_row`), an id given twice (see `on_duplicate_id`), or a verifier that does not exist.
    """
    prompts: list[Prompt] = []
    counts: list[SourceCounts] = []
    # Over all sources: samplers, ledgers and seeds know a prompt by its id alone.
    places = {} if places is None else places
    for source in sources:
        count = SourceCounts(source.label)
        part = None if source.part is None else partial(_of_part, source)
        selected = taken(_usable_prompts(source, seed, Path(base_dir), count, places), source, seed, part)
        if not selected:
            if not count.num_read:
                raise DataError(f"{count.label} is empty: it has no rows; give a file with at least one row")
            raise DataError(f"no row of {count.label} is left: {count}; correct the rows or the mapping")
        count.num_loaded = len(selected)
        if count.skipped:
            log.warning("%s", count)
        prompts.extend(selected)
        counts.append(count)
    return prompts, counts


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Prompts with demonstrations, counts of each source's rows, and the rows that were left out."""

    prompts: list[Prompt]
    counts: list[SourceCounts]
    left_out: list[tuple[Any, str]]
    """(row, why)."""


def read_demonstrations(
    demonstrations: Sequence[Source],
    train: Sequence[Source],
    seed: int,
    base_dir: Path | str = ".",
    places: dict[str, str] | None = None,
) -> Demonstrations:
    """Return prompts with demonstrations: of `demonstrations`, or if that is empty, of the training sources.

    A generator among the training sources then gives its demonstrations split (each task several times, with noise of
    its own). Rows without a demonstration are left out, counted and named; of training sources that have none at all
    nothing is reported. `places` is as in `read_prompts`.
    Raises: DataError if no row has a demonstration, or as `read_prompts`.
    """
    selected = list(demonstrations) or [_with_demonstrations(s) for s in train]
    prompts, counts = read_prompts(selected, seed, base_dir, places)
    # The prompts of all sources come in one list; num_loaded tells how many of them are each source's.
    remaining = iter(prompts)
    found_prompts: list[Prompt] = []
    left_out: list[tuple[Any, str]] = []
    for count in counts:
        source_prompts = [next(remaining) for _ in range(count.num_loaded)]
        with_demonstration = [p for p in source_prompts if p.demonstration is not None]
        if with_demonstration or demonstrations:
            for p in (p for p in source_prompts if p.demonstration is None):
                count.leave_out("without a demonstration", p.id, row_of(p), "without a demonstration")
            count.num_loaded, count.what = len(with_demonstration), "demonstrations"
            left_out += count.left_out
        found_prompts += with_demonstration
    if not found_prompts:
        labels = ", ".join(s.label for s in selected)
        raise DataError(f"no row of {labels} has a demonstration to imitate; map mapping.demonstration to a column")
    return Demonstrations(found_prompts, counts, left_out)


def load_text(sources: Sequence[Source], seed: int, num_lines: int) -> list[str]:
    """Return lines of text in equal shares of the generators, shuffled. Raises: DataError if there is none."""
    make = [s.generator for s in sources if s.generator is not None]
    if not make:
        raise DataError("unlabelled text comes from generators, and no training source is one; add one to data.train")
    lines: list[str] = []
    for i, generator in enumerate(make):
        # The remainder goes to the first generators, one line each.
        share = num_lines // len(make) + (i < num_lines % len(make))
        lines.extend(generators.text_lines(generator.name, {**generator.params, "num_text": share}, seed))
    stream(seed, "data", "text").shuffle(lines)
    return lines


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompts that fit, the ids of those that do not, and the longest length in tokens."""

    prompts: list[Prompt]
    dropped: tuple[str, ...]
    longest: int


def check_lengths(
    prompts: Iterable[Prompt],
    render: Callable[[Prompt], Sequence[int]],
    limit: int,
    on_long: Literal["error", "drop"] = "error",
) -> Lengths:
    """Return the prompts with at most `limit` tokens. `render` makes tokens, e.g. `Renderer.prompt_ids`.

    Raises: DataError for a longer one where `on_long` is "error", and where none is left.
    """
    fitting: list[Prompt] = []
    dropped: list[str] = []
    longest = 0
    for prompt in prompts:
        length = len(render(prompt))
        longest = max(longest, length)
        if length <= limit:
            fitting.append(prompt)
        elif on_long == "drop":
            dropped.append(prompt.id)
        else:
            raise DataError(
                f"prompt {prompt.id!r} has {length} tokens and the limit is {limit}; raise data.max_prompt_tokens (or "
                "the model's context), or set data.on_long_prompt: drop"
            )
    if dropped:
        log.warning("dropped %d prompts longer than %d tokens (longest %d)", len(dropped), limit, longest)
        if not fitting:
            raise DataError(f"all {len(dropped)} prompts are longer than {limit} tokens; raise data.max_prompt_tokens")
    return Lengths(fitting, tuple(dropped), longest)


def _with_demonstrations(source: Source) -> Source:
    if source.generator is None or source.generator.split != "train":
        return source
    return source.model_copy(update={"generator": source.generator.model_copy(update={"split": "demonstrations"})})


def _rows(source: Source, seed: int, base_dir: Path) -> Iterator[PlacedRow]:
    if source.generator is not None:
        name, params = source.generator.name, source.generator.params
        split = _split(id(registry.find("generators", name)), name, json.dumps(params, sort_keys=True), seed)
        rows = getattr(split, source.generator.split)
        label = source.label
        return ((f"{label} row {i}", i, row) for i, row in enumerate(rows, 1))
    return rows_of(source, base_dir)


@lru_cache(maxsize=8)
def _split(generator: int, name: str, params: str, seed: int) -> generators.Split:
    """Return all rows of a generator; they are made once for all sources that use it.

    `params` is JSON; `generator` is the id of the object that has the name now.
    """
    return generators.generate(name, json.loads(params), seed)


def forget_generated() -> None:
    """Free the memory of the generated rows that are kept for another source of the same generator."""
    _split.cache_clear()


def _usable_prompts(
    source: Source, seed: int, base_dir: Path, counts: SourceCounts, places: dict[str, str]
) -> Iterator[Prompt]:
    """Yield the usable prompts of a source."""

    def make(row: Mapping[str, Any], number: int) -> Prompt | str:
        # A published set may have each prompt a hundred times: only the id of the others is read.
        if source.on_duplicate_id == "skip" and (row_id := _id_of(row, source, number)) in places:
            return row_id
        return prompt_of(row, source, number)

    rows = _rows(source, seed, base_dir)
    for place, _, prompt in good_rows(rows, counts, source.on_bad_row, make):
        if isinstance(prompt, str):
            counts.skip("duplicate ids", f"{place}: {prompt!r}")
            continue
        if source.graded and source.verifier is None and (unknown := unknown_verifier(prompt.verifier)):
            raise DataError(f"{place}: {unknown}")
        if prompt.id in places:
            raise DataError(
                f"{place}: id {prompt.id!r} is that of {places[prompt.id]} too; make ids distinct, set mapping.id: "
                "null to number the rows, or set on_duplicate_id: skip"
            )
        places[prompt.id] = place
        yield prompt


def prompt_of(row: Mapping[str, Any], source: Source, number: int) -> Prompt:
    """Return the prompt of a row. Raises: DataError naming the column."""
    columns = source.mapping
    demonstration: Any
    if columns.conversation is not None:
        system, question, demonstration = split_conversation(pick(row, columns.conversation))
    else:
        system, question = question_of(pick(row, columns.question))
        demonstration = pick_optional(row, columns.demonstration)
    tools = pick_optional(row, columns.tools)
    if tools is not None and isinstance(demonstration, str):  # an episode, whose first prompt shows them
        demonstration = [{"role": "assistant", "content": demonstration}]
    row_verifier = verifier_key(pick_optional(row, columns.verifier))
    verifier = source.verifier.key if source.verifier else row_verifier or columns.default_verifier
    if not source.graded:
        verifier = ""
    elif verifier is None:
        raise DataError(
            "no verifier is named; set the source's verifier: {name: …}, map a verifier column, or, for rows that are "
            "only imitated (sft), set the source's graded: false"
        )
    row_system = pick_optional(row, columns.system)
    question, message, reference = asked_of(row, source, question, _answer(row, source), str(verifier))
    name = str(verifier).partition("{")[0]
    return Prompt(
        id=_id_of(row, source, number),
        question=question,
        message=message,
        verifier=str(verifier),
        reference=gradable(str(verifier), reference),
        domain=str(source.domain or pick_optional(row, columns.domain) or "default"),
        demonstration=None if demonstration is None else demonstration_of(demonstration),
        system=str(row_system) if row_system is not None else system,
        environment=_environment(row, source, str(verifier)),
        row=dict(row) if name == REWARDS or is_path(name) else None,  # functions in files may ask for columns
        tools=None if tools is None else tools_of_row(tools),
    )


def _id_of(row: Mapping[str, Any], source: Source, number: int) -> str:
    """Return the id of a row: its column, else the source's name and the row's number."""
    row_id = pick_optional(row, source.mapping.id)
    return f"{source.label}/{number}" if row_id is None else str(row_id)


HELD_OUT = 10
"""One of so many questions is for evaluation, where one file is for both."""


def part_of(question: str) -> Literal["train", "evaluation"]:
    """Return the part that a question belongs to, in every run and whatever other rows there are."""
    return "evaluation" if _digest(question) % HELD_OUT == 0 else "train"


def _digest(question: str) -> int:
    return int.from_bytes(hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def _of_part(source: Source, prompts: list[Prompt]) -> list[Prompt]:
    """Return the prompts of the source's part. Where few rows have none for evaluation, that of the lowest hash is.

    Raises: DataError if there is one question only, and it is held out.
    """
    questions = {p.question for p in prompts}
    held_out = {q for q in questions if part_of(q) == "evaluation"} or set(sorted(questions, key=_digest)[:1])
    selected = [p for p in prompts if (p.question in held_out) == (source.part == "evaluation")]
    if prompts and not selected:
        raise DataError(
            f"{source.label} has one question only ({prompts[0].question!r:.60}, in {len(prompts)} rows), which is "
            "held out for evaluation; give more, or others to evaluate on (evaluation= in Python, data.evaluation in a "
            "recipe)"
        )
    return selected


def _environment(row: Mapping[str, Any], source: Source, verifier: str) -> str | None:
    """Return the key of the row's environment. Raises: DataError if the verifier needs one, and none is named."""
    row_environment = pick_optional(row, source.mapping.environment)
    if source.environment is not None:
        return source.environment.key
    if row_environment is None:
        if verifier == ENVIRONMENT:
            raise DataError(
                f"the verifier is {ENVIRONMENT!r} and no environment is named; set the source's "
                "environment: {name: …}, map an environment column, or name another verifier"
            )
        return None
    try:
        if not is_path(name := str(row_environment).partition("{")[0]):
            registry.find("environments", name)
    except UnknownName as exc:
        raise DataError(str(exc)) from exc
    return str(row_environment)


def _answer(row: Mapping[str, Any], source: Source) -> Any:
    """Return the reference; None where the source has none."""
    if not source.graded or source.mapping.answer is None:
        return None
    try:
        answer = pick(row, source.mapping.answer)
        return answer.strip() if isinstance(answer, str) else answer
    except Missing as exc:
        raise DataError(f"the row has no answer: {exc} (mapping.answer)") from exc


def answer_of(prompt: Prompt) -> str | None:
    """Return the reference as text; None if it is neither text nor number, e.g. tests of a program."""
    reference = prompt.reference
    if isinstance(reference, Mapping):
        reference = reference.get("answer")
    return str(reference) if isinstance(reference, str | int | float) else None


def hinted_question(prompt: Prompt, hint: str) -> str:
    """Return the hint with {question} and {answer} replaced by the prompt's."""
    # The question last: it may have braces of its own.
    return hint.replace("{answer}", answer_of(prompt) or "").replace("{question}", prompt.asked)


def with_feedback(prompt: Prompt, template: str, right: str, message: str) -> str:
    """Return the template with {question}, {right} and {message} replaced by the prompt's question and these parts."""
    texts = {"question": prompt.asked, "right": right, "message": message}
    # In one pass: each of the three may have braces of its own.
    return re.sub(r"\{(question|right|message)\}", lambda match: texts[match[1]], template)


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the items, evenly over the list: rows of a file are often sorted."""
    return list(items) if len(items) <= most else [items[i * len(items) // most] for i in range(most)]
