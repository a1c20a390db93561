"""Choose the responses for a page: whole groups, spread evenly over the run, with limited size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verizero.pipeline.report.row_types import MessageRow, RolloutRow, to_json
from verizero.pipeline.report.run_files import read_rollouts

MAX_SAMPLES = 2000
"""Responses on one page."""
MAX_CHARS = 6_000_000
"""Characters of all responses on one page; each gets an equal part, between MIN_TEXT and MAX_TEXT."""
MIN_TEXT, MAX_TEXT = 600, 6000
Key = tuple[str, int, str, int]
"""Stage, step, prompt id and roll-backs before it: one group."""


@dataclass(frozen=True, slots=True)
class SampleChoice:
    """Groups of responses to show, in the order written, and how many there are in all."""

    groups: list[dict[str, Any]]
    num_shown: int
    num_samples: int
    num_groups: int


def choose_samples(folder: Path, max_samples: int = MAX_SAMPLES) -> SampleChoice:
    """Groups of the rollouts.jsonl in `folder` with about `max_samples` responses together, and never more.

    Each stage (RL, and every evaluation by its label) gets an equal part of the room, what one does not need goes to
    the others; within a stage groups are evenly spaced from its first to its last. Responses of one prompt and step
    stay together, so that they can be compared. The file is read twice and never held.
    """
    # First pass: sizes only, so that groups can be chosen before any text is held.
    sizes: dict[Key, int] = {}
    for row in read_rollouts(folder):
        key = _key(row)
        sizes[key] = sizes.get(key, 0) + 1
    num_samples = sum(sizes.values())
    if not sizes:
        return SampleChoice([], 0, 0, 0)
    stages: dict[str, list[Key]] = {}
    for key in sizes:
        stages.setdefault(key[0], []).append(key)
    # Room is counted in groups of the largest size, hence the number of responses never exceeds `max_samples`.
    largest = min(max(sizes.values()), max_samples)
    room = divide({stage: len(keys) for stage, keys in stages.items()}, max_samples // largest)
    wanted = {keys[i] for stage, keys in stages.items() for i in spaced(len(keys), room[stage])}
    text = max(MIN_TEXT, min(MAX_TEXT, MAX_CHARS // max(1, min(max_samples, num_samples))))
    groups = _read_samples(folder, wanted, largest, text)
    return SampleChoice(groups, sum(len(g["samples"]) for g in groups), num_samples, len(sizes))


def divide(needs: dict[str, int], total: int) -> dict[str, int]:
    """`total` shared equally among names, none getting more than it needs; the rest goes to those that need more."""
    shares = dict.fromkeys(needs, 0)
    left = total
    while left > 0 and (unsatisfied := [n for n in needs if shares[n] < needs[n]]):
        # With less left than names, one each goes to the first of them, which ends the loop.
        part = max(1, left // len(unsatisfied))
        for name in unsatisfied[:left]:
            more = min(part, needs[name] - shares[name])
            shares[name] += more
            left -= more
    return shares


def spaced(count: int, max_samples: int) -> list[int]:
    """At most `max_samples` indices of `count`, evenly spaced; the first and the last are among them where two fit."""
    if count <= max_samples:
        return list(range(count))
    if max_samples < 2:
        return [count - 1] * max_samples
    return [round(i * (count - 1) / (max_samples - 1)) for i in range(max_samples)]


def shorten(text: str, length: int) -> str:
    """`text`, or its beginning and its end (where the answer is) with a note of what is left out between them."""
    if len(text) <= length:
        return text
    tail = length // 3
    return f"{text[: length - tail]}\n[… {len(text) - length:,} characters left out …]\n{text[-tail:]}"


def _read_samples(folder: Path, wanted: set[Key], largest: int, text: int) -> list[dict[str, Any]]:
    groups: dict[Key, dict[str, Any]] = {}
    for row in read_rollouts(folder):
        key = _key(row)
        if key not in wanted:
            continue
        own = {"round": row.round, "domain": row.domain, "prompt": shorten(row.prompt, text), "kept": row.kept}
        place = dict(zip(("stage", "step", "prompt_id", "roll_backs"), key, strict=True))
        group = groups.setdefault(key, {**place, **own, "samples": []})
        if len(group["samples"]) < largest:
            group["samples"].append(_sample(row, text))
    return list(groups.values())


def _sample(row: RolloutRow, text: int) -> dict[str, Any]:
    episode = {} if row.messages is None else _episode_sample(row, row.messages, text)
    return episode | {
        "sample": row.sample,
        "reward": row.reward if row.reward is not None and math.isfinite(row.reward) else None,
        "status": row.status,
        "score": row.score if math.isfinite(row.score) else None,
        "reason": shorten(row.reason, MIN_TEXT),
        "extracted": None if row.extracted is None else shorten(row.extracted, MIN_TEXT),
        "finish_reason": row.finish_reason,
        "length": row.length,
        "response": shorten(row.response, text),
        "verdict": verdict_name(row),
    }


def _episode_sample(row: RolloutRow, messages: Sequence[MessageRow], text: int) -> dict[str, Any]:
    """Return what the page shows of an episode: its messages, within the room that one answer has."""
    length = max(MIN_TEXT, text // max(1, len(messages)))
    rows = [{name: v for name, v in to_json(m).items() if v is not None} for m in messages]
    return {
        "ending": row.ending,
        "rows": row.rows,
        "messages": [m | {"text": shorten(m["text"], length)} for m in rows],
    }


def verdict_name(row: RolloutRow) -> str:
    """Return "right", "partial" or "wrong" for a graded response, else the verdict's status."""
    if row.status != "graded":
        return row.status
    return "right" if row.score >= 1 else "partial" if row.score > 0 else "wrong"


def _key(row: RolloutRow) -> Key:
    return row.stage, row.step, row.prompt_id, row.roll_backs or 0
