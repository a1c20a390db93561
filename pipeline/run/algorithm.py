"""The algorithm of a stage with the recipe's numbers, when its reference moves, and how its responses are sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from verizero.pipeline.config.episodes import longest_response
from verizero.pipeline.config.pairs import loop_parts
from verizero.pipeline.config.rl import RlConfig, parts_of
from verizero.pipeline.config.rollout import RolloutConfig
from verizero.pipeline.config.run import RECORDING_ENGINES, RunConfig
from verizero.pipeline.config.stages import ReferenceConfig, RoundsConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.routing import num_experts, unreplayable
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import Generation, ResponseKind, generate_rollouts
from verizero.pipeline.run.session import StageSetup
from verizero.pipeline.types import Prompt


def resolve_parts(config: RunConfig, model: Any = None) -> Parts | None:
    """Return the algorithm's parts with the recipe's numbers filled in; None for a stage not in rounds.

    `config`: a recipe of that stage alone.

    Raise ConfigError for an algorithm that needs what this recipe, or `model` if it is given, cannot provide.
    """
    section = config.section_of(config.stages[0])
    if not isinstance(section, RlConfig):
        return loop_parts(section.groups_differ) if isinstance(section, RoundsConfig) else None
    from verizero.pipeline.algorithms.base import weighted

    parts = weighted(parts_of(section), config.scoring.weights)
    if model is not None:
        check_routing(parts, model, config.rollout.engine, config.train.recomputes)
    longest = longest_response(config.rollout, config.episodes)
    return with_correction(parts, config.rollout, config.model.dtype).resolve(longest)


def reference_config(setup: StageSetup) -> ReferenceConfig:
    """Return the schedule of a stage's reference: the recipe's, else the algorithm's."""
    rounds, params = setup.rounds, setup.algorithm.params
    return rounds.reference or ReferenceConfig(schedule=params.schedule if rounds.has_reference else "none")


def check_routing(parts: Parts, model: Any, engine: str, recomputes: bool = False) -> None:
    """Raise ConfigError if the routing of a mixture of experts is to be kept and cannot be recorded or replayed.

    A dense model has no routing, so the option asks for nothing there. `recomputes`: activations are computed again in
    the backward pass, when nothing is replayed any more.
    """
    experts = num_experts(model.config)
    if not parts.params.keep_routing or experts is None:
        return
    # Replay needs both sides: an engine that records, and layers that take the record.
    why = unreplayable(model) if engine in RECORDING_ENGINES else f"rollout.engine={engine!r} does not record it"
    if recomputes:
        why = "train.gradient_checkpointing computes activations again without it (set that to false, or this)"
    if why is not None:
        raise ConfigError(
            f"rl.algorithm.keep_routing is on, and the policy is a mixture of {experts} experts whose routing cannot "
            f"be kept: {why}; set rl.algorithm.keep_routing: false"
        )


def with_correction(parts: Parts, config: RolloutConfig, dtype: str) -> Parts:
    """Return the algorithm with truncated importance sampling where the recipe asks for it, or stale rows need it.

    The recipe asks with `rollout.parity.action: correct`, the decoupled objective needs it for stale rows; an algorithm
    with another correction keeps that one. It is on from the first step whatever the parity check finds,
    so that a resumed run does what it did before. Its weights are 1 where engine and trainer agree. `dtype`: the
    policy's.
    """
    needs_weights = parts.params.mismatch_stale == "decoupled" or config.parity_action(dtype) == "correct"
    if not needs_weights or parts.params.compares_engine:
        return parts
    return parts.with_params(mismatch_level="token", mismatch_action="truncate", mismatch_cap=2.0)


PROBE_TOKENS = 4
"""Tokens of the responses by which an engine is timed."""


def sampling(setup: StageSetup) -> Sampling:
    """Return how responses are sampled, and what is recorded of that for training to replay."""
    how = setup.config.rollout
    return Sampling(
        how.max_response_tokens,
        how.temperature,
        how.top_p,
        how.top_k,
        max_kept=how.max_kept if setup.parts is not None and setup.parts.params.keep_sampling else 0,
        keep_routing=setup.keeps_routing,
    )


def response_kinds(setup: StageSetup) -> list[ResponseKind]:
    """Return the kinds of responses to each prompt of a step: a group, and a greedy one if it is the baseline."""
    kinds = [ResponseKind("rl", setup.rounds.group_size, sampling(setup))]
    if setup.parts is not None and setup.parts.needs_greedy:
        kinds.append(ResponseKind("rl greedy", 1, Sampling(setup.config.rollout.max_response_tokens, temperature=0)))
    return kinds


def seconds_per_token(generation: Generation, prompts: Sequence[Prompt], samples: int, longest: int) -> float:
    """Measure the seconds of one more token of all responses. `longest`: the most tokens of a response."""
    begun = time.monotonic()
    generate_rollouts(generation, prompts, samples, Sampling(min(PROBE_TOKENS, longest)), "probe")
    return (time.monotonic() - begun) / PROBE_TOKENS
