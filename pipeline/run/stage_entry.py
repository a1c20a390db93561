"""Entry into a stage: its policy, its verifier, its algorithm, and its position among prompts and batches in flight."""

from __future__ import annotations

from pathlib import Path

from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import BASE
from verizero.pipeline.data.ledger import PassRateLedger
from verizero.pipeline.data.sampler import PromptSampler
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.run import collapse
from verizero.pipeline.run.algorithm import resolve_parts
from verizero.pipeline.run.build import (
    build_policy,
)
from verizero.pipeline.run.fingerprints import write_record
from verizero.pipeline.run.graders import bind_grader
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.sampling import response_kinds
from verizero.pipeline.run.schedule import position, schedule
from verizero.pipeline.run.session import Run, StageSetup, Workers
from verizero.pipeline.run.state import RunState
from verizero.pipeline.train import checkpoint
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.prepare import Controllers


def next_stage(config: RunConfig, state: RunState) -> str:
    """Return the stage of the next item: the first one before all, the last one of a finished run."""
    items = schedule(config)
    item = items[min(position(items, state.num_done, state.is_evaluated), len(items) - 1)]
    return config.stages[0].name if item.stage == BASE else item.stage


def enter_stage(run: Run, workers: Workers, state: RunState, recorder: Recorder, stage: str) -> StageSetup:
    """Start or continue a stage: write that it was started, give it its policy, and return its setup."""
    if run.ranks.is_first:
        write_record(run.folder, run.fingerprints[: run.recipe.stage_names.index(stage) + 1])
    (start,) = (s.start for s in run.recipe.stages if s.name == stage)
    if start is not None and stage != state.stage.name and state.num_done > 0:
        take_policy_of(run, workers.backend, state, start)
        recorder.say(f"{stage} starts with the policy {'of the base' if start == BASE else f'that {start} left'}")
    state.enter(stage)
    return make_setup(run, workers, state)


def take_policy_of(run: Run, backend: Backend, state: RunState, start: str) -> None:
    """Give the policy the weights at the end of the stage `start`, or those of the base.

    Raise CheckpointError if the checkpoint at that stage's end is damaged.
    """
    end = None if start == BASE else run.shared / "checkpoints" / f"{state.stage_ends[start]:08d}"
    if end is not None:
        # Checked here, as it may be much older than the one that the run resumed from.
        checkpoint.require(end)
    load_weights(run, backend, end)
    # Other weights need another version, or the engine would be trusted to have them already.
    state.policy_version += 1


def load_weights(run: Run, backend: Backend, start: Path | None) -> None:
    """Give the policy the weights of checkpoint `start`; None: of the model that the recipe starts from."""
    backend.replace_weights(build_policy(run.recipe, run.tokenizer, start))


def make_setup(run: Run, workers: Workers, state: RunState) -> StageSetup:
    """Return the setup of the stage that the state names, and let its own verifier grade, if it has one."""
    # The guard's changes are computed from the count of rollbacks, so a resume repeats them.
    config = collapse.with_turned_knobs(run.recipe.of_stage(state.stage.name), state)
    model = workers.backend.model
    parts = resolve_parts(config, model)
    controllers = None if parts is None else Controllers(parts)
    if controllers is not None and state.stage.controllers:
        controllers.load_state_dict(state.stage.controllers)
    keeps_routing = parts is not None and parts.masks.keep_routing and num_experts(model.config) is not None
    setup = StageSetup(config, parts, controllers, keeps_routing)
    reward = setup.section.reward if isinstance(setup.section, RlConfig) else None
    workers.graders.enter_stage(None if reward is None else bind_grader(run.shared, run.base_dir, reward))
    return setup


def sampler_at(run: Run, state: RunState) -> tuple[PromptSampler, PassRateLedger]:
    """Return the sampler of prompts and the ledger of their pass rates, at the position of `state`."""
    ledger, how = PassRateLedger(), run.recipe.data.sampling
    sampler = PromptSampler(run.data.train, run.seed, how.order, how.weights, ledger, how.pass_rate)
    if state.ledger is not None:
        ledger.load_state_dict(state.ledger)
    # while nothing was drawn, the prompts may have changed since the checkpoint: no stage so far depends on them
    if state.sampler is not None and any(state.sampler["drawn"].values()):
        sampler.load_state_dict(state.sampler)
    return sampler, ledger


def restore_in_flight(workers: Workers, setup: StageSetup, state: RunState) -> None:
    """Continue the batches that were being generated when the checkpoint was written."""
    # From now on the source has them; the next checkpoint asks it again.
    batches, state.in_flight = state.in_flight, []
    for batch in batches:
        workers.rollouts.restore(batch, response_kinds(setup, batch.temperature))
