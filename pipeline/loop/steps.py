"""The phases of an RL step as functions, and `Steps`, which holds the ones that a stage uses.

A stage makes its `Steps` once a round. A caller that wants to see each phase (Prefect) wraps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from verizero.pipeline.config.episodes import longest_response
from verizero.pipeline.loop.reference import reference_config
from verizero.pipeline.rl.parts import Shaping
from verizero.pipeline.rl.shaping import length_penalty
from verizero.pipeline.run.dealing import gather_groups, share_of
from verizero.pipeline.run.demonstrations import demonstration_rows
from verizero.pipeline.run.graders import overlaps_grading
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.sampling import asked_of, temperature
from verizero.pipeline.run.session import Run, Session, StageSetup, Workers
from verizero.pipeline.run.state import RunState
from verizero.pipeline.scoring.early_grading import EarlyGrading
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.scoring.select import Reason, form_groups, select
from verizero.pipeline.train.prepare import Settings
from verizero.pipeline.train.step import update
from verizero.pipeline.types import Group, Prompt, Rollout, StepMetrics

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""(phase name, function) -> the function that is called in its place."""


def plain(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself: nobody watches the phases."""
    return function


@dataclass(frozen=True, slots=True)
class Generated:
    """The responses to this rank's prompts, and the grading of them that has already begun."""

    rollouts: list[Rollout]
    early: EarlyGrading | None
    """None if no response is graded before all are sampled."""


@dataclass(frozen=True)
class Steps:
    """The functions that a round calls, by phase."""

    next_prompts: Callable[[int], list[Prompt]]
    generate: Callable[[Sequence[Prompt], int], Generated]
    verify: Callable[[Sequence[Prompt], Generated], tuple[list[Group], GradingTally]]
    select: Callable[[Sequence[Group]], tuple[list[Group], dict[Reason, int]]]
    update: Callable[[Sequence[Group]], StepMetrics]
    publish: Callable[[], None]

    def wrapped(self, wrap: Wrap) -> Steps:
        """Return these steps with each function replaced by what `wrap` makes of it."""
        return Steps(**{f.name: wrap(f.name, getattr(self, f.name)) for f in fields(self)})


def rl_steps(session: Session) -> Steps:
    """Return the steps of a stage of RL."""
    run, workers, state = session.run, session.workers, session.state
    recorder, setup = session.recorder, session.setup
    learn = partial(train_on_rewards, run, workers, setup, state, recorder)
    return Steps(
        next_prompts=partial(next_prompts, workers),
        generate=partial(generate, run, workers, setup, state, recorder),
        verify=partial(verify, run, workers, setup, recorder),
        select=partial(select_groups, setup, recorder),
        update=partial(update_policy, workers, state, recorder, learn),
        publish=partial(publish, workers, state, recorder),
    )


def next_prompts(workers: Workers, count: int) -> list[Prompt]:
    """Return the prompts of the oldest batch in flight; if there is none, the next `count` of the sampler."""
    in_flight = workers.rollouts.in_flight
    return list(in_flight[0].prompts) if in_flight else workers.sampler.next(count)


def generate(
    run: Run,
    workers: Workers,
    setup: StageSetup,
    state: RunState,
    recorder: Recorder,
    prompts: Sequence[Prompt],
    attempt: int,
) -> Generated:
    """Return the responses to this rank's share of the prompts: a group to each prompt.

    If the algorithm's baseline is a greedy response, one to each prompt follows after all groups.

    Responses that are sampled now can be graded as they end. A batch in flight is complete, and is graded in `verify`.
    """
    source, early = workers.rollouts, None
    own = share_of(run.ranks, prompts).prompts
    with recorder.timed("generate"):
        if not source.in_flight and overlaps_grading(setup.config.scoring, workers.backend.model.device):
            early = workers.graders.of_stage.grade_early(with_components=True)
        reader = None if early is None else early.add
        asked = asked_of(setup, temperature(setup, state))
        count = recorder.counter(len(own) * sum(samples for _, samples, _ in asked))
        rollouts = source.generate(own, asked, (state.rl_step, attempt), reader, count)
    state.stage.num_tokens += sum(run.ranks.gather(sum(r.num_sampled for r in rollouts)))
    return Generated(rollouts, early)


def verify(
    run: Run,
    workers: Workers,
    setup: StageSetup,
    recorder: Recorder,
    prompts: Sequence[Prompt],
    generated: Generated,
) -> tuple[list[Group], GradingTally]:
    """Return the groups of all ranks with verdicts and rewards, and counts of what the graders did."""
    size, parts = setup.rounds.group_size, setup.algorithm
    share = share_of(run.ranks, prompts)
    own, num_sampled = share.prompts, len(share.prompts) * size
    with recorder.timed("verify"):
        by_id = {p.id: p for p in own}
        scored, tally = workers.graders.of_stage.score(
            by_id, generated.rollouts, with_components=True, early=generated.early
        )
        groups = form_groups(own, scored[:num_sampled], size)
        if parts.needs_greedy:
            most = longest_response(setup.config.rollout, setup.config.episodes)
            groups = with_baseline(groups, form_groups(own, scored[num_sampled:], 1), parts.shaping, most)
        (groups,), tally = gather_groups(run.ranks, share, [groups], tally)
    recorder.count("graders", tally.busy_s)
    return groups, tally


def with_baseline(
    groups: Sequence[Group], greedy: Sequence[Group], shaping: Shaping, max_response_tokens: int
) -> list[Group]:
    """Return the groups with the reward of the greedy response to the same prompt.

    That reward is shaped for its length as the sampled ones will be.
    """
    out = []
    for group, greedy_group in zip(groups, greedy, strict=True):
        (member,) = greedy_group.members
        reward = member.reward
        if reward is not None:
            reward += length_penalty(shaping, member.rollout.num_sampled, max_response_tokens)
        out.append(replace(group, greedy_reward=reward))
    return out


def select_groups(
    setup: StageSetup, recorder: Recorder, groups: Sequence[Group]
) -> tuple[list[Group], dict[Reason, int]]:
    """Return the groups that teach something, and how many were kept or dropped for which reason."""
    parts, keep = setup.algorithm, setup.rounds.select.keep
    if keep == "auto":
        keep = "informative" if parts.dynamic_sampling else "all"
    with recorder.timed("select"):
        kept, counts = select(groups, keep, by_components=parts.needs_components)
        if parts.needs_greedy:  # without the baseline's reward there is no advantage
            num_before = len(kept)
            kept = [g for g in kept if g.greedy_reward is not None]
            counts["infrastructure"] += num_before - len(kept)
            counts["kept"] -= num_before - len(kept)
        return kept, counts


def update_policy(
    workers: Workers,
    state: RunState,
    recorder: Recorder,
    learn: Callable[[Sequence[Group]], StepMetrics],
    groups: Sequence[Group],
) -> StepMetrics:
    """Train on the groups with `learn` and return its metrics. Raise NonFiniteError if the update was refused."""
    with recorder.timed("update"):
        workers.rollouts.free_memory()
        metrics = learn(groups)
    state.policy_version += 1
    return metrics


def train_on_rewards(
    run: Run, workers: Workers, setup: StageSetup, state: RunState, recorder: Recorder, groups: Sequence[Group]
) -> StepMetrics:
    """Update the policy with the stage's algorithm on the groups' rewards, and return the metrics."""
    config, parts, backend = setup.config, setup.algorithm, workers.backend
    assert setup.controllers is not None
    uses_texts = parts.terms.ptx_coef > 0
    settings = Settings(
        pad_id=run.pad_id,
        temperature=temperature(setup, state),
        micro_batch_tokens=config.train.micro_batch_tokens,
        policy_version=state.policy_version,
        max_response_tokens=longest_response(config.rollout, config.episodes),
        controllers=setup.controllers,
        with_reference=reference_config(setup).schedule != "none",
        seed=run.seed,
        step=state.rl_step,
        texts=demonstration_rows(run, setup, recorder, state.stage.name, workers.context) if uses_texts else (),
        texts_per_update=setup.section.ptx_batch_size if uses_texts else 0,
        observation_coef=config.episodes.observation_coef,
    )
    return update(backend, parts, groups, settings)


def publish(workers: Workers, state: RunState, recorder: Recorder) -> None:
    """Give the engine the policy's weights. Raise EngineError if it then reports another version."""
    with recorder.timed("publish"):
        workers.rollouts.publish(workers.backend, state.policy_version)
