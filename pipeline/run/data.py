"""The data of a run, loaded and checked before training, and written into the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verizero.pipeline.config.pairs import PairStage, PreferenceConfig, check_loss
from verizero.pipeline.config.reward_model import RewardModelConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import PretrainConfig
from verizero.pipeline.data.overlap import check_overlap
from verizero.pipeline.data.pairs import PairsRead, check_pieces, read_pairs
from verizero.pipeline.data.prompts import check_lengths, forget_generated, load_text, read_demonstrations, read_prompts
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.rows_of_source import SourceCounts, row_of
from verizero.pipeline.data.texts import read_texts
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.host.disk import disk_errors, json_text, write_atomic
from verizero.pipeline.types import Prompt


@dataclass(frozen=True)
class RunData:
    """The prompts, demonstrations, texts and pairs of a run, and the renderer that turns them into tokens."""

    train: list[Prompt]
    evaluation: list[Prompt]
    demonstrations: list[Prompt]
    text: dict[str, list[str]]
    """Unlabelled texts, by the stage that is pre-trained on them."""
    renderer: Renderer
    notes: tuple[str, ...] = ()
    """Sentences for people about rows that were skipped, dropped or found to overlap."""
    pairs: Mapping[str, PairsRead] = field(default_factory=dict)
    """Pairs of files, by the name of the stage that trains on them."""
    left_out: tuple[tuple[Any, str], ...] = ()
    """(row, reason) of the demonstrations that were left out."""
    longest_prompt: int | None = None
    """Tokens of the longest prompt, of training and evaluation; None if lengths have no limit."""

    @property
    def all_prompts(self) -> list[Prompt]:
        """All prompts whose responses are graded."""
        of_pairs = [p.prompt for read in self.pairs.values() for p in read.pairs if p.prompt.verifier]
        return [*(p for p in self.train if p.verifier), *self.evaluation, *of_pairs]


def prepare_data(
    config: RunConfig,
    tokenizer: Any,
    context: int | None,
    base_dir: Path,
    folder: Path,
    places: dict[int, str] | None = None,
) -> RunData:
    """Return the checked data of the recipe; its prompts are written to `folder`/data in the default row format.

    `context` is the model's longest sequence in tokens; None: no limit. `places` is told the place of each prompt's row
    by the `id()` of the prompt, as rows of the evaluation may have the ids of training rows.
    Raise DataError naming the file, row and remedy; ConfigError if responses leave no room for a prompt.
    """
    data, seed = config.data, config.seed
    by_id: dict[str, dict[str, str]] = {"train": {}, "evaluation": {}, "demonstrations": {}}
    train, counts = read_prompts(data.train, seed, base_dir, by_id["train"])
    evaluation, more = read_prompts(data.evaluation, seed, base_dir, by_id["evaluation"])
    notes = [str(c) for c in (*counts, *more) if c.skipped]
    shown: list[Prompt] = []
    left_out: list[tuple[Any, str]] = []
    train, overlap = check_overlap(train, evaluation, data.on_overlap)
    if overlap.matches:
        notes.append(str(overlap))
    if config.needs_demonstrations:
        read = read_demonstrations(data.demonstrations, data.train, seed, base_dir, by_id["demonstrations"])
        notes += [f"demonstrations: {c}" for c in read.counts if c.left_out]
        shown, overlap = check_overlap(read.prompts, evaluation, data.on_overlap)
        left_out += read.left_out
        if overlap.matches and data.demonstrations:
            notes.append(f"demonstrations: {overlap}")
    forget_generated()
    if places is not None:
        for part, prompts in (("train", train), ("evaluation", evaluation), ("demonstrations", shown)):
            places |= {id(p): by_id[part][p.id] for p in prompts}
    text: dict[str, list[str]] = {}
    for stage, pretrain in config.sections_of(PretrainConfig).items():
        of_files, skipped = read_texts(pretrain.text, base_dir)
        notes += skipped
        text[stage] = of_files or load_text(data.train, seed, pretrain.num_lines)
    renderer = Renderer(tokenizer, data.template)
    room = prompt_room(config, context)
    longest = None if room is None else 0
    if room is not None:
        for name, prompts in (("training", train), ("evaluation", evaluation)):
            if not prompts:
                continue
            fitting = check_lengths(prompts, renderer.prompt_ids, room, data.on_long_prompt)
            # In place: `train` and `evaluation` below are these lists.
            prompts[:] = fitting.prompts
            longest = max(longest or 0, min(room, fitting.longest))
            if fitting.dropped:
                notes.append(f"dropped {len(fitting.dropped)} {name} prompts longer than {room} tokens")
    pairs = stage_pairs(config, renderer, context, base_dir, evaluation)
    notes += [f"{stage}: {c}" for stage, read in pairs.items() for c in read.counts if c.skipped]
    with disk_errors(f"writing data into {folder}"):
        write_rows(folder / "data" / "train.jsonl", train)
        write_rows(folder / "data" / "evaluation.jsonl", evaluation)
    return RunData(train, evaluation, shown, text, renderer, tuple(notes), pairs, tuple(left_out), longest)


def prompt_room(config: RunConfig, context: int | None) -> int | None:
    """Return the longest allowed prompt in tokens: the recipe's limit, or what responses leave of the context.

    None means no limit. Raise ConfigError if responses leave nothing, or less than the recipe's limit.
    """
    left = None if context is None else context - config.rollout.max_response_tokens
    if left is not None and left < 1:
        raise ConfigError(
            f"rollout.max_response_tokens={config.rollout.max_response_tokens} leaves no room for a prompt in the "
            f"model's context of {context}; lower it, or give the model a longer one (max_position_embeddings)"
        )
    max_prompt = config.data.max_prompt_tokens
    if max_prompt is None or left is None:
        return max_prompt if left is None else left
    if max_prompt > left:
        raise ConfigError(
            f"data.max_prompt_tokens={max_prompt} is more than the {left} that rollout.max_response_tokens="
            f"{config.rollout.max_response_tokens} leaves of the model's context of {context}; lower one of them"
        )
    return max_prompt


def write_rows(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts as JSONL in the default row format, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json_text(row_of(p)) + "\n" for p in prompts)
    write_atomic(path, "".join(lines).encode())


def stage_pairs(
    config: RunConfig, renderer: Renderer, context: int | None, base_dir: Path, evaluation: Sequence[Prompt]
) -> dict[str, PairsRead]:
    """Return the pairs of each stage that trains on files of pairs. Those past the context are left out and counted.

    Raise DataError as `read_pairs` does, and if a loss of pairs gets rows with labels.
    """
    by_stage: dict[str, PairsRead] = {}
    for stage, section in config.sections_on_pairs.items():
        if not section.pairs:
            continue
        read = read_pairs(section.pairs, config.seed, base_dir)
        prompts, _ = check_overlap([p.prompt for p in read.pairs], evaluation, config.data.on_overlap)
        # By object, as pairs of different sources may share an id.
        allowed_ids = {id(prompt) for prompt in prompts}
        read.pairs[:] = [p for p in read.pairs if id(p.prompt) in allowed_ids]
        check_pairs(stage, section, read, renderer, context)
        by_stage[stage] = read
    return by_stage


def check_pairs(stage: str, section: PairStage, read: PairsRead, renderer: Renderer, context: int | None) -> None:
    """Leave out pairs past the context. Raise DataError if none is left, or if rows are not of the stage's form."""
    drop_long(read, renderer, context)
    step_end = section.step_end if isinstance(section, RewardModelConfig) else None
    check_steps(stage, read, step_end)
    from_labels = isinstance(section, PreferenceConfig) and check_loss("preference", section.loss).from_labels
    if step_end is None:
        check_sides(stage, read, from_labels)


