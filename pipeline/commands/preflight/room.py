"""Prompts and demonstrations that do not fit: into the model's context, or into the recipe's own limits."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.commands.preflight.checked import RECIPE, Checked, evidence_of, not_tried, spread
from verizero.pipeline.commands.preflight.local_parts import LocalParts, Rows
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.diagnosis.finding import Evidence, Finding, Level
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.run.data import prompt_room
from verizero.pipeline.run.demonstrations import rows_of
from verizero.pipeline.types import Prompt

NAME = "room"
NO_ROOM = "no_room"
"""The cause of prompts that do not fit. A run drops or refuses them before its first step: no rule of runs has it."""
MOST_PROMPTS, MOST_DEMONSTRATIONS = 2000, 500
SHOWN = 3
MANY, SOME = 0.5, 0.02
"""Shares of demonstrations that are longer than a response may be: a problem, and a warning."""
DROPPED = 0.2
"""Share of prompts that are dropped, from which on it is more than a note."""


def look(recipe: LocalParts) -> Checked:
    """Compare lengths in tokens with the limits of the recipe and the context of the model."""
    if recipe.tokenizer is None:
        return not_tried(NAME, recipe.no_tokenizer)
    how = recipe.config.rollout.max_response_tokens
    try:
        room = prompt_room(recipe.config, recipe.context)
    except ConfigError as exc:
        remedy = f"--set rollout.max_response_tokens={max(1, (recipe.context or 2) // 2)}"
        shown = Evidence(RECIPE, 1, f"rollout.max_response_tokens: {how}")
        return Checked(NAME, True, "the limits", (Finding(NO_ROOM, "problem", 1.0, f"{exc}.", (shown,), remedy),))
    try:
        renderer = Renderer(recipe.tokenizer, recipe.config.data.template)
        counts, findings = _prompts(recipe, renderer, room)
        num_shown, more = _demonstrations(recipe, renderer)
    except DataError as exc:
        return not_tried(NAME, str(exc))
    if num_shown:
        counts.append(f"{num_shown} demonstrations")
    if not counts:
        return not_tried(NAME, recipe.train.why_none)
    limits = "no limit" if room is None else f"{room} tokens"
    return Checked(NAME, True, f"{', '.join(counts)}; {limits} for a prompt, {how} for a response", (*findings, *more))


def _prompts(recipe: LocalParts, renderer: Renderer, room: int | None) -> tuple[list[str], list[Finding]]:
    """Return the names and numbers of the prompts that were measured, and a finding for those that are too long."""
    counts: list[str] = []
    findings: list[Finding] = []
    for name, rows in (("training", recipe.train), ("evaluation", recipe.evaluation)):
        some = spread(rows.prompts, MOST_PROMPTS)
        if not some:
            continue
        counts.append(f"{len(some)} {name} prompts")
        lengths = [len(renderer.prompt_ids(p)) for p in some]
        long = [(p, n) for p, n in zip(some, lengths, strict=True) if room is not None and n > room]
        if long:
            findings.append(_too_long(recipe, name, rows, long, len(some)))
    return counts, findings


def _too_long(recipe: LocalParts, name: str, rows: Rows, long: Sequence[tuple[Prompt, int]], total: int) -> Finding:
    longest_prompt, room = recipe.config.data.max_prompt_tokens, prompt_room(recipe.config, recipe.context)
    share, longest = len(long) / total, max(n for _, n in long)
    drops = recipe.config.data.on_long_prompt == "drop"
    level: Level = "note" if drops and share < DROPPED else "warning" if drops and share < 1 else "problem"
    left = None if recipe.context is None else recipe.context - longest
    limit = recipe.config.rollout.max_response_tokens
    if longest_prompt is not None and (left is None or left >= limit):
        remedy = f"--set data.max_prompt_tokens={longest}"
    elif not drops and share < 1:
        remedy = "--set data.on_long_prompt=drop"
    elif left is not None and left >= 1:
        remedy = f"--set rollout.max_response_tokens={left}"
    else:
        remedy = "shorten the prompts, or start from a model with a longer context"
    return Finding(
        NO_ROOM,
        level,
        1.0,
        f"{len(long)} of {total} {name} prompts are longer than the {room} tokens that the recipe and the model leave "
        f"for them: {'they are left out' if drops else 'the run refuses them'}.",
        tuple(evidence_of(p, rows.places, f"{n} tokens: {p.question!r:.50}") for p, n in long[:SHOWN]),
        remedy,
    )


def _demonstrations(recipe: LocalParts, renderer: Renderer) -> tuple[int, list[Finding]]:
    """Return the number of demonstrations that were measured, and a finding for those longer than a response."""
    some = spread(recipe.demonstrations.prompts, MOST_DEMONSTRATIONS)
    limit = recipe.config.rollout.max_response_tokens
    long: list[tuple[Prompt, int]] = []
    for prompt in some:
        rows, _ = rows_of(renderer, None, [prompt])
        longest = max((end - start for row in rows for start, end in row.spans), default=0)
        if longest > limit:
            long.append((prompt, longest))
    share = len(long) / len(some) if some else 0.0
    if share < SOME:
        return len(some), []
    longest = max(n for _, n in long)
    longest_prompt = max((len(renderer.prompt_ids(p)) for p in recipe.train.prompts[:MOST_PROMPTS]), default=1)
    remedy = f"--set rollout.max_response_tokens={longest}"
    if recipe.context is not None and longest_prompt + longest > recipe.context:
        remedy = f"shorten them, or use a model whose context has {longest_prompt + longest} tokens"
    return len(some), [
        Finding(
            "length_cap",
            "problem" if share >= MANY else "warning",
            min(1.0, 0.7 + share),
            f"{len(long)} of {len(some)} demonstrations are longer than the {limit} tokens that a response may have: "
            "a policy that learns from them is cut off.",
            tuple(evidence_of(p, recipe.demonstrations.places, f"{n} tokens") for p, n in long[:SHOWN]),
            remedy,
        )
    ]
