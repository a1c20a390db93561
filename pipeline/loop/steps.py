"""The verbs of the loop, as plain functions over a session; and `Steps`, which holds the ones in use.

Whoever wants each phase seen (Prefect) passes `Steps` whose members are wrapped; everybody else passes them plain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch

from pipeline.config.data import Source, VerifierChoice
from pipeline.config.preference import OnlinePreferenceConfig
from pipeline.config.stages import DEMONSTRATIONS, RlConfig
from pipeline.data.prompts import read_demonstrations
from pipeline.data.rows import SourceCounts, row_of
from pipeline.errors import DataError
from pipeline.loop.sampled_groups import ranked
from pipeline.models.routing import num_experts
from pipeline.rl.controllers import decayed_temperature
from pipeline.rl.parts import Shaping
from pipeline.rl.shaping import length_penalty
from pipeline.rollout.collect import collect
from pipeline.rollout.continuation import Asked
from pipeline.rollout.engine import Sampling
from pipeline.run import lag
from pipeline.run.dealing import share_of, together
from pipeline.run.folder import write_left_out
from pipeline.run.rollouts import flight_of, hand_over
from pipeline.run.session import Session, stage_folder
from pipeline.run.state import Launched
from pipeline.scoring.score import Tally
from pipeline.scoring.select import Reason, form_groups, select
from pipeline.stages.pairwise import from_pairs
from pipeline.train.step import Settings, update
from pipeline.train.texts import Row
from pipeline.types import Group, Prompt, Rollout, StepMetrics

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""(phase name, function) -> the function that is called in its place."""


