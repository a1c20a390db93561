"""A reward model as a stage: pairs of files or of the policy's graded answers; it leaves a sequence classifier."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.reward_model import RewardModelConfig
from pipeline.config.stages import MODEL
from pipeline.errors import DataError, RunError
from pipeline.loop.steps import Steps, Wrap
from pipeline.models.load import save_folder
from pipeline.report.store import read_jsonl
from pipeline.run.folder import write_lines
from pipeline.run.schedule import Item
from pipeline.run.session import Session, stage_folder
from pipeline.seeds import stream
from pipeline.stages._epochs import chunks, num_steps, record_step, steps_until
from pipeline.stages._pairs import paired_lines
from pipeline.train.checkpoint import disk_errors
from pipeline.train.reward_model import RewardModel, Sides
from pipeline.types import Attempt, StepMetrics
from verifiers.reference_model import REWARD, ReferenceModelParams, shown_ids

FOLDER = "reward_model"
"""Of a checkpoint: where the model stands while it is trained."""


def run(session: Session, item: Item, steps: Steps, wrap: Wrap) -> None:
    """Make the pairs, train on them from where the state says, measure what was held out, leave the model."""
    section, state = session.config.reward_model, session.state
    assert section is not None
    path = stage_folder(session, item.stage) / "pairs.jsonl"
    if state.step == 0:
        write_lines(session, path, paired_lines(session, item, section, steps, wrap))
        session.ranks.barrier()
    trained, held_out = divided(session, item, section, read_jsonl(path))
    total = num_steps(section.steps, section.epochs, len(trained), section.batch_size)
    model = opened_model(session, section, total)
    session.beside[FOLDER] = lambda folder: model.save(folder, session.tokenizer)
    for until in chunks(session, item, total):
        wrap("train", train_chunk)(session, replace(item, num_steps=total), model, trained, held_out, until)
    del session.beside[FOLDER]
    leave(session, item, section, model, trained)


def opened_model(session: Session, section: RewardModelConfig, total: int) -> RewardModel:
    """A new one on the policy's blocks, or the one of the checkpoint that this process went on from.

    Raises: RunError where that checkpoint has none.
    """
    if session.state.step == 0:
        return RewardModel.of(session.backend.whole_model(), section.optimizer, total)
    folder = None if session.start is None else session.start / FOLDER
    if folder is None or not folder.is_dir():
        raise RunError(f"{folder} is missing, and the stage cannot go on without it; start under another name")
    return RewardModel.restored(folder, section.optimizer, total, session.backend.model.device)


def divided(
    session: Session, item: Item, section: RewardModelConfig, lines: Sequence[dict[str, Any]]
) -> tuple[list[Sides], list[Sides]]:
    """Pairs to train on and pairs to measure, of different prompts, in tokens; what cannot be shown is counted.

    Raises: DataError where one of them has no pair.
    """
    prompts = sorted({str(line["prompt"]) for line in lines})
    number = min(max(1, round(section.held_out * len(prompts))), len(prompts) - 1)
    kept_back = set(stream(session.config.seed, "held out", item.stage).sample(prompts, max(0, number)))
    own: list[Sides] = []
    others: list[Sides] = []
    problems: list[str] = []
    for line in lines:
        try:
            sides = sides_of(session, section, line)
        except DataError as exc:
            problems.append(str(exc))
            continue
        (others if line["prompt"] in kept_back else own).append(sides)
    if problems:
        said = f"{len(problems)} of {len(lines)} pairs were left out (first: {problems[0]})"
        session.progress.say(f"{item.label}: {said}")
    if not own or not others:
        raise DataError(
            f"{item.label}: {len(own)} pairs to train on and {len(others)} held out; each needs at least one. Give "
            "more pairs of different prompts, or sample more prompts or responses (reward_model.sampled)"
        )
    return own, others


def sides_of(session: Session, section: RewardModelConfig, line: dict[str, Any]) -> Sides:
    """The pair as the verifier will show such responses to the model. Raises: DataError for one that it would not."""
    limit = getattr(session.backend.model.config, "max_position_embeddings", None)
    params = ReferenceModelParams(
        model=Path(), chat=section.chat, include_thinking=section.include_thinking, max_tokens=limit or 1_000_000
    )
    found = []
    for name in ("chosen", "rejected"):
        attempt = Attempt(str(line[name]), None, str(line["prompt"]), False)
        ids = shown_ids(session.tokenizer, attempt, params)
        if ids is None:
            raise DataError(f"pair {line['id']}: the {name} side has no answer")
        if len(ids) > params.max_tokens:
            raise DataError(f"pair {line['id']}: the {name} side has {len(ids)} tokens, past the context of {limit}")
        found.append(tuple(ids))
    return found[0], found[1]


def train_chunk(
    session: Session, item: Item, model: RewardModel, trained: list[Sides], held_out: list[Sides], until: int
) -> None:
    """Steps up to `until`, one line of metrics each; the last one has what was measured on held-out pairs."""
    section, tokens = session.config.reward_model, session.config.train.micro_batch_tokens
    assert section is not None

    def update(at: list[int]) -> StepMetrics:
        return model.update([trained[i] for i in at], tokens)

    for metrics in steps_until(session, item, until, len(trained), section.batch_size, update):
        if session.state.step == item.num_steps:
            with session.timed("held out"):
                metrics |= model.held_out(held_out, tokens)
            session.progress.say(
                f"{item.label}: {metrics['held_out/accuracy']:.3f} of {len(held_out)} held-out pairs in the right "
                f"order, calibration error {metrics['held_out/calibration_error']:.3f}"
            )
        record_step(session, item, metrics)


def leave(session: Session, item: Item, section: RewardModelConfig, model: RewardModel, trained: list[Sides]) -> None:
    """The model as a folder of the stage, replaced as a whole, with what a verifier must know to ask it alike."""
    tokens = session.config.train.micro_batch_tokens
    mean, spread = model.spread([ids for sides in trained for ids in sides], tokens)
    if session.ranks.is_first:
        folder = stage_folder(session, item.stage)
        partial, final = folder / ".model-partial", folder / MODEL
        how = {"mean": mean, "std": spread, "chat": section.chat, "include_thinking": section.include_thinking}
        with disk_errors("writing the reward model", partial):
            shutil.rmtree(partial, ignore_errors=True)
            save_folder(model.model, session.tokenizer, partial)
            (partial / REWARD).write_text(json.dumps(how, indent=1))
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
    session.ranks.barrier()
