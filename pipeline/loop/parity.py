"""The parity gate: the same tokens scored by engine and trainer, before any of them trains."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

import torch

from pipeline.config.sections import RolloutConfig
from pipeline.errors import RunError
from pipeline.loop.steps import sampling
from pipeline.rl.parts import Mismatch, Parts
from pipeline.rollout.collect import collect
from pipeline.run.session import Session
from pipeline.train.replay import recorded, replay_at
from pipeline.types import Rollout

QUANTILES = (0.5, 0.99)
FILE = "parity.json"
TRUNCATED = Mismatch(level="token", action="truncate", cap=2.0)
"""What `correct` adds to an algorithm that has no correction of its own (F. Yao et al. 2025)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """|log-prob by the engine - by the trainer| over the tokens of some responses, in nats."""

    mean: float
    p50: float
    p99: float
    largest: float
    num_tokens: int

    def __str__(self) -> str:
        return f"mean {self.mean:.2e}, p99 {self.p99:.2e}, largest {self.largest:.2e} over {self.num_tokens} tokens"


def action_of(config: RolloutConfig) -> str:
    """What the recipe wants done where engine and trainer differ: off, warn, correct or stop."""
    if config.parity.action == "auto":
        return "off" if config.engine == "torch" else "correct"
    return config.parity.action


def corrected(parts: Parts, config: RolloutConfig) -> Parts:
    """The algorithm with truncated importance sampling, where the recipe asks for it and it has no correction.

    It is on from the first step whatever the gate finds, so that a run that goes on does what it did before; where
    engine and trainer agree, its weights are 1.
    """
    if action_of(config) != "correct" or parts.mismatch.level != "none":
        return parts
    return replace(parts, mismatch=TRUNCATED)


def gap_of(session: Session, rollouts: list[Rollout], temperature: float) -> Gap:
    """How far the engine's log-probs of these responses are from the trainer's."""
    found = [_differences(session, one, temperature) for one in rollouts]
    all_of = torch.cat(found)
    p50, p99 = (float(q) for q in torch.quantile(all_of, torch.tensor(QUANTILES, dtype=all_of.dtype)))
    return Gap(float(all_of.mean()), p50, p99, float(all_of.max()), all_of.numel())


def hold_against_trainer(session: Session, temperature: float) -> Gap | None:
    """Sample some responses and compare; None where the recipe has the gate off. Written to parity.json, and said.

    Raises: RunError where they differ by more than the recipe's tolerance and it says stop.
    """
    how, action = session.config.rollout, action_of(session.config.rollout)
    if action == "off":
        return None
    prompts = session.data.train[: how.parity.num_prompts]
    asked = sampling(session)
    with session.timed("parity"):
        rollouts = collect(session.engine, session.data.renderer, prompts, 1, asked, session.config.seed, "parity")
        gap = gap_of(session, rollouts, temperature)
    differs = not gap.mean <= how.parity.tolerance
    (session.folder / FILE).write_text(json.dumps({**asdict(gap), "action": action, "differs": differs}, indent=1))
    if not differs:
        return gap
    said = f"engine and trainer differ in log-probs of the same tokens: {gap}"
    remedy = (
        "compute both in the same type (model.dtype), look for an option that only one of them has, or choose "
        "rollout.parity.action: correct"
    )
    if action == "stop":
        raise RunError(f"{said}; rollout.parity.tolerance={how.parity.tolerance:g}. {remedy}")
    session.progress.say(f"{said}; " + ("truncated importance sampling is on" if action == "correct" else remedy))
    return gap


@torch.no_grad()
def _differences(session: Session, rollout: Rollout, temperature: float) -> torch.Tensor:
    device, start = session.backend.model.device, len(rollout.prompt_ids)
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.response_ids]], device=device)
    where = torch.arange(ids.shape[1], device=device)[None] >= start
    replay = replay_at(recorded([rollout], ids.shape[1]), where)
    trainer, _ = session.backend.logprobs(ids, where, temperature, "policy", False, replay)
    return (trainer[0, start:].double().cpu() - torch.tensor(rollout.logprobs, dtype=torch.float64)).abs()
