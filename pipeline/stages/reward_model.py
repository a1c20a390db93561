"""A reward model as a stage: trained on pairs, or on steps of the policy's graded answers, and kept as a folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verizero.pipeline.config.reward_model import RewardModelConfig
from verizero.pipeline.config.stages import MODEL
from verizero.pipeline.errors import DataError, RunError
from verizero.pipeline.host.disk import read_jsonl, replace_folder
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.run.saving import write_lines
from verizero.pipeline.run.session import Run, Session
from verizero.pipeline.run.state import Item
from verizero.pipeline.seeds import stream
from verizero.pipeline.stages._epochs import last_steps_of_chunks, num_steps, train_steps
from verizero.pipeline.stages._pairs import pair_lines
from verizero.pipeline.stages.base import StageKind
from verizero.pipeline.train.reward_model import Example, LabelledSteps, RewardModel
from verizero.pipeline.types import Attempt, StepMetrics
from verizero.verifiers._steps import step_ends
from verizero.verifiers.reward_model import REWARD, RewardModelParams, Shown, shown_to

FOLDER = "reward_model"
"""Subfolder of a checkpoint with the model as it is trained so far."""


@dataclass(frozen=True, slots=True)
class Divided:
    """Pairs or labelled steps in tokens to train on, and those of other prompts to measure with."""

    trained: list[Example]
    held_out: list[Example]


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Make the pairs, train on them from the step that the state names, measure on held-out pairs, keep the model."""
    section = session.setup.section_as(RewardModelConfig)
    run, workers, state = session.run, session.workers, session.state
    path = run.stage_folder(item.stage) / section.file
    if state.step == 0:
        lines = pair_lines(session, item, section, wrap)
        write_lines(run, path, [*lines, *replayed_lines(session, item, section, len(lines))])
        run.ranks.barrier()
    pairs = divide(session, item, section, read_jsonl(path))
    total = num_steps(section.steps, section.epochs, len(pairs.trained), section.batch_size)
    workers.rollouts.free_memory()  # before the model and its optimiser need the room
    model = open_model(session, section, total)
    workers.extra_models[FOLDER] = lambda folder: model.save(folder, run.tokenizer, run.ranks.is_first)
    for last_step in last_steps_of_chunks(session, item, total):
        wrap("train", train_until)(session, replace(item, num_steps=total), section, model, pairs, last_step)
    del workers.extra_models[FOLDER]
    rows = [ids for e in pairs.trained for ids in ([e.ids] if isinstance(e, LabelledSteps) else e)]
    keep_model(run, item, section, model, model.spread(rows))


def open_model(session: Session, section: RewardModelConfig, total: int) -> RewardModel:
    """Return a new model, an earlier stage's, or the checkpoint's. Raise RunError if that has none."""
    backend, start = session.workers.backend, session.run.resumed_from
    if session.state.step == 0:
        before = None if section.continues is None else session.run.stage_folder(section.continues) / MODEL
        return backend.reward_model(section.optimizer, total, start=before)
    folder = None if start is None else start / FOLDER
    if folder is None or not folder.is_dir():
        raise RunError(f"{folder} is missing, and the stage cannot continue without it; start under another name")
    return backend.reward_model(section.optimizer, total, folder)


def replayed_lines(session: Session, item: Item, section: RewardModelConfig, num_new: int) -> list[dict[str, Any]]:
    """Return pairs of the stage whose model is continued, drawn by the seed, each with that stage's name."""
    if section.continues is None:
        return []
    earlier = read_jsonl(session.run.stage_folder(section.continues) / section.file)
    number = min(len(earlier), math.ceil(section.replay_share * num_new))
    chosen = stream(session.run.seed, "replayed pairs", item.stage).sample(range(len(earlier)), number)
    session.recorder.say(f"{item.label}: {number} of {len(earlier)} pairs of {section.continues} are trained on again")
    return [{"replayed_from": section.continues, **earlier[i]} for i in sorted(chosen)]


