"""The pairs that a preference stage trains on, in tokens, kept in its folder: of files, or of graded answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config.pairs import SampledPairsConfig
from pipeline.config.preference import PreferenceConfig
from pipeline.config.reward_model import RewardModelConfig
from pipeline.data.pairs import Pair, PairsRead, check_verdicts, pairs_of
from pipeline.errors import DataError, RunError
from pipeline.loop.sampled_groups import ranked, sample_groups
from pipeline.loop.steps import Steps, Wrap
from pipeline.report.store import read_jsonl
from pipeline.run.folder import write_left_out, write_lines
from pipeline.run.schedule import Item
from pipeline.run.session import Session, stage_folder
from pipeline.scoring.ahead import attempt_of
from pipeline.scoring.score import Tally
from pipeline.seeds import stream
from pipeline.stages.rl import sample_rows, say_failures
from pipeline.train.preference import PreferenceRow
from pipeline.types import Group, Prompt, StepMetrics, Verdict

SAMPLED_AT_ONCE = 128
"""Prompts answered between two looks of the outside (a task in Prefect)."""
Written = dict[str, Any]
"""One line of a file of pairs: texts for people, tokens for training, and where it comes from."""


def made_rows(session: Session, item: Item, section: PreferenceConfig, steps: Steps, wrap: Wrap) -> list[PreferenceRow]:
    """The rows of the part, at its beginning: made here, or when the first part began.

    Raises: DataError where there are fewer pairs than parts.
    """
    if item.round == 1 or section.sampled.every_part:
        lines = paired_lines(session, item, section, steps, wrap)
        numbers = [item.round] if section.sampled.every_part else list(range(1, section.parts + 1))
        if len(lines) < len(numbers) or not lines:
            raise DataError(
                f"{item.label}: {len(lines)} pairs for {len(numbers)} parts; no group had responses whose rewards "
                f"differ by {section.sampled.pairing.min_gap:g}, or too few had. Sample more prompts or responses "
                "(preference.sampled), or lower pairing.min_gap"
            )
        for k, number in enumerate(numbers):
            own = lines[k * len(lines) // len(numbers) : (k + 1) * len(lines) // len(numbers)]
            write_lines(session, rows_path(session, item, number), own)
        session.ranks.barrier()
    return kept_rows(session, item)


def kept_rows(session: Session, item: Item) -> list[PreferenceRow]:
    """The rows of the part, from its file. Raises: RunError where that is gone."""
    path = rows_path(session, item, item.round)
    rows = [
        PreferenceRow(*(_ids(line[f"{k}_ids"]) for k in ("prompt", "chosen", "rejected"))) for line in read_jsonl(path)
    ]
    if not rows:
        raise RunError(f"{path} is missing, and the stage cannot go on without its pairs; start under another name")
    return rows


def rows_path(session: Session, item: Item, part: int) -> Path:
    """The file of a part's pairs."""
    return stage_folder(session, item.stage) / f"pairs-{part}.jsonl"


def _ids(value: list[int] | None) -> Any:
    return None if value is None else tuple(value)


def paired_lines(
    session: Session, item: Item, section: PreferenceConfig | RewardModelConfig, steps: Steps, wrap: Wrap
) -> list[Written]:
    """The pairs of the section's files, or of the present policy's answers where it names none."""
    return _of_files(session, item, section) if section.pairs else _sampled(session, item, section, steps, wrap)


