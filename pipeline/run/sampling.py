"""The way in which the responses of a training step are sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence

from verizero.pipeline.rl.controllers import decayed_temperature
from verizero.pipeline.rollout.continuation import ResponseKind
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import Generation, generate_rollouts
from verizero.pipeline.run.session import StageSetup
from verizero.pipeline.run.state import RunState
from verizero.pipeline.types import Prompt

PROBE_TOKENS = 4
"""Tokens of the responses by which an engine is timed."""


def temperature(setup: StageSetup, state: RunState, steps_ahead: int = 0) -> float:
    """Return the sampling temperature of this step or a later one; it goes linearly to `temperature_end`."""
    start = setup.config.rollout.temperature
    if setup.parts is None:
        return start
    # The last step has the end temperature exactly; a stage of one step divides by 1.
    last_step = max(1, setup.rounds.rounds * setup.rounds.steps_per_round - 1)
    share_done = min(1.0, (state.step_in_stage + steps_ahead) / last_step)
    return decayed_temperature(start, setup.parts.temperature_end, share_done)


def sampling(setup: StageSetup, at_temperature: float) -> Sampling:
    """Return how responses are sampled, and what is recorded of that for training to replay."""
    how, masks = setup.config.rollout, None if setup.parts is None else setup.parts.masks
    return Sampling(
        how.max_response_tokens,
        at_temperature,
        how.top_p,
        how.top_k,
        max_kept=how.max_kept if masks is not None and masks.keep_sampling else 0,
        keep_routing=setup.keeps_routing,
    )


def response_kinds(setup: StageSetup, at_temperature: float) -> list[ResponseKind]:
    """Return the kinds of responses to each prompt of a step: a group, and a greedy one if it is the baseline."""
    kinds = [ResponseKind("rl", setup.rounds.group_size, sampling(setup, at_temperature))]
    if setup.parts is not None and setup.parts.needs_greedy:
        kinds.append(ResponseKind("rl greedy", 1, Sampling(setup.config.rollout.max_response_tokens, temperature=0)))
    return kinds


def seconds_per_token(generation: Generation, prompts: Sequence[Prompt], samples: int, longest: int) -> float:
    """Measure the seconds that one more token of all responses takes, by a short generation.

    `longest`: the most tokens that a response has.
    """
    begun = time.monotonic()
    generate_rollouts(generation, prompts, samples, Sampling(min(PROBE_TOKENS, longest)), "probe")
    return (time.monotonic() - begun) / PROBE_TOKENS