def divide(session: Session, item: Item, section: RewardModelConfig, lines: Sequence[dict[str, Any]]) -> Divided:
    """Return pairs to train on and pairs of other prompts to measure with. Raise DataError if one has none."""
    context = session.workers.context
    prompts = sorted({str(line["prompt"]) for line in lines})
    number = min(max(1, round(section.held_out * len(prompts))), len(prompts) - 1)
    kept_back = set(stream(session.run.seed, "held out", item.stage).sample(prompts, max(0, number)))
    pairs = Divided([], [])
    problems: list[str] = []
    for line in lines:
        try:
            example = example_of(session.run.tokenizer, context, section, line)
        except DataError as exc:
            problems.append(str(exc))
            continue
        (pairs.held_out if line["prompt"] in kept_back else pairs.trained).append(example)
    if problems:
        count = f"{len(problems)} of {len(lines)} pairs were left out (first: {problems[0]})"
        session.recorder.say(f"{item.label}: {count}")
    if not pairs.trained or not pairs.held_out:
        raise DataError(
            f"{item.label}: {len(pairs.trained)} pairs to train on and {len(pairs.held_out)} held out; each needs at "
            "least one. Give more pairs of different prompts, or sample more prompts or responses "
            "(reward_model.sampled)"
        )
    return pairs


def example_of(tokenizer: Any, context: int | None, section: RewardModelConfig, line: dict[str, Any]) -> Example:
    """Return the pair, or the labelled steps, as the verifier will show such responses to the model.

    Raise DataError if it would not.
    """
    params = RewardModelParams(
        model=Path(),
        chat=section.chat,
        include_thinking=section.include_thinking,
        step_end=section.step_end,
        max_tokens=context or 1_000_000,
    )

    def shown(name: str) -> Shown:
        seen = shown_to(tokenizer, Attempt(str(line[name]), None, str(line["prompt"]), False), params)
        if seen is None:
            raise DataError(f"{line['id']}: the {name} side has no answer")
        if len(seen.ids) > params.max_tokens:
            raise DataError(f"{line['id']}: the {name} side has {len(seen.ids)} tokens, past the context of {context}")
        return seen

    if section.step_end is None:
        return tuple(shown("chosen").ids), tuple(shown("rejected").ids)
    response = shown("response")
    return labelled(response, line)


def labelled(response: Shown, line: dict[str, Any]) -> LabelledSteps:
    """Return the steps that the model sees with the labels of the verdict's steps.

    One is right if all steps of the verdict that end in it are, and has no label if none does. Raise DataError if none
    has a label, or if a reward is not 0 or 1.
    """
    stop, ends, right = 0, [], []
    steps = step_ends(str(line["response"]), line["steps"])
    for end, text in zip(response.ends, response.texts, strict=True):
        start, stop = stop, stop + len(text)
        rewards = {reward for char, reward in steps if start < char <= stop}
        if not rewards <= {0.0, 1.0}:
            raise DataError(f"{line['id']}: a step has reward {min(rewards - {0.0, 1.0}):g}; a label is 0 or 1")
        if rewards:
            ends.append(end)
            right.append(rewards == {1.0})
    if not ends:
        raise DataError(f"{line['id']}: no step has a label")
    return LabelledSteps(tuple(response.ids[: ends[-1] + 1]), tuple(ends), tuple(right))


def train_until(
    session: Session, item: Item, section: RewardModelConfig, model: RewardModel, pairs: Divided, last_step: int
) -> None:
    """Do the steps up to `last_step`. The metrics of the last step have the measures on held-out pairs."""

    def update(indices: list[int]) -> StepMetrics:
        return model.update([pairs.trained[i] for i in indices])

    for metrics in train_steps(session, item, last_step, len(pairs.trained), section.batch_size, update):
        if session.state.step == item.num_steps:
            with session.recorder.timed("held out"):
                metrics |= model.held_out(pairs.held_out)
            session.recorder.say(
                f"{item.label}: {metrics['held_out/accuracy']:.3f} of {len(pairs.held_out)} held-out pairs in the "
                f"right order, calibration error {metrics['held_out/calibration_error']:.3f}"
            )


def keep_model(
    run: Run, item: Item, section: RewardModelConfig, model: RewardModel, spread: tuple[float, float]
) -> None:
    """Write the model into the stage's folder, replaced as a whole, with all that a verifier needs to ask it alike.

    `spread`: mean and standard deviation of its scores.
    """
    folder = run.stage_folder(item.stage)
    if run.ranks.is_first:
        how = {"mean": spread[0], "std": spread[1]}
        how |= {name: getattr(section, name) for name in ("chat", "include_thinking", "step_end")}
        with replace_folder(folder / MODEL, "writing the reward model") as partial:
            model.write(partial, run.tokenizer)
            (partial / REWARD).write_text(json.dumps(how, indent=1))
    else:
        model.write(folder / MODEL, run.tokenizer, is_first=False)
    run.ranks.barrier()


KIND = StageKind(RewardModelConfig, run)