def _of_files(session: Session, item: Item, section: PreferenceConfig | RewardModelConfig) -> list[Written]:
    """Pairs of the recipe's files, chosen sides graded where a verifier is named; what is left out is written down."""
    found = session.data.pairs[item.stage]
    read = PairsRead(list(found.pairs), list(found.counts), list(found.left_out))

    def grade(asked: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        attempts = [attempt_of(p, text, "stop") for p, text in asked]
        return session.scorer.verdicts([p.verifier for p, _ in asked], attempts)

    with session.timed("verify"):
        check_verdicts(read, grade, section.on_wrong_chosen)
    for counts in (c for c in read.counts if c.skipped):
        session.progress.say(f"{item.label}: {counts}")
    write_left_out(session, item.stage, read.left_out)
    renderer = session.data.renderer

    def ids(name: str, pair: Pair, side: str | None) -> Any:
        return None if side is None else renderer.text_ids(side, f"the {name} side of pair {pair.id!r}")

    return [
        {
            **p.to_row(),
            "prompt_ids": renderer.prompt_ids(p.prompt),
            "chosen_ids": ids("chosen", p, p.chosen),
            "rejected_ids": ids("rejected", p, p.rejected),
        }
        for p in read.pairs
    ]


def _sampled(
    session: Session, item: Item, section: PreferenceConfig | RewardModelConfig, steps: Steps, wrap: Wrap
) -> list[Written]:
    """Pairs of the present policy's answers to the sampler's next prompts."""
    how, state = section.sampled, session.state
    if session.engine.version != state.policy_version:
        steps.publish(session)
    whole = len(session.data.train) // (section.parts if how.every_part else 1)
    number = whole if how.prompts is None else how.prompts * (1 if how.every_part else section.parts)
    session.progress.begin(f"{item.label} pairs", 0, number)
    lines: list[Written] = []
    seen: StepMetrics = {"prompts": float(number)}
    for start in range(0, number, SAMPLED_AT_ONCE):
        session.where = f"{item.label} pairs, prompt {start + 1} of {number}"
        prompts = steps.next_prompts(session, min(SAMPLED_AT_ONCE, number - start))
        groups, tally = wrap("sample", sample_groups)(session, prompts, how.samples, item.stage, item.round, start)
        groups = ranked(session, groups, how.judge, how.judged)
        lines += [line for group in groups for line in pair_lines(session, group, how, item)]
        _count(session, item, seen, groups, tally, with_samples=start == 0)
        session.progress.advance(min(number, start + SAMPLED_AT_ONCE), {"pairs": float(len(lines))})
    seen["pairs"] = float(len(lines))
    session.store.metrics(
        {
            "kind": "pairs",
            "stage": item.stage,
            "stage_kind": item.kind,
            "round": item.round,
            "metrics": seen,
            "time": session.take_times(),
        }
    )
    session.progress.say(f"{item.label}: {len(lines)} pairs of {number} prompts answered {how.samples} times each")
    return lines


def _count(
    session: Session, item: Item, seen: StepMetrics, groups: Sequence[Group], tally: Tally, with_samples: bool
) -> None:
    members = [m for g in groups for m in g.members]
    say_failures(session, tally, groups, "they stand in no pair")
    session.state.num_responses += len(members)
    session.state.num_prompts_used += len(groups)
    found = {
        "responses": float(len(members)),
        "correct": float(sum(m.verdict.is_correct for m in members)),
        "ungraded": float(sum(m.reward is None for m in members)),
        "tokens": float(sum(len(m.rollout.response_ids) for m in members)),
    }
    for name, value in found.items():
        seen[name] = seen.get(name, 0.0) + value
    for group in groups:
        graded = [m.verdict.is_correct for m in group.members if not m.verdict.is_infrastructure]
        session.ledger.record(group.prompt.id, len(graded), sum(graded))
    shown = groups[: session.config.report.samples_per_step] if with_samples else []
    session.store.rollouts(r for g in shown for r in sample_rows(g, item.stage, item.round, 0))


def pair_lines(session: Session, group: Group, how: SampledPairsConfig, item: Item) -> list[Written]:
    """The pairs of one group, each with the rewards of its sides and the policy that gave them."""
    draw = stream(session.config.seed, "pairs", item.stage, item.round, group.prompt.id)
    return [
        {
            "id": f"{group.prompt.id}/{w.rollout.sample}-{r.rollout.sample}",
            "prompt": group.prompt.question,
            "chosen": w.rollout.text,
            "rejected": r.rollout.text,
            "rewards": [w.reward, r.reward],
            "policy_version": w.rollout.policy_version,
            "prompt_ids": w.rollout.prompt_ids,
            "chosen_ids": w.rollout.response_ids,
            "rejected_ids": r.rollout.response_ids,
        }
        for w, r in pairs_of(group, how.pairing, draw)
    ]
