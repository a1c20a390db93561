"""Pairs of files for the preference stages of a recipe: read before training, held to context and evaluation set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.config.preference import PreferenceConfig, check_loss
from pipeline.config.run import RunConfig
from pipeline.data.overlap import check_overlap
from pipeline.data.pairs import PairsRead, read_pairs
from pipeline.data.render import Renderer
from pipeline.data.rows import SourceCounts
from pipeline.errors import DataError
from pipeline.types import Prompt


def stage_pairs(
    config: RunConfig, renderer: Renderer, context: int | None, base_dir: Path, evaluation: Sequence[Prompt]
) -> dict[str, PairsRead]:
    """The pairs of each stage that learns from pairs of files, those past the context left out, counted and named.

    Raises: DataError as `read_pairs`, and where a loss of pairs is given rows with labels.
    """
    found: dict[str, PairsRead] = {}
    for stage in [*config.stages_of("preference"), *config.stages_of("reward_model")]:
        own = config.of_stage(stage.name)
        section = own.preference if stage.kind == "preference" else own.reward_model
        if section is None or not section.pairs:
            continue
        read = read_pairs(section.pairs, config.seed, base_dir)
        kept, _ = check_overlap([p.prompt for p in read.pairs], evaluation, config.data.overlap)
        allowed = {id(prompt) for prompt in kept}
        read.pairs[:] = [p for p in read.pairs if id(p.prompt) in allowed]
        drop_long(read, renderer, context)
        from_labels = isinstance(section, PreferenceConfig) and check_loss("preference", section.loss).from_labels
        check_sides(stage.name, read, from_labels)
        found[stage.name] = read
    return found


def drop_long(read: PairsRead, renderer: Renderer, context: int | None) -> None:
    """Leave out pairs that do not fit into the model's context; count them. Raises: DataError where none does."""
    if context is None:
        return
    counts = SourceCounts("pairs", len(read.pairs), what="of them kept")
    kept = []
    for pair in read.pairs:
        prompt = len(renderer.prompt_ids(pair.prompt))
        length = prompt + max(len(renderer.text_ids(s, f"a side of pair {pair.id!r}")) for s in pair.sides if s)
        if length <= context:
            kept.append(pair)
            continue
        counts.skip("past the context", f"{pair.id}: {length} tokens, and the model's context is {context}")
        read.left_out.append((pair.to_row(), f"past the context: {length} tokens of {context}"))
    if not kept:
        raise DataError(f"all {len(read.pairs)} pairs are longer than the model's context of {context} tokens")
    counts.num_loaded = len(kept)
    read.pairs[:] = kept
    if counts.skipped:
        read.counts.append(counts)


def check_sides(stage: str, read: PairsRead, from_labels: bool) -> None:
    """Raises: DataError naming the first row that has one side only, where the loss needs both."""
    alone = next((p for p in read.pairs if None in p.sides), None)
    if alone is not None and not from_labels:
        raise DataError(
            f"stage {stage!r}: row {alone.id!r} has a completion with a label, and the loss takes pairs; use kto, or "
            "give rows with chosen and rejected"
        )
