"""Rejection sampling: graded answers of the policy or of an endpoint; those kept become demonstrations.

`select_answers` has the rules, and counts why the others are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from verizero.pipeline.config.load import dump
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.sample import EndpointConfig, KeepConfig, SampleConfig
from verizero.pipeline.config.stages import DEMONSTRATIONS
from verizero.pipeline.data.overlap import normalise
from verizero.pipeline.data.prompts import answer_of, hinted_question
from verizero.pipeline.data.rows_of_source import row_of
from verizero.pipeline.errors import DataError, RunError
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.loop.metrics import report_failures, require_verdicts
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.loop.sampled_groups import SAMPLED_AT_ONCE, sample_groups
from verizero.pipeline.report.row_types import SampleRow
from verizero.pipeline.rollout.endpoint import ask_endpoint
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rows import require_single
from verizero.pipeline.run.data import prompt_room
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.rollouts import gather_groups, share_of
from verizero.pipeline.run.saving import save, write_lines
from verizero.pipeline.run.session import Run, Session
from verizero.pipeline.run.state import Item
from verizero.pipeline.scoring.score import GradingTally, Scorer
from verizero.pipeline.seeds import stream
from verizero.pipeline.stages.base import StageKind
from verizero.pipeline.stages.rl import publish
from verizero.pipeline.types import Group, Prompt, ScoredRollout, StepMetrics

HINTED = "/hinted"
"""Suffix of the id of a prompt that is asked with its answer as a hint."""


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Sample the stage's prompts piece by piece, from the piece that the state names; then write all that was kept.

    Raise DataError if nothing was kept.
    """
    run, workers, state, recorder = session.run, session.workers, session.state, session.recorder
    section = session.setup.section_as(SampleConfig)
    prompts = run.data.train
    if section.prompts is not None and section.prompts < len(prompts):
        prompts = stream(run.seed, "sample", item.stage).sample(prompts, section.prompts)
    if section.endpoint is None and workers.rollouts.engine.version != state.policy_version:
        wrap("publish", publish)(workers, state, recorder)
    total = -(-len(prompts) // SAMPLED_AT_ONCE)
    recorder.progress.begin(item.label, state.step, total)
    while state.step < total:
        start = state.step * SAMPLED_AT_ONCE
        some = prompts[start : start + SAMPLED_AT_ONCE]
        recorder.step_label = f"{item.label} prompts {start + 1}-{start + len(some)} of {len(prompts)}"
        lines, metrics = sample_piece(session, item, some, wrap)
        write_lines(run, piece_path(run, item, state.step), lines)
        state.step += 1
        row = record(recorder, item, state.step, metrics)
        recorder.progress.advance(state.step, {"kept": metrics["kept"] / max(1.0, metrics["prompts"])})
        recorder.callbacks.call(run.ranks, row)
        if state.step < total or recorder.callbacks.stopped_by:
            save(session)
        recorder.callbacks.raise_if_stopped()
    run.ranks.barrier()
    join_pieces(run, recorder, item, total)


def sample_piece(
    session: Session, item: Item, prompts: Sequence[Prompt], wrap: PhaseWrapper
) -> tuple[list[dict[str, Any]], StepMetrics]:
    """Return lines of the answers that are kept, and counts of everything that was asked."""
    section = session.setup.section_as(SampleConfig)
    names = ("prompts", "solved", "responses", "correct", "unwritable", *REASONS, "kept")
    metrics: StepMetrics = dict.fromkeys(names, 0.0)
    metrics["prompts"] = float(len(prompts))
    groups = wrap("sample", answer)(session, item, prompts, metrics)
    lines, solved = keep(session, item, {p.id: p for p in prompts}, groups, metrics)
    unsolved = [p for p in prompts if p.id not in solved] if section.hint is not None else []
    hintable = [p for p in unsolved if answer_of(p) is not None]
    metrics["no_answer_to_hint"] = float(len(unsolved) - len(hintable))
    hinted, metrics["too_long_with_hint"] = with_hint(session, hintable, section.hint or "")
    if hinted:
        groups = wrap("sample", answer)(session, item, hinted, metrics)
        more, solved_with_hint = keep(session, item, {p.id + HINTED: p for p in unsolved}, groups, metrics)
        lines += more
        metrics["solved_with_hint"] = float(len(solved_with_hint))
    metrics["solved"] = float(len(solved))
    return lines, metrics


def answer(session: Session, item: Item, prompts: Sequence[Prompt], metrics: StepMetrics) -> list[Group]:
    """Return the prompts with their graded answers; count them in `metrics`, and report failures of graders."""
    run, workers, recorder = session.run, session.workers, session.recorder
    section = session.setup.section_as(SampleConfig)
    if section.endpoint is None:
        groups, tally = sample_groups(run, workers, session.setup, recorder, prompts, section.samples, item.stage)
    else:
        request = (section.endpoint, section.samples, item.stage)
        groups, tally, unwritable = ask_and_grade(
            run, workers.graders.scorer, recorder, session.setup.config, prompts, request
        )
        metrics["unwritable"] += unwritable
    fate = "none was kept, none was counted as wrong"
    report_failures(recorder, session.setup, (session.state.stage.name, session.state.rl_step), tally, groups, fate)
    require_verdicts(recorder.step_label, [g for g in groups if not g.prompt.id.endswith(HINTED)])
    for group in groups:
        metrics["responses"] += len(group.members)
        metrics["correct"] += sum(m.verdict.is_correct for m in group.members)
        if not group.prompt.id.endswith(HINTED) and section.endpoint is None:
            workers.ledger.record_group(group)
    return groups


def with_hint(session: Session, prompts: Sequence[Prompt], hint: str) -> tuple[list[Prompt], float]:
    """Return the prompts with their answers in the question; and how many are too long for the model with it."""
    room, renderer = prompt_room(session.setup.config, session.workers.context), session.run.data.renderer
    hinted = [replace(p, id=p.id + HINTED, question=hinted_question(p, hint), message=None) for p in prompts]
    fitting = [p for p in hinted if room is None or len(renderer.prompt_ids(p)) <= room]
    return fitting, float(len(hinted) - len(fitting))


def ask_and_grade(
    run: Run,
    scorer: Scorer,
    recorder: Recorder,
    config: RunConfig,
    prompts: Sequence[Prompt],
    request: tuple[EndpointConfig, int, str],
) -> tuple[list[Group], GradingTally, int]:
    """Return an endpoint's graded answers, and how many the policy's tokenizer cannot write.

    `request`: the endpoint, the number of answers to each prompt, and the name of the random stream.
    """
    endpoint, samples, name = request
    how, share = config.rollout, share_of(run.ranks, prompts)
    sampling = Sampling(how.max_response_tokens, how.temperature, how.top_p)
    with recorder.timed("generate"):
        answers = ask_endpoint(endpoint, share.prompts, samples, sampling, run.data.renderer.text_ids, run.seed, name)
    unwritable = sum(run.ranks.gather(answers.unwritable))
    with recorder.timed("verify"):
        by_id = {p.id: p for p in share.prompts}
        scored, tally = scorer.score(by_id, [r for rollouts in answers.rollouts for r in rollouts])
        rest = iter(scored)
        prompts_and_rollouts = zip(share.prompts, answers.rollouts, strict=True)
        groups_of_rank = [Group(p, tuple(next(rest) for _ in rollouts)) for p, rollouts in prompts_and_rollouts]
        (groups,), tally = gather_groups(run.ranks, share, [groups_of_rank], tally)
    recorder.add_seconds("graders", tally.busy_s)
    return groups, tally, unwritable


def keep(
    session: Session, item: Item, originals: Mapping[str, Prompt], groups: Sequence[Group], metrics: StepMetrics
) -> tuple[list[dict[str, Any]], set[str]]:
    """Return lines of the answers to keep, and the ids of the prompts that have one.

    `originals`: id of the prompt that was asked -> the prompt without a hint, which the line has.
    """
    section = session.setup.section_as(SampleConfig)
    lines: list[dict[str, Any]] = []
    solved: set[str] = set()
    for group in groups:
        members, left_out = select_answers(group.members, section.keep)
        prompt = originals[group.prompt.id]
        hinted = group.prompt.id != prompt.id
        lines += [line_of(session, item, prompt, m, hinted) for m in members]
        metrics["kept"] += len(members)
        for reason, number in left_out.items():
            metrics[reason] += number
        solved |= {prompt.id} if members else set()
    return lines, solved


def line_of(session: Session, item: Item, prompt: Prompt, m: ScoredRollout, hinted: bool) -> dict[str, Any]:
    """Return a row in the default format, and where its demonstration comes from."""
    endpoint, how = session.setup.section_as(SampleConfig).endpoint, session.setup.config.rollout
    source = {
        "stage": item.stage,
        "model": "policy" if endpoint is None else endpoint.model,
        "policy_version": None if endpoint is not None else m.rollout.policy_version,
        "recipe": hashlib.sha256(dump(session.run.recipe).encode()).hexdigest()[:16],
        "verdict": {"status": m.verdict.status, "score": m.verdict.score, "reason": m.verdict.reason},
        "sampling": {"temperature": how.temperature, "top_p": how.top_p, "top_k": how.top_k},
        "sample": m.rollout.sample,
        "hinted": hinted,
    }
    shown = replace(prompt, id=f"{prompt.id}/{item.stage}/{m.rollout.sample}", demonstration=m.rollout.text)
    return {**row_of(shown), "source": source}


def record(recorder: Recorder, item: Item, step: int, metrics: StepMetrics) -> SampleRow:
    """Write one line of metrics.jsonl for a piece, and return it."""
    row = SampleRow(
        stage=item.stage, stage_kind=item.kind, round=0, step=step, metrics=metrics, time=recorder.take_times()
    )
    recorder.store.metrics(row)
    recorder.track({f"{item.stage}/{k}": v for k, v in metrics.items()}, step)
    return row


def piece_path(run: Run, item: Item, number: int) -> Path:
    """Return the file of one piece's lines. It is kept, so that an interrupted last piece can be done again."""
    return run.stage_folder(item.stage) / "parts" / f"{number:05d}.jsonl"


def join_pieces(run: Run, recorder: Recorder, item: Item, total: int) -> None:
    """Write all pieces as one file. Raise DataError if they are empty, RunError if one is missing."""
    paths = [piece_path(run, item, i) for i in range(total)]
    missing = next((p for p in paths if not p.is_file()), None)
    if missing is not None:
        raise RunError(f"{missing} is missing, and the stage cannot end without it; start under another name")
    content = b"".join(p.read_bytes() for p in paths)
    if not content:
        raise DataError(
            f"{item.label}: no answer was kept, so a later stage has nothing to train on; sample more (sample.samples, "
            "sample.prompts), lower sample.keep.min_score, or train the policy further first"
        )
    if run.ranks.is_first:
        write_atomic(run.stage_folder(item.stage) / DEMONSTRATIONS, content)
    run.ranks.barrier()
    number = content.count(b"\n")
    recorder.say(f"{item.label}: kept {number} answers; {DEMONSTRATIONS} of this stage has them")


KIND = StageKind(SampleConfig, run)


REASONS = ("ungraded", "wrong", "truncated", "empty", "duplicate", "surplus")


def select_answers(members: Sequence[ScoredRollout], rules: KeepConfig) -> tuple[list[ScoredRollout], dict[str, int]]:
    """Return the selected members, those of the highest score first, and the number left out by reason.

    A grader's failure is "ungraded": it is not a wrong answer. Of equal answers the best is selected.

    Raises: DataError for an episode of several turns.
    """
    require_single((m.rollout for m in members), "a demonstration (stage sample)")
    counts = dict.fromkeys(REASONS, 0)
    candidates: list[ScoredRollout] = []
    for m in members:
        reason = _reason_to_drop(m, rules)
        if reason is None:
            candidates.append(m)
        else:
            counts[reason] += 1
    # Limits of one answer are applied first; those between answers depend on the order.
    kept: list[ScoredRollout] = []
    seen: set[str] = set()
    for m in sorted(candidates, key=lambda m: -m.verdict.score):
        text = normalise(m.rollout.text) if rules.distinct == "normalised" else m.rollout.text.strip()
        if text in seen:
            counts["duplicate"] += 1
        elif len(kept) == rules.max_per_prompt:
            counts["surplus"] += 1
        else:
            kept.append(m)
            seen.add(text)
    return kept, counts


def _reason_to_drop(m: ScoredRollout, rules: KeepConfig) -> str | None:
    """Return why this answer by itself is dropped; None if it is not."""
    if m.verdict.is_left_out:
        return "ungraded"
    if m.verdict.status != "graded" or m.verdict.score < rules.min_score:
        return "wrong"
    if m.rollout.finish_reason == "length" and not rules.truncated:
        return "truncated"
    return None if m.rollout.text.strip() else "empty"
