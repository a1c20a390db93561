"""Rejection sampling: graded answers of the policy or an endpoint; what is kept is left as demonstrations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.load import dump
from pipeline.config.sample import SampleConfig
from pipeline.config.stages import DEMONSTRATIONS
from pipeline.data.rejection import REASONS, kept_of
from pipeline.data.rows import row_of
from pipeline.errors import DataError, RunError
from pipeline.loop.sampled_groups import sample_groups
from pipeline.loop.steps import Steps, Wrap
from pipeline.report.files import write_atomic
from pipeline.rollout.endpoint import ask_endpoint
from pipeline.rollout.engine import Sampling
from pipeline.run.data import prompt_room
from pipeline.run.dealing import share_of, together
from pipeline.run.folder import write_lines
from pipeline.run.schedule import Item
from pipeline.run.session import Session, stage_folder
from pipeline.scoring.score import Tally
from pipeline.seeds import stream
from pipeline.stages._pairs import SAMPLED_AT_ONCE
from pipeline.stages.rl import say_failures
from pipeline.types import Group, Prompt, ScoredRollout, StepMetrics

HINTED = "/hinted"
"""Ends the id of a prompt that is asked with its answer."""


def run(session: Session, item: Item, steps: Steps, wrap: Wrap) -> None:
    """The prompts of the stage piece by piece, from where the state says; then one file of all that was kept.

    Raises: DataError where nothing was.
    """
    section, state = session.config.sample, session.state
    assert section is not None
    prompts = chosen_prompts(session, item, section)
    if section.endpoint is None and session.engine.version != state.policy_version:
        steps.publish(session)
    total = -(-len(prompts) // SAMPLED_AT_ONCE)
    session.progress.begin(item.label, state.step, total)
    while state.step < total:
        start = state.step * SAMPLED_AT_ONCE
        some = prompts[start : start + SAMPLED_AT_ONCE]
        session.where = f"{item.label} prompts {start + 1}-{start + len(some)} of {len(prompts)}"
        lines, seen = sample_piece(session, item, some, wrap)
        write_lines(session, part_path(session, item, state.step), lines)
        state.step += 1
        record(session, item, seen)
        session.progress.advance(state.step, {"kept": seen["kept"] / max(1.0, seen["prompts"])})
        if state.step < total:
            session.save()
    session.ranks.barrier()
    join(session, item, total)


def chosen_prompts(session: Session, item: Item, section: SampleConfig) -> list[Prompt]:
    """The training prompts that this stage asks: all in order, or a choice drawn for this stage."""
    train = session.data.train
    if section.prompts is None or section.prompts >= len(train):
        return train
    return stream(session.config.seed, "sample", item.stage).sample(train, section.prompts)


def sample_piece(
    session: Session, item: Item, prompts: Sequence[Prompt], wrap: Wrap
) -> tuple[list[dict[str, Any]], StepMetrics]:
    """Lines of the answers that are kept, and the counts of all that was asked."""
    section = session.config.sample
    assert section is not None
    names = ("prompts", "solved", "responses", "correct", "unwritable", *REASONS, "kept")
    seen: StepMetrics = dict.fromkeys(names, 0.0)
    seen["prompts"] = float(len(prompts))
    lines: list[dict[str, Any]] = []
    groups = wrap("sample", answered)(session, item, prompts, seen)
    solved = _keep(session, item, {p.id: p for p in prompts}, groups, lines, seen)
    asked = [p for p in prompts if p.id not in solved] if section.hint is not None else []
    sayable = [p for p in asked if answer_of(p) is not None]
    seen["no_answer_to_hint"] = float(len(asked) - len(sayable))
    hinted, seen["too_long_with_hint"] = with_hint(session, sayable, section.hint or "")
    if hinted:
        again = wrap("sample", answered)(session, item, hinted, seen)
        plain = {p.id + HINTED: p for p in asked}
        seen["solved_with_hint"] = float(len(_keep(session, item, plain, again, lines, seen)))
    seen["solved"] = float(len(solved))
    return lines, seen


def answered(session: Session, item: Item, prompts: Sequence[Prompt], seen: StepMetrics) -> list[Group]:
    """The prompts with their graded answers; what graders did is said and counted."""
    section = session.config.sample
    assert section is not None
    if section.endpoint is None:
        groups, tally = sample_groups(session, prompts, section.samples, item.stage)
    else:
        groups, tally = _of_endpoint(session, item, prompts, seen)
    say_failures(session, tally, groups, "none was kept, none was counted as wrong")
    for group in groups:
        graded = [m.verdict.is_correct for m in group.members if not m.verdict.is_infrastructure]
        seen["responses"] += len(group.members)
        seen["correct"] += sum(graded)
        if not group.prompt.id.endswith(HINTED) and section.endpoint is None:
            session.ledger.record(group.prompt.id, len(graded), sum(graded))
    return groups


def answer_of(prompt: Prompt) -> str | None:
    """The reference as a hint can say it; None for what is no text or number, e.g. tests of a program."""
    reference = prompt.reference
    if isinstance(reference, Mapping):
        reference = reference.get("answer")
    return str(reference) if isinstance(reference, str | int | float) else None


def with_hint(session: Session, prompts: Sequence[Prompt], hint: str) -> tuple[list[Prompt], float]:
    """The prompts with their answers in the question; and how many are then too long for the model's context."""
    room = prompt_room(session.config, getattr(session.backend.model.config, "max_position_embeddings", None))
    hinted = [
        replace(
            p,
            id=p.id + HINTED,
            question=hint.replace("{answer}", answer_of(p) or "").replace("{question}", p.question),
        )
        for p in prompts
    ]
    fitting = [p for p in hinted if room is None or len(session.data.renderer.prompt_ids(p)) <= room]
    return fitting, float(len(hinted) - len(fitting))


