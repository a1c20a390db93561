"""Reinforcement learning with verifiable rewards: rounds of sample, verify, select, update, publish.

The phases of one RL step are functions here. A stage that differs in some of them replaces those of `rl_phases`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from verizero.pipeline.config.episodes import longest_response
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.loop.phases import Generated, Phases, PhaseWrapper
from verizero.pipeline.loop.rounds import run_round
from verizero.pipeline.models.strictness import turn
from verizero.pipeline.rl.parts import PolicyParams
from verizero.pipeline.run.algorithm import reference_config, response_kinds
from verizero.pipeline.run.demonstrations import demonstration_rows
from verizero.pipeline.run.graders import overlaps_grading
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.rollouts import gather_groups, share_of
from verizero.pipeline.run.session import Run, Session, StageSetup, Workers
from verizero.pipeline.run.state import Item, RunState
from verizero.pipeline.run.teachers import distillation_term
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.scoring.select import GroupKind, form_groups, select
from verizero.pipeline.stages.base import StageKind
from verizero.pipeline.train.step import Settings, update
from verizero.pipeline.types import Group, Prompt, StepMetrics


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Do the steps of one round, from the step that the state names."""
    run_round(session, item, rl_phases(session).wrapped(wrap))


def rl_phases(session: Session) -> Phases:
    """Return the phases of a stage of RL."""
    run, workers, state = session.run, session.workers, session.state
    recorder, setup = session.recorder, session.setup
    train_on_groups = partial(train_on_rewards, run, workers, setup, state, recorder)
    return Phases(
        next_prompts=partial(next_prompts, workers),
        generate=partial(generate, run, workers, setup, state, recorder),
        verify=partial(verify, run, workers, setup, recorder),
        select=partial(select_groups, setup, recorder),
        update=partial(update_policy, workers, state, recorder, train_on_groups),
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

    Responses that are sampled now can be graded as they end. A batch that was sampled ahead is graded in `verify`.
    """
    source, early_grading = workers.rollouts, None
    prompts_of_rank = share_of(run.ranks, prompts).prompts
    with recorder.timed("generate"):
        if not source.in_flight and overlaps_grading(setup.config.scoring, workers.backend.model.device):
            early_grading = workers.graders.of_stage.grade_early(with_components=True)
        reader = None if early_grading is None else early_grading.add
        kinds = response_kinds(setup)
        count_response = recorder.counter(len(prompts_of_rank) * sum(kind.samples for kind in kinds))
        rollouts = source.generate(prompts_of_rank, kinds, (state.rl_step, attempt), reader, count_response)
    state.stage.num_tokens += sum(run.ranks.gather(sum(r.num_sampled for r in rollouts)))
    return Generated(rollouts, early_grading)


def verify(
    run: Run, workers: Workers, setup: StageSetup, recorder: Recorder, prompts: Sequence[Prompt], generated: Generated
) -> tuple[list[Group], GradingTally]:
    """Return the groups of all ranks with verdicts and rewards, and counts of what the graders did."""
    size, parts = setup.rounds.group_size, setup.algorithm
    share = share_of(run.ranks, prompts)
    num_sampled = len(share.prompts) * size
    with recorder.timed("verify"):
        by_id = {p.id: p for p in share.prompts}
        scored, tally = workers.graders.of_stage.score(
            by_id, generated.rollouts, with_components=True, early=generated.early_grading
        )
        groups = form_groups(share.prompts, scored[:num_sampled], size)
        if parts.needs_greedy:
            greedy = form_groups(share.prompts, scored[num_sampled:], 1)
            max_tokens = longest_response(setup.config.rollout, setup.config.episodes)
            groups = with_baseline(groups, greedy, parts.params, max_tokens)
        (groups,), tally = gather_groups(run.ranks, share, [groups], tally)
    recorder.add_seconds("graders", tally.busy_s)
    return groups, tally


def with_baseline(
    groups: Sequence[Group], greedy: Sequence[Group], params: PolicyParams, max_response_tokens: int
) -> list[Group]:
    """Return the groups with the reward of the greedy response to the same prompt.

    That reward includes the penalty on length, which `train.step.prepare` adds to the sampled ones.
    """
    out = []
    for group, greedy_group in zip(groups, greedy, strict=True):
        (member,) = greedy_group.members
        reward = member.reward
        if reward is not None:
            reward += params.length_penalty(member.rollout.num_sampled, max_response_tokens)
        out.append(replace(group, greedy_reward=reward))
    return out


def select_groups(
    setup: StageSetup, recorder: Recorder, groups: Sequence[Group]
) -> tuple[list[Group], dict[GroupKind, int]]:
    """Return the groups to train on, and the number of groups kept or dropped for each reason."""
    parts, keep = setup.algorithm, setup.rounds.select.keep
    if keep == "auto":
        keep = "informative" if parts.params.dynamic_sampling else "all"
    with recorder.timed("select"):
        kept, counts = select(groups, keep, parts.needs_components, parts.credits_turns)
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
    train_on_groups: Callable[[Sequence[Group]], StepMetrics],
    groups: Sequence[Group],
) -> StepMetrics:
    """Train the policy on the groups and return the metrics. Raise NonFiniteError if the update was refused."""
    workers.rollouts.free_memory()  # before the phase, whose peak of memory is to be the trainer's alone
    # A thread that decodes needs torch's deterministic switch in another position: `ordered` makes it wait.
    with recorder.timed("update"), turn("ordered"):
        metrics = train_on_groups(groups)
    state.policy_version += 1
    return metrics


def train_on_rewards(
    run: Run, workers: Workers, setup: StageSetup, state: RunState, recorder: Recorder, groups: Sequence[Group]
) -> StepMetrics:
    """Update the policy with the stage's algorithm on the groups' rewards, and return the metrics."""
    config, parts, backend = setup.config, setup.algorithm, workers.backend
    uses_texts = parts.params.ptx_coef > 0
    settings = Settings(
        pad_id=run.pad_id,
        temperature=config.rollout.temperature,
        micro_batch_tokens=config.train.most_tokens,
        policy_version=state.policy_version,
        max_response_tokens=longest_response(config.rollout, config.episodes),
        with_reference=reference_config(setup).schedule != "none",
        seed=run.seed,
        step=state.rl_step,
        step_in_stage=state.step_in_stage,
        texts=demonstration_rows(run, setup, recorder, state.stage.name, workers.context) if uses_texts else (),
        texts_per_update=setup.section.ptx_batch_size if uses_texts else 0,
        distillation=distillation_term(run, workers, setup, state, groups),
    )
    return update(backend, parts, groups, settings)


def publish(workers: Workers, state: RunState, recorder: Recorder) -> None:
    """Give the engine the policy's weights. Raise EngineError if it then reports another version."""
    with recorder.timed("publish"):
        workers.rollouts.publish(workers.backend, state.policy_version)


KIND = StageKind(RlConfig, run)
