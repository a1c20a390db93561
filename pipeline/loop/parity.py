"""The parity check: the same tokens scored by engine and trainer, before any of them trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from verizero.pipeline.config.rollout import RolloutConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import generate_rollouts
from verizero.pipeline.rows import TrainedRow, trained_rows
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.session import Run, Workers
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.replay import recorded, replay_at
from verizero.pipeline.types import Rollout

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
        rollouts = generate_rollouts(workers.rollouts.generation, prompts, 1, sampling, "parity")
        gap = gap_of(workers.backend, rollouts, sampling.temperature)
    differs = not gap.mean <= tolerance  # true for NaN too
    (run.rank_folder / FILE).write_text(json.dumps({**asdict(gap), "action": action, "differs": differs}, indent=1))
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
    """Return how far the engine's log-probs of what these rollouts sampled are from the trainer's."""
    rows = [row for rollout in rollouts for row in trained_rows(rollout)]
    gaps = torch.cat([_differences(backend, row, temperature) for row in rows])
    p50, p99 = (float(q) for q in torch.quantile(gaps, torch.tensor(QUANTILES, dtype=gaps.dtype)))
    return Gap(float(gaps.mean()), p50, p99, float(gaps.max()), gaps.numel())


@torch.no_grad()
def _differences(backend: Backend, row: TrainedRow, temperature: float) -> torch.Tensor:
    device = backend.model.device
    ids = torch.tensor([row.ids], device=device)
    where = torch.zeros(ids.shape, dtype=torch.bool, device=device)
    for span in row.spans:
        where[0, span.start : span.stop] = True
    replay = replay_at(recorded([row], ids.shape[1]), where)
    trainer, _ = backend.logprobs(ids, where, temperature, "policy", False, replay)
    engine = torch.tensor([x for span in row.spans for x in span.turn.logprobs], dtype=torch.float64)
    return (trainer[where].double().cpu() - engine).abs()