def _of_endpoint(
    session: Session, item: Item, prompts: Sequence[Prompt], seen: StepMetrics
) -> tuple[list[Group], Tally]:
    section, how = session.config.sample, session.config.rollout
    assert section is not None
    assert section.endpoint is not None
    share = share_of(session.ranks, prompts)
    sampling = Sampling(how.max_response_tokens, how.temperature, how.top_p)
    with session.timed("generate"):
        found = ask_endpoint(
            section.endpoint,
            share.prompts,
            section.samples,
            sampling,
            session.data.renderer.text_ids,
            session.config.seed,
            item.stage,
        )
    seen["unwritable"] += sum(session.ranks.gather(found.unwritable))
    with session.timed("verify"):
        by_id = {p.id: p for p in share.prompts}
        scored, tally = session.scorer.score(by_id, [r for some in found.rollouts for r in some])
        rest = iter(scored)
        own = [Group(p, tuple(next(rest) for _ in some)) for p, some in zip(share.prompts, found.rollouts, strict=True)]
        (groups,), tally = together(session.ranks, share, [own], tally)
    session.count("graders", tally.busy_s)
    return groups, tally


def _keep(
    session: Session,
    item: Item,
    plain: dict[str, Prompt],
    groups: Sequence[Group],
    lines: list[dict[str, Any]],
    seen: StepMetrics,
) -> set[str]:
    """Ids of the prompts of which an answer was kept; its lines are added. `plain`: the prompt that a line is of."""
    section = session.config.sample
    assert section is not None
    solved: set[str] = set()
    for group in groups:
        kept, left_out = kept_of(group.members, section.keep)
        prompt = plain[group.prompt.id]
        hinted = group.prompt.id != prompt.id
        lines += [line_of(session, item, prompt, m, hinted) for m in kept]
        seen["kept"] += len(kept)
        for reason, number in left_out.items():
            seen[reason] += number
        solved |= {prompt.id} if kept else set()
    return solved


def line_of(session: Session, item: Item, prompt: Prompt, m: ScoredRollout, hinted: bool) -> dict[str, Any]:
    """A row as in a user's own file, and where its demonstration comes from."""
    section, how = session.config.sample, session.config.rollout
    assert section is not None
    endpoint = section.endpoint
    source = {
        "stage": item.stage,
        "model": "policy" if endpoint is None else endpoint.model,
        "policy_version": None if endpoint is not None else m.rollout.policy_version,
        "recipe": recipe_hash(session),
        "verdict": {"status": m.verdict.status, "score": m.verdict.score, "reason": m.verdict.reason},
        "sampling": {"temperature": how.temperature, "top_p": how.top_p, "top_k": how.top_k},
        "sample": m.rollout.sample,
        "hinted": hinted,
    }
    shown = replace(prompt, id=f"{prompt.id}/{item.stage}/{m.rollout.sample}", demonstration=m.rollout.text)
    return {**row_of(shown), "source": source}


def recipe_hash(session: Session) -> str:
    """sha256 of the resolved recipe, its first 16 digits."""
    return hashlib.sha256(dump(session.recipe).encode()).hexdigest()[:16]


def record(session: Session, item: Item, seen: StepMetrics) -> None:
    """One line of metrics.jsonl for the piece."""
    session.store.metrics(
        {
            "kind": "sample",
            "stage": item.stage,
            "stage_kind": item.kind,
            "round": 0,
            "step": session.state.step,
            "metrics": seen,
            "time": session.take_times(),
        }
    )
    session.track({f"{item.stage}/{k}": v for k, v in seen.items()}, session.state.step)


def part_path(session: Session, item: Item, number: int) -> Path:
    """The file of one piece's lines; they stay, so that the last piece can be done again after a break."""
    return stage_folder(session, item.stage) / "parts" / f"{number:05d}.jsonl"


def join(session: Session, item: Item, total: int) -> None:
    """Write what all pieces kept as one file. Raises: DataError where it is nothing, RunError for a lost piece."""
    paths = [part_path(session, item, i) for i in range(total)]
    missing = next((p for p in paths if not p.is_file()), None)
    if missing is not None:
        raise RunError(f"{missing} is missing, and the stage cannot end without it; start under another name")
    content = b"".join(p.read_bytes() for p in paths)
    if not content:
        raise DataError(
            f"{item.label}: no answer was kept, so a later stage has nothing to train on; sample more (sample.samples, "
            "sample.prompts), lower sample.keep.min_score, or train the policy further first"
        )
    if session.ranks.is_first:
        write_atomic(stage_folder(session, item.stage) / DEMONSTRATIONS, content)
    session.ranks.barrier()
    number = content.count(b"\n")
    session.progress.say(f"{item.label}: kept {number} answers; {DEMONSTRATIONS} of this stage has them")
