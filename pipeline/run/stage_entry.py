"""The state that a stage begins or continues with: weights, verifier, algorithm, prompts and batches in flight.

`run/opening.py` calls these functions for a run that is started again, `loop/rollback.py` after a collapse.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import BASE
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.sampler import PromptLedger, PromptSampler
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.load import DTYPES, create_model, load_model, load_tokenizer, stop_at
from verizero.pipeline.models.named import model_named
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.models.unloaded import model_on_meta
from verizero.pipeline.run import collapse
from verizero.pipeline.run.algorithm import resolve_parts, response_kinds
from verizero.pipeline.run.build import device_of, first_model_path
from verizero.pipeline.run.fingerprints import write_stages_file
from verizero.pipeline.run.graders import bind_grader
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.session import Run, StageSetup, Workers
from verizero.pipeline.run.state import RunState, read_state, schedule
from verizero.pipeline.seeds import derive
from verizero.pipeline.train import checkpoint
from verizero.pipeline.train.backend import Backend


def next_stage(config: RunConfig, state: RunState) -> str:
    """Return the stage of the next item: the first one before all, the last one of a finished run."""
    items = schedule(config)
    item = next(iter(state.items_left(items)), items[-1])
    return config.stages[0].name if item.stage == BASE else item.stage


def load_policy(config: RunConfig, tokenizer: Any, start: Path | None) -> Any:
    """Return the policy with the weights of checkpoint `start`; None, or with LoRA: those of the recipe's model."""
    # On the device, the weights that become ones of 4 bits may have no room.
    device = device_of(config) if config.model.quantize is None else "cpu"
    for teacher in config.teachers:
        check_teacher(teacher, tokenizer)
    create = config.model.create
    if start is not None and config.train.lora is None:  # adapters are restored onto the base that they began on
        model = read_policy(config, str(start / "model"), device)
    elif create is not None:
        seed = derive(config.seed, "init")
        model = create_model(create.model_type, create.config, tokenizer, seed, config.model.dtype).to(device)
    else:
        model = read_policy(config, first_model_path(config), device, config.model.revision)
    return stop_at(model, Renderer(tokenizer, config.data.template).closing[1])


def read_policy(config: RunConfig, path: str, device: str, revision: str | None = None) -> Any:
    """Return the policy of a folder or hub id; its weights stay in the files where they will be read in parts.

    So are the rows of each rank, and the layers of a base that is put in bits.
    """
    if config.train.backend == "fsdp" or config.model.quantize is not None:
        model = model_on_meta(path, DTYPES[config.model.dtype], revision)
        if model is not None:
            return model
        device = "cpu"  # its whole weights may have no room on a GPU
    return load_model(path, config.model.dtype, device, revision, copies=config.model.quantize is None)


def check_teacher(path: str, tokenizer: Any) -> None:
    """Raise ConfigError if the teacher at `path` has another vocabulary than `tokenizer`."""
    theirs, ours = load_tokenizer(model_named(path, field="path of a teacher")).get_vocab(), tokenizer.get_vocab()
    if theirs != ours:
        # Equal sizes do not suffice: a token of another number would be scored as another word.
        odd = sorted(theirs.items() ^ ours.items())[0][0]
        raise ConfigError(
            f"distill: the teacher {path!r} has a vocabulary of {len(theirs)} tokens and the policy one of "
            f"{len(ours)}; they differ, first in {odd!r}. A teacher scores the policy's own tokens: use one of "
            "the same family, or distil through its answers (stage sample, endpoint)"
        )


def enter_stage(run: Run, workers: Workers, state: RunState, recorder: Recorder, stage: str) -> StageSetup:
    """Start or continue a stage: write that it was started, give it its policy, and return its setup."""
    if run.ranks.is_first:
        write_stages_file(run.rank_folder, run.fingerprints[: run.recipe.stage_names.index(stage) + 1])
    (start,) = (s.start for s in run.recipe.stages if s.name == stage)
    if start is not None and stage != state.stage.name and state.num_done > 0:
        take_policy_of(run, workers.backend, state, start)
        recorder.say(f"{stage} starts with the policy {'of the base' if start == BASE else f'that {start} left'}")
    state.enter(stage)
    return set_up_stage(run, workers, state)


def take_policy_of(run: Run, backend: Backend, state: RunState, start: str) -> None:
    """Give the policy the weights at the end of the stage `start`, or those of the base.

    Raise CheckpointError if the checkpoint at that stage's end is damaged.
    """
    end = None if start == BASE else run.folder / "checkpoints" / f"{state.stage_ends[start]:08d}"
    if end is not None:
        # Checked here, as it may be much older than the one that the run resumed from.
        checkpoint.require(end)
    load_weights(run, backend, end)
    # Other weights need another version, or the engine would be trusted to have them already.
    state.policy_version += 1


def load_weights(run: Run, backend: Backend, start: Path | None) -> None:
    """Give the policy the weights of checkpoint `start`; None: of the model that the recipe starts from."""
    backend.replace_weights(load_policy(run.recipe, run.tokenizer, start))


def set_up_stage(run: Run, workers: Workers, state: RunState) -> StageSetup:
    """Return the setup of the stage that the state names, and let its own verifier grade, if it has one."""
    # The guard's changes are computed from the count of rollbacks, so a resume repeats them.
    config = collapse.with_lower_rate(run.recipe.of_stage(state.stage.name), state)
    model = workers.backend.model
    parts = resolve_parts(config, model)
    keeps_routing = parts is not None and parts.params.keep_routing and num_experts(model.config) is not None
    setup = StageSetup(config, parts, keeps_routing)
    reward = setup.section.reward if isinstance(setup.section, RlConfig) else None
    workers.graders.enter_stage(None if reward is None else bind_grader(run.folder, run.base_dir, reward))
    return setup


def restored_sampler(run: Run, state: RunState) -> tuple[PromptSampler, PromptLedger]:
    """Return the sampler of prompts and the ledger of those attempted, at the position of `state`."""
    ledger, how = PromptLedger(), run.recipe.data.sampling
    sampler = PromptSampler(run.data.train, run.seed, how.order, how.weights)
    if state.ledger is not None:
        ledger.load_state_dict(state.ledger)
    # While nothing was drawn, the prompts may have changed since the checkpoint: no stage so far depends on them
    if state.sampler is not None and any(state.sampler["drawn"].values()):
        sampler.load_state_dict(state.sampler)
    return sampler, ledger


def restore_in_flight(workers: Workers, setup: StageSetup, state: RunState) -> None:
    """Continue the batches that were being generated when the checkpoint was written."""
    # From now on the source has them; the next checkpoint asks it again.
    batches, state.in_flight = state.in_flight, []
    for batch in batches:
        workers.rollouts.restore(batch, response_kinds(setup))


def restore_checkpoint(run: Run, workers: Workers, state: RunState, start: Path) -> None:
    """Give state, policy, sampler and engine the values of the checkpoint `start` of the present stage."""
    workers.rollouts.drop()
    vars(state).update(vars(read_state(start)))
    if run.recipe.train.lora is None:  # with LoRA the base never changed, and the backend restores the adapters
        load_weights(run, workers.backend, start)
    workers.backend.load(start)
    workers.sampler, workers.ledger = restored_sampler(run, state)
    workers.rollouts.publish(workers.backend, state.policy_version)
    workers.rollouts.wait()
