"""The parity check: the same tokens scored by engine and trainer, before any of them trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from pipeline.config.rollout import RolloutConfig
from pipeline.errors import RunError
from pipeline.rollout.collect import collect
from pipeline.rollout.engine import Sampling
from pipeline.run.recorder import Recorder
from pipeline.run.session import Run, Workers
from pipeline.train.backend import Backend
from pipeline.train.replay import recorded, replay_at
from pipeline.types import Rollout

QUANTILES = (0.5, 0.99)
FILE = "parity.json"


@dataclass(frozen=True, slots=True)
class Gap:
    """Absolute difference between the engine's and the trainer's log-probs of some tokens, in nats."""

    mean: float
    p50: float
    p99: float
    largest: float
    num_tokens: int

    def __str__(self) -> str:
        return f"mean {self.mean:.2e}, p99 {self.p99:.2e}, largest {self.largest:.2e} over {self.num_tokens} tokens"


def check_parity(
    run: Run, workers: Workers, config: RolloutConfig, recorder: Recorder, sampling: Sampling
) -> Gap | None:
    """Sample some responses, compare the log-probs and write the gap to parity.json; None if the check is off.

    Raise RunError if the gap is above the recipe's tolerance and the recipe says stop.
    """
    dtype = run.recipe.model.dtype
    action, tolerance = config.parity_action(dtype), config.parity_tolerance(dtype)
    if action == "off":
        return None
    prompts = run.data.train[: config.parity.num_prompts]
    with recorder.timed("parity"):
        engine, renderer = workers.rollouts.engine, run.data.renderer
        rollouts = collect(engine, renderer, prompts, 1, sampling, run.seed, "parity")
        gap = gap_of(workers.backend, rollouts, sampling.temperature)
    differs = not gap.mean <= tolerance  # true for NaN too
    (run.folder / FILE).write_text(json.dumps({**asdict(gap), "action": action, "differs": differs}, indent=1))
    if not differs:
        return gap
    finding = f"engine and trainer differ in log-probs of the same tokens: {gap}"
    remedy = (
        "compute both in the same type (model.dtype), look for an option that only one of them has, or choose "
        "rollout.parity.action: correct"
    )
    if action == "stop":
        raise RunError(f"{finding}; rollout.parity.tolerance is {tolerance:g}. {remedy}")
    recorder.say(f"{finding}; " + ("truncated importance sampling is on" if action == "correct" else remedy))
    return gap


def gap_of(backend: Backend, rollouts: Sequence[Rollout], temperature: float) -> Gap:
    """Return how far the engine's log-probs of these responses are from the trainer's."""
    gaps = torch.cat([_differences(backend, rollout, temperature) for rollout in rollouts])
    p50, p99 = (float(q) for q in torch.quantile(gaps, torch.tensor(QUANTILES, dtype=gaps.dtype)))
    return Gap(float(gaps.mean()), p50, p99, float(gaps.max()), gaps.numel())


@torch.no_grad()
def _differences(backend: Backend, rollout: Rollout, temperature: float) -> torch.Tensor:
    device, start = backend.model.device, len(rollout.prompt_ids)
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.response_ids]], device=device)
    where = torch.arange(ids.shape[1], device=device)[None] >= start
    replay = replay_at(recorded([rollout], ids.shape[1]), where)
    trainer, _ = backend.logprobs(ids, where, temperature, "policy", False, replay)
    return (trainer[0, start:].double().cpu() - torch.tensor(rollout.logprobs, dtype=torch.float64)).abs()