def drop_long(read: PairsRead, renderer: Renderer, context: int | None) -> None:
    """Leave out and count the pairs that do not fit into the model's context. Raise DataError if none fits."""
    if context is None:
        return
    counts = SourceCounts("pairs", len(read.pairs), what="of them kept")
    fitting = []
    for pair in read.pairs:
        prompt = len(renderer.prompt_ids(pair.prompt))
        length = prompt + max(len(renderer.response_ids(s, f"a side of pair {pair.id!r}")) for s in pair.sides if s)
        if length <= context:
            fitting.append(pair)
            continue
        counts.skip("past the context", f"{pair.id}: {length} tokens, and the model's context is {context}")
        read.left_out.append((pair.to_row(), f"past the context: {length} tokens of {context}"))
    if not fitting:
        raise DataError(
            f"all {len(read.pairs)} pairs are longer than the model's context of {context} tokens; give "
            "shorter ones, or a model with a longer context"
        )
    counts.num_loaded = len(fitting)
    read.pairs[:] = fitting
    if counts.skipped:
        read.counts.append(counts)


def check_steps(stage: str, read: PairsRead, step_end: str | None) -> None:
    """Raise DataError naming the first row without labelled steps if the stage trains on them, else with some."""
    for pair in read.pairs:
        if step_end is None and pair.labelled_steps is not None:
            raise DataError(
                f"stage {stage!r}: row {pair.id!r} has labelled steps, which only a process reward model trains on; "
                "set reward_model.step_end, or give pairs"
            )
        if step_end is not None and pair.labelled_steps is None:
            raise DataError(
                f"stage {stage!r}: row {pair.id!r} has no steps, and with step_end={step_end!r} the stage trains on "
                "them; name the columns of steps and labels (mapping.steps, mapping.step_labels), or drop step_end"
            )
        if step_end is not None and pair.labelled_steps is not None:
            check_pieces(pair.id, pair.chosen or "", pair.labelled_steps, step_end)


def check_sides(stage: str, read: PairsRead, from_labels: bool) -> None:
    """Raise DataError naming the first row with one side only, if the loss needs both."""
    alone = next((p for p in read.pairs if None in p.sides), None)
    if alone is not None and not from_labels:
        raise DataError(
            f"stage {stage!r}: row {alone.id!r} has a completion with a label, and the loss takes pairs; use kto, or "
            "give rows with chosen and rejected"
        )
