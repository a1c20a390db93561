"""Data before training: prompts loaded, checked against the model's context and each other, and written down."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.run import RunConfig
from pipeline.data.overlap import check_overlap
from pipeline.data.pairs import PairsRead
from pipeline.data.prompts import check_lengths, load_text, read_demonstrations, read_prompts
from pipeline.data.render import Renderer
from pipeline.data.rows import row_of
from pipeline.data.texts import read_texts
from pipeline.errors import ConfigError
from pipeline.run.pair_files import stage_pairs
from pipeline.train.checkpoint import disk_errors
from pipeline.types import Prompt


@dataclass(frozen=True)
class RunData:
    """The prompts of a run, and how they are written."""

    train: list[Prompt]
    evaluation: list[Prompt]
    demonstrations: list[Prompt]
    text: dict[str, list[str]]
    """Unlabelled, by the stage that is pre-trained on it."""
    renderer: Renderer
    notes: tuple[str, ...] = ()
    """What was skipped, dropped or found to overlap, for people."""
    pairs: Mapping[str, PairsRead] = field(default_factory=dict)
    """Of the files of each preference stage, by its name."""
    left_out: tuple[tuple[Any, str], ...] = ()
    """(row, why) of the demonstrations that teach nothing."""

    @property
    def all_prompts(self) -> list[Prompt]:
        """Those that are graded."""
        of_pairs = [p.prompt for read in self.pairs.values() for p in read.pairs if p.prompt.verifier]
        return [*self.train, *self.evaluation, *of_pairs]


def prepare_data(config: RunConfig, tokenizer: Any, context: int | None, base_dir: Path, folder: Path) -> RunData:
    """The prompts of the recipe, checked; the rows are written to `folder`/data as JSONL in the default row format.

    `context` is the model's longest sequence in tokens, None where it has no limit.
    Raises: DataError naming the file, row and remedy; ConfigError where responses leave no room for a prompt.
    """
    data, seed = config.data, config.seed
    train, counts = read_prompts(data.train, seed, base_dir)
    evaluation, more = read_prompts(data.evaluation, seed, base_dir)
    notes = [str(c) for c in (*counts, *more) if c.skipped]
    shown: list[Prompt] = []
    left_out: list[tuple[Any, str]] = []
    train, overlap = check_overlap(train, evaluation, data.overlap)
    if overlap.matches:
        notes.append(str(overlap))
    if config.needs_demonstrations:
        read = read_demonstrations(data.demonstrations, data.train, seed, base_dir)
        notes += [f"demonstrations: {c}" for c in read.counts if c.left_out]
        shown, overlap = check_overlap(read.prompts, evaluation, data.overlap)
        left_out += read.left_out
        if overlap.matches and data.demonstrations:
            notes.append(f"demonstrations: {overlap}")
    text = {s.name: stage_text(config.of_stage(s.name), base_dir, notes) for s in config.stages_of("pretrain")}
    renderer = Renderer(tokenizer, data.template)
    room = prompt_room(config, context)
    if room is not None:
        for name, prompts in (("training", train), ("evaluation", evaluation)):
            if not prompts:
                continue
            fitting = check_lengths(prompts, renderer.prompt_ids, room, data.on_long_prompt)
            prompts[:] = fitting.prompts
            if fitting.dropped:
                notes.append(f"dropped {len(fitting.dropped)} {name} prompts longer than {room} tokens")
    pairs = stage_pairs(config, renderer, context, base_dir, evaluation)
    notes += [f"{stage}: {c}" for stage, read in pairs.items() for c in read.counts if c.skipped]
    with disk_errors(f"writing data into {folder}"):
        write_rows(folder / "data" / "train.jsonl", train)
        write_rows(folder / "data" / "evaluation.jsonl", evaluation)
    return RunData(train, evaluation, shown, text, renderer, tuple(notes), pairs, tuple(left_out))


def stage_text(config: RunConfig, base_dir: Path, notes: list[str]) -> list[str]:
    """What a stage is pre-trained on: its files, else lines of the generators; what was skipped goes to `notes`."""
    section = config.pretrain
    assert section is not None
    text, skipped = read_texts(section.text, base_dir)
    notes += skipped
    return text or load_text(config.data.train, config.seed, section.num_lines)


def prompt_room(config: RunConfig, context: int | None) -> int | None:
    """The longest prompt in tokens: the recipe's limit, or what responses leave of the context; None for no limit.

    Raises: ConfigError where responses leave nothing, or the recipe's limit is more than they leave.
    """
    left = None if context is None else context - config.rollout.max_response_tokens
    if left is not None and left < 1:
        raise ConfigError(
            f"rollout.max_response_tokens={config.rollout.max_response_tokens} leaves no room for a prompt in the "
            f"model's context of {context}; lower it, or give the model a longer one (max_position_embeddings)"
        )
    asked = config.data.max_prompt_tokens
    if asked is None or left is None:
        return asked if left is None else left
    if asked > left:
        raise ConfigError(
            f"data.max_prompt_tokens={asked} is more than the {left} that rollout.max_response_tokens="
            f"{config.rollout.max_response_tokens} leaves of the model's context of {context}; lower one of them"
        )
    return asked


def write_rows(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts as JSONL in the format of a user's own file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        for p in prompts:
            file.write(json.dumps(row_of(p), ensure_ascii=False) + "\n")
    os.replace(partial, path)
