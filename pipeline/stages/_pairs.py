"""The pairs that a preference stage trains on, in tokens, kept as files in its folder; and the loss on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.config.pairs import PreferenceConfig, SampledPairsConfig
from verizero.pipeline.config.reward_model import RewardModelConfig
from verizero.pipeline.data.pairs import Pair, PairsRead, check_verdicts, pairs_of
from verizero.pipeline.errors import DataError, RunError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.loop.metrics import report_failures, require_verdicts, sample_rows
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.loop.sampled_groups import SAMPLED_AT_ONCE, rewarded_by_judge, sample_groups
from verizero.pipeline.preferences.base import Loss, PreferenceParams, load_preference
from verizero.pipeline.report.row_types import PairsRow
from verizero.pipeline.run.saving import write_left_out, write_lines
from verizero.pipeline.run.session import Run, Session, StageSetup
from verizero.pipeline.run.state import Item
from verizero.pipeline.scoring.score import GradingTally, attempt_of
from verizero.pipeline.seeds import stream
from verizero.pipeline.stages.rl import publish
from verizero.pipeline.train.preference import PreferenceRow, PreferenceSettings
from verizero.pipeline.types import Group, Prompt, StepMetrics, Verdict

PairLine = dict[str, Any]
"""One line of a file of pairs: texts for people, tokens for training, and where the pair comes from."""
PairsSection = PreferenceConfig | RewardModelConfig


def loss_of(setup: StageSetup) -> tuple[PreferenceParams, Loss]:
    """Return the parameters and the function of the stage's loss."""
    params = dict(setup.section.loss)
    return load_preference(params.pop("name"), params)


def update_settings(run: Run, setup: StageSetup) -> PreferenceSettings:
    """Return the settings of updates on pairs; log-probs are those of the distribution that is sampled."""
    config = setup.config
    return PreferenceSettings(run.pad_id, config.rollout.temperature, config.train.most_tokens)


