"""The parity check: engine and trainer must give the same tokens the same log-probs, before training and in it.

Before the first step it scores responses of its own. Some faults show only later: adapters that are merged into a base
in 4 bits, which is then rounded again, change nothing while they are zero. So it also reads each step's own difference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from verizero.pipeline.config.rollout import RolloutConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.report.row_types import Numbers
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import generate_rollouts
from verizero.pipeline.rows import TrainedRow, trained_rows
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.session import Run, Workers
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.replay import collate_records, replay_at
from verizero.pipeline.types import Rollout

QUANTILES = (0.5, 0.99)
FILE = "parity.json"
NUM_PROMPTS = 8
"""Prompts that the check answers, each once."""


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
    """Sample some responses, compare their log-probs by engine and trainer, and write the gap to parity.json.

    Return None if the check is off. Raise RunError if the gap is above the tolerance and the recipe says stop.
    """
    dtype = run.recipe.model.dtype
    action, tolerance = config.parity_action(dtype), config.parity_tolerance(dtype)
    workers.rollouts.parity = "equal"
    if action == "off":
        return None
    prompts = run.data.train[:NUM_PROMPTS]
    with recorder.timed("parity"):
        rollouts = generate_rollouts(workers.rollouts.generation, prompts, 1, sampling, "parity")
        gap = logprob_gap(workers.backend, rollouts, sampling.temperature)
    differs = not gap.mean <= tolerance  # true for NaN too
    (run.rank_folder / FILE).write_text(json.dumps({**asdict(gap), "action": action, "differs": differs}, indent=1))
    if differs:
        _report(workers, config, dtype, recorder, f"engine and trainer differ in log-probs of the same tokens: {gap}")
    return gap


def watch_parity(run: Run, workers: Workers, config: RolloutConfig, recorder: Recorder, metrics: Numbers) -> None:
    """Hold `mismatch/abs` of a step, the mean difference on tokens of the present weights, to the check's tolerance.

    Do nothing if the check is off, no token was fresh, or a difference was reported before. Raise RunError as it does.
    """
    dtype, gap = run.recipe.model.dtype, metrics.get("mismatch/abs", 0.0)
    if config.parity_action(dtype) == "off" or workers.rollouts.parity == "differs":
        return
    if not gap <= config.parity_tolerance(dtype):
        finding = (
            f"{recorder.step_label}: engine and trainer differ by {gap:.2e} nats a token, and did not at the start; "
            "the engine computes with other weights than the trainer's"
        )
        _report(workers, config, dtype, recorder, finding)


def _report(workers: Workers, config: RolloutConfig, dtype: str, recorder: Recorder, finding: str) -> None:
    """Say what was found, once; raise RunError if the recipe says stop."""
    workers.rollouts.parity = "differs"
    action, tolerance = config.parity_action(dtype), config.parity_tolerance(dtype)
    remedy = (
        "compute both in the same type (model.dtype), look for an option that only one of them has, or choose "
        "rollout.parity.action: correct"
    )
    if action == "stop":
        raise RunError(f"{finding}; rollout.parity.tolerance is {tolerance:g}. {remedy}")
    recorder.say(f"{finding}; " + ("truncated importance sampling is on" if action == "correct" else remedy))


def logprob_gap(backend: Backend, rollouts: Sequence[Rollout], temperature: float) -> Gap:
    """Return the gap between the engine's and the trainer's log-probs of the sampled tokens of these rollouts."""
    rows = [row for rollout in rollouts for row in trained_rows(rollout)]
    gaps = torch.cat([_absolute_differences(backend, row, temperature) for row in rows])
    p50, p99 = (float(q) for q in torch.quantile(gaps, torch.tensor(QUANTILES, dtype=gaps.dtype)))
    return Gap(float(gaps.mean()), p50, p99, float(gaps.max()), gaps.numel())


@torch.no_grad()
def _absolute_differences(backend: Backend, row: TrainedRow, temperature: float) -> torch.Tensor:
    """Return [N]: |log-prob by the trainer - log-prob by the engine| of the N sampled tokens of a row."""
    device = backend.model.device
    ids_1_T = torch.tensor([row.ids], device=device)
    mask_1_T = torch.zeros(ids_1_T.shape, dtype=torch.bool, device=device)
    for span in row.spans:
        mask_1_T[0, span.start : span.stop] = True
    replay = replay_at(collate_records([row], ids_1_T.shape[1]), mask_1_T)
    logprobs_1_T, _ = backend.logprobs(ids_1_T, mask_1_T, temperature, "policy", False, replay)
    engine_logprobs_N = torch.tensor([x for span in row.spans for x in span.turn.logprobs], dtype=torch.float64)
    return (logprobs_1_T[mask_1_T].double().cpu() - engine_logprobs_N).abs()