def plain(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself: nobody watches the phases."""
    return function


def next_prompts(session: Session, count: int) -> list[Prompt]:
    """The prompts of the oldest batch that is generated ahead; else the next `count` of the sampler."""
    waiting = None if session.runahead is None else session.runahead.oldest()
    return session.sampler.next(count) if waiting is None else list(waiting)


def generate(session: Session, prompts: Sequence[Prompt], attempt: int) -> list[Rollout]:
    """One group of responses to each prompt, prompt by prompt; then, for a greedy baseline, one greedy one to each.

    Of this rank's share of the prompts: `verify` puts together what came of all. Those generated ahead are waited for;
    of others, those that end early begin to be graded, and `verify` waits for the rest.
    """
    engine, renderer, seed = session.engine, session.data.renderer, session.config.seed
    own, step = share_of(session.ranks, prompts).prompts, session.state.rl_step
    rollouts: list[Rollout] = []
    with session.timed("generate"):
        if session.runahead is not None and session.runahead.oldest() is not None:
            rollouts = [r for kind in session.runahead.land(engine, renderer, seed) for r in kind]
        else:
            if session.runahead is not None:
                session.runahead.settle()
            session.ahead = session.grader.ahead(with_components=True) if grades_beside(session) else None
            for name, num, how in asked_of(session, temperature(session)):
                reader = None if session.ahead is None else partial(session.ahead.add, offset=len(rollouts))
                rollouts += collect(engine, renderer, own, num, how, seed, name, step, attempt, reader=reader)
    session.state.num_tokens += sum(session.ranks.gather(sum(len(r.response_ids) for r in rollouts)))
    return rollouts


def asked_of(session: Session, at_temperature: float) -> list[Asked]:
    """What each prompt of a step is asked: a group of responses, and a greedy one where that is the baseline."""
    rl = session.rounds
    asked = [("rl", rl.group_size, replace(sampling(session), temperature=at_temperature))]
    if session.parts is not None and session.parts.needs_greedy:
        asked.append(("rl greedy", 1, Sampling(session.config.rollout.max_response_tokens, temperature=0)))
    return asked


def launch(session: Session, prompts: Sequence[Prompt], number: int, steps_ahead: int) -> None:
    """Begin to generate for the step that comes after `steps_ahead` others."""
    assert session.runahead is not None
    degrees = temperature(session, steps_ahead)
    launched = Launched(list(prompts), session.state.rl_step, number, degrees)
    flight = flight_of(launched, share_of(session.ranks, prompts).prompts, asked_of(session, degrees))
    session.runahead.launch(launched, flight, session.engine, session.data.renderer, session.config.seed)


def restore_flights(session: Session) -> None:
    """What was generated ahead at the checkpoint, and not trained on yet."""
    flights, session.state.in_flight = session.state.in_flight, []
    if session.runahead is not None:
        for launched in flights:
            own = share_of(session.ranks, launched.prompts).prompts
            flight = flight_of(launched, own, asked_of(session, launched.temperature))
            session.runahead.restore(launched, flight, session.ranks)


def grades_beside(session: Session) -> bool:
    """Grade responses while others are written: as the recipe says, else where that takes no core from decoding."""
    asked = session.config.scoring.overlap
    if asked is not None:
        return asked
    if session.backend.model.device.type != "cpu":
        return True
    return usable_cores() > torch.get_num_threads()


def usable_cores() -> int:
    """How many cores this process may use; where the system does not say, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def verify(session: Session, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> tuple[list[Group], Tally]:
    """The groups with verdicts and rewards, and what graders did. What was graded beside `generate` is waited for."""
    rl, parts = session.rounds, session.parts
    assert parts is not None
    share = share_of(session.ranks, prompts)
    own, cut = share.prompts, len(share.prompts) * rl.group_size
    ahead, session.ahead = session.ahead, None
    with session.timed("verify"):
        by_id = {p.id: p for p in own}
        scored, tally = session.grader.score(by_id, rollouts, with_components=True, ahead=ahead)
        groups = form_groups(own, scored[:cut], rl.group_size)
        if parts.needs_greedy:
            most = session.config.rollout.max_response_tokens
            groups = with_baseline(groups, form_groups(own, scored[cut:], 1), parts.shaping, most)
        (groups,), tally = together(session.ranks, share, [groups], tally)
    session.count("graders", tally.busy_s)
    if isinstance(rl, OnlinePreferenceConfig):
        groups = ranked(session, groups, rl.judge, rl.judged)
    return groups, tally


def with_baseline(
    groups: Sequence[Group], greedy: Sequence[Group], shaping: Shaping, max_response_tokens: int
) -> list[Group]:
    """The groups with the reward of the greedy response to the same prompt, shaped for its length as theirs will be."""
    out = []
    for group, alone in zip(groups, greedy, strict=True):
        (one,) = alone.members
        reward = one.reward
        if reward is not None:
            reward += length_penalty(shaping, len(one.rollout.response_ids), max_response_tokens)
        out.append(replace(group, greedy_reward=reward))
    return out


def select_groups(session: Session, groups: Sequence[Group]) -> tuple[list[Group], dict[Reason, int]]:
    """The groups that train, and how many there were of each kind; one whose baseline was not graded never trains."""
    rl = session.rounds
    assert session.parts is not None
    keep = rl.select.keep
    if keep == "auto":
        keep = "informative" if session.parts.dynamic_sampling else "all"
    with session.timed("select"):
        kept, counts = select(groups, keep, by_components=session.parts.needs_components)
        if session.parts.needs_greedy:
            lost = sum(g.greedy_reward is None for g in kept)
            kept = [g for g in kept if g.greedy_reward is not None]
            counts["infrastructure"] += lost
            counts["kept"] -= lost
        return kept, counts


def update_policy(session: Session, groups: Sequence[Group]) -> StepMetrics:
    """Train on the groups; the metrics of the update. Raises: NonFiniteError if it was refused."""
    with session.timed("update"):
        rest = getattr(session.engine, "rest", None)
        if rest is not None and session.runahead is None:  # on the trainer's GPU, it gives its memory back meanwhile
            rest()
        learn = from_pairs if isinstance(session.rounds, OnlinePreferenceConfig) else from_rewards
        metrics = learn(session, groups)
    session.state.policy_version += 1
    return metrics


def from_rewards(session: Session, groups: Sequence[Group]) -> StepMetrics:
    """The update of the stage's algorithm on the groups' rewards."""
    rl = session.rounds
    assert session.parts is not None
    assert session.controllers is not None
    settings = Settings(
        pad_id=session.pad_id,
        temperature=temperature(session),
        micro_batch_tokens=session.config.train.micro_batch_tokens,
        policy_version=session.state.policy_version,
        max_response_tokens=session.config.rollout.max_response_tokens,
        controllers=session.controllers,
        with_reference=session.has_reference,
        seed=session.config.seed,
        step=session.state.rl_step,
        texts=demonstration_rows(session) if session.parts.terms.ptx_coef > 0 else (),
        texts_per_update=rl.ptx_batch_size if isinstance(rl, RlConfig) else 0,
    )
    return update(session.backend, session.parts, groups, settings)


def sampling(session: Session) -> Sampling:
    """How this step's responses are drawn, and what is recorded of that for training to replay."""
    how, masks = session.config.rollout, None if session.parts is None else session.parts.masks
    experts = num_experts(session.backend.model.config)
    return Sampling(
        how.max_response_tokens,
        temperature(session),
        how.top_p,
        how.top_k,
        max_kept=how.max_kept if masks is not None and masks.keep_sampling else 0,
        keep_routing=masks is not None and masks.keep_routing and experts is not None,
    )


def demonstration_rows(session: Session) -> list[Row]:
    """The demonstrations that the present stage trains on, in tokens; made at its first use of them.

    What is left out is said and written down. Raises: DataError where nothing is left.
    """
    if session.demonstrations is None:
        stage, (prompts, left_out) = session.state.stage, demonstrations(session)
        session.demonstrations, counts = rows_of(session, prompts)
        if left_out or counts.left_out:
            write_left_out(session, stage, [*left_out, *counts.left_out])
        if counts.skipped:
            session.progress.say(f"{stage}: {counts}")
        if not session.demonstrations:
            raise DataError(
                f"stage {stage!r} has no demonstration that fits: {counts}; shorten them, or use a model with a longer "
                "context"
            )
    return session.demonstrations


def demonstrations(session: Session) -> tuple[list[Prompt], Sequence[tuple[Any, str]]]:
    """Those that an earlier stage left, where an SFT stage names one; else those of the data; and what was left out."""
    config = session.config
    if config.stages[0].kind != "sft" or config.sft is None or config.sft.demonstrations is None:
        return session.data.demonstrations, session.data.left_out
    file = (stage_folder(session, config.sft.demonstrations) / DEMONSTRATIONS).resolve()
    # nothing is graded: a plain verifier stands for the rows' own, whose parameters are not in the file
    left = Source(file=str(file), verifier=VerifierChoice(name="exact"))
    read = read_demonstrations((left,), (), config.seed)
    return read.prompts, read.left_out


def rows_of(session: Session, prompts: Sequence[Prompt]) -> tuple[list[Row], SourceCounts]:
    """Prompt and demonstration in tokens, the prompt not trained on; those longer than the context are left out."""
    renderer, limit = session.data.renderer, getattr(session.backend.model.config, "max_position_embeddings", None)
    rows: list[Row] = []
    counts = SourceCounts("demonstrations", len(prompts), what="of them kept")
    for p in prompts:
        asked, shown = renderer.prompt_ids(p), renderer.demonstration_ids(p)
        length = len(asked) + len(shown)
        if limit is None or length <= limit:
            rows.append(((*asked, *shown), len(asked)))
            continue
        said = f"{p.id}: {length} tokens, and the model's context is {limit}"
        counts.leave_out("past the context", said, row_of(p), f"past the context: {length} tokens of {limit}")
    counts.num_loaded = len(rows)
    return rows, counts


def publish(session: Session) -> None:
    """The engine takes the policy's weights. Raises: EngineError if it then reports another version."""
    with session.timed("publish"):
        hand_over(session, session.state.policy_version)
        lag.hold(session)


def stage_step(session: Session) -> int:
    """RL steps done in this stage."""
    return session.state.rl_step - session.state.stage_start


def temperature(session: Session, steps_ahead: int = 0) -> float:
    """The sampling temperature of this step or a later one; linear towards the algorithm's `temperature_end`."""
    start = session.config.rollout.temperature
    if session.parts is None:
        return start
    total = max(1, session.rounds.rounds * session.rounds.steps_per_round - 1)
    done = min(1.0, (stage_step(session) + steps_ahead) / total)
    return decayed_temperature(start, session.parts.temperature_end, done)


@dataclass(frozen=True)
class Steps:
    """The functions that the loop calls, by phase."""

    next_prompts: Callable[[Session, int], list[Prompt]] = next_prompts
    generate: Callable[[Session, Sequence[Prompt], int], list[Rollout]] = generate
    verify: Callable[[Session, Sequence[Prompt], Sequence[Rollout]], tuple[list[Group], Tally]] = verify
    select: Callable[[Session, Sequence[Group]], tuple[list[Group], dict[Reason, int]]] = select_groups
    update: Callable[[Session, Sequence[Group]], StepMetrics] = update_policy
    publish: Callable[[Session], None] = publish

    def wrapped(self, wrap: Wrap, only: Sequence[str] | None = None) -> Steps:
        """These steps with each function (or those in `only`) replaced by what `wrap` makes of it."""
        names = [f.name for f in fields(self)] if only is None else list(only)
        now = {f.name: getattr(self, f.name) for f in fields(self)}
        return Steps(**now | {name: wrap(name, now[name]) for name in names})