def make_rows(session: Session, item: Item, section: PreferenceConfig, wrap: PhaseWrapper) -> list[PreferenceRow]:
    """Return the rows of a part as it begins. They are made here, or were made as the first part began.

    Raise DataError if there are fewer pairs than parts.
    """
    run = session.run
    if item.round == 1 or section.sampled.every_part:
        lines = pair_lines(session, item, section, wrap)
        parts = [item.round] if section.sampled.every_part else list(range(1, section.parts + 1))
        if len(lines) < len(parts) or not lines:
            raise DataError(
                f"{item.label}: {len(lines)} pairs for {len(parts)} parts; no group had responses whose rewards "
                f"differ by {section.sampled.pairing.min_gap:g}, or too few had. Sample more prompts or responses "
                "(preference.sampled), or lower pairing.min_gap"
            )
        for k, part in enumerate(parts):
            lines_of_part = lines[k * len(lines) // len(parts) : (k + 1) * len(lines) // len(parts)]
            write_lines(run, rows_path(run, item, part), lines_of_part)
        run.ranks.barrier()
    return kept_rows(run, item)


def kept_rows(run: Run, item: Item) -> list[PreferenceRow]:
    """Return the rows of a part from its file. Raise RunError if the file is missing."""
    path = rows_path(run, item, item.round)
    sides = ("chosen_ids", "rejected_ids")
    rows = [
        PreferenceRow(tuple(line["prompt_ids"]), *(None if line[s] is None else tuple(line[s]) for s in sides))
        for line in read_jsonl(path)
    ]
    if not rows:
        raise RunError(f"{path} is missing, and the stage cannot continue without its pairs; start under another name")
    return rows


def rows_path(run: Run, item: Item, part: int) -> Path:
    """Return the path of the file of a part's pairs."""
    return run.stage_folder(item.stage) / f"pairs-{part}.jsonl"


def pair_lines(session: Session, item: Item, section: PairsSection, wrap: PhaseWrapper) -> list[PairLine]:
    """Return the pairs of the section's files; if it names none, pairs of the present policy's answers."""
    return _lines_of_files(session, item, section) if section.pairs else _sampled_lines(session, item, section, wrap)


def _lines_of_files(session: Session, item: Item, section: PairsSection) -> list[PairLine]:
    """Return the pairs of the recipe's files, chosen sides graded if a verifier is named; write what is left out."""
    run, scorer, recorder = session.run, session.workers.graders.scorer, session.recorder
    prepared, renderer = run.data.pairs[item.stage], run.data.renderer
    read = PairsRead(list(prepared.pairs), list(prepared.counts), list(prepared.left_out))

    def grade(responses: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        return scorer.verdicts(
            [p.verifier for p, _ in responses], [attempt_of(p, text, "stop") for p, text in responses]
        )

    with recorder.timed("verify"):
        check_verdicts(read, grade, section.on_wrong_chosen)
    for counts in (c for c in read.counts if c.skipped):
        recorder.say(f"{item.label}: {counts}")
    write_left_out(run, item.stage, read.left_out)

    def ids(name: str, pair: Pair, side: str | None) -> Any:
        return None if side is None else renderer.response_ids(side, f"the {name} side of pair {pair.id!r}")

    if isinstance(section, RewardModelConfig) and section.step_end is not None:
        return [p.to_row() for p in read.pairs]  # made into tokens piece by piece, as the verifier shows them
    return [
        {
            **p.to_row(),
            "prompt_ids": renderer.prompt_ids(p.prompt),
            "chosen_ids": ids("chosen", p, p.chosen),
            "rejected_ids": ids("rejected", p, p.rejected),
        }
        for p in read.pairs
    ]


def _sampled_lines(session: Session, item: Item, section: PairsSection, wrap: PhaseWrapper) -> list[PairLine]:
    """Return pairs of the present policy's answers to the sampler's next prompts."""
    run, workers, state = session.run, session.workers, session.state
    recorder, setup, how = session.recorder, session.setup, section.sampled
    if workers.rollouts.engine.version != state.policy_version:
        wrap("publish", publish)(workers, state, recorder)
    share = len(run.data.train) // (section.parts if how.every_part else 1)
    number = share if how.prompts is None else how.prompts * (1 if how.every_part else section.parts)
    recorder.progress.begin(f"{item.label} pairs", 0, number)
    lines: list[PairLine] = []
    metrics: StepMetrics = {"prompts": float(number)}
    for start in range(0, number, SAMPLED_AT_ONCE):
        recorder.step_label = f"{item.label} pairs, prompt {start + 1} of {number}"
        prompts = workers.sampler.next(min(SAMPLED_AT_ONCE, number - start))
        names = (item.stage, item.round, start)
        groups, tally = wrap("sample", sample_groups)(run, workers, setup, recorder, prompts, how.samples, *names)
        groups = rewarded_by_judge(run, workers, recorder, groups, how.judge, how.judged)
        if isinstance(section, RewardModelConfig) and section.step_end is not None:
            lines += [line for group in groups for line in lines_of_steps(group)]
        else:
            lines += [line for group in groups for line in lines_of_group(run.seed, group, how, item)]
        _count(session, item, metrics, groups, tally)
        shown = groups[: setup.config.report.samples_per_step] if start == 0 else []
        recorder.store.rollouts(r for g in shown for r in sample_rows(g, item.stage, item.round, 0))
        recorder.progress.advance(min(number, start + SAMPLED_AT_ONCE), {"pairs": float(len(lines))})
    metrics["pairs"] = float(len(lines))
    recorder.store.metrics(
        PairsRow(stage=item.stage, stage_kind=item.kind, round=item.round, metrics=metrics, time=recorder.take_times())
    )
    recorder.say(f"{item.label}: {len(lines)} pairs of {number} prompts answered {how.samples} times each")
    return lines


def _count(session: Session, item: Item, metrics: StepMetrics, groups: Sequence[Group], tally: GradingTally) -> None:
    """Add the groups to the stage's metrics, the state and the ledger, and report failures of graders."""
    state, members = session.state, [m for g in groups for m in g.members]
    report_failures(
        session.recorder, session.setup, (state.stage.name, state.rl_step), tally, groups, "they are in no pair"
    )
    require_verdicts(session.recorder.step_label, groups)
    state.num_responses += len(members)
    state.num_prompts_used += len(groups)
    counts = {
        "responses": float(len(members)),
        "correct": float(sum(m.verdict.is_correct for m in members)),
        "ungraded": float(sum(m.reward is None for m in members)),
        "tokens": float(sum(m.rollout.num_sampled for m in members)),
    }
    for name, value in counts.items():
        metrics[name] = metrics.get(name, 0.0) + value
    for group in groups:
        session.workers.ledger.record_group(group)


def lines_of_group(seed: int, group: Group, how: SampledPairsConfig, item: Item) -> list[PairLine]:
    """Return the pairs of one group, each with the rewards of its sides and the policy that sampled them."""
    draw = stream(seed, "pairs", item.stage, item.round, group.prompt.id)
    return [
        {
            "id": f"{group.prompt.id}/{w.rollout.sample}-{r.rollout.sample}",
            "prompt": group.prompt.question,  # not the whole message: a verifier is shown the question
            "chosen": w.rollout.text,
            "rejected": r.rollout.text,
            "rewards": [w.reward, r.reward],
            "policy_version": w.rollout.policy_version,
            "prompt_ids": tuple(w.rollout.prompt_ids),
            "chosen_ids": tuple(w.rollout.response_ids),
            "rejected_ids": tuple(r.rollout.response_ids),
        }
        for w, r in pairs_of(group, how.pairing, draw)
    ]


def lines_of_steps(group: Group) -> list[PairLine]:
    """Return the responses of one group whose verdicts have steps, each with these and the policy that sampled it."""
    return [
        {
            "id": f"{group.prompt.id}/{m.rollout.sample}",
            "prompt": group.prompt.question,
            "response": m.rollout.text,
            "steps": m.verdict.steps,
            "policy_version": m.rollout.policy_version,
        }
        for m in group.members
        if m.steps
    ]
