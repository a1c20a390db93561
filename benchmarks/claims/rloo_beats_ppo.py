"""RLOO, without a critic, ends more accurate than PPO."""

from __future__ import annotations

from benchmarks.claims.claim import Arm, Claim, above
from benchmarks.claims.reading import pass_1_less

DEMO = "configs/demo.yaml"


CLAIM = Claim(
    name="rloo_beats_ppo",
    title="RLOO ends more accurate than PPO",
    source="arXiv:2402.14740",
    published="on preference tasks with Pythia-6.9B and Llama-7B, RLOO has higher rewards and win rates than PPO, "
    "without a critic",
    test="the demo's RL, 300,000 tokens, both algorithms as their presets have them, same learning rate. Rewards "
    "are verified, not a reward model's. The policy has 0.4M parameters.",
    statistic="held-out pass@1 (mean of both domains) after RL, RLOO less PPO, for each seed",
    rule="holds if the 95% interval over seeds is above 0; fails if it is below 0",
    arms=(
        Arm(
            "rloo",
            DEMO,
            (
                "rl.algorithm={name: rloo}",
                "rl.max_tokens=300000",
            ),
        ),
        Arm(
            "ppo",
            DEMO,
            (
                "rl.algorithm={name: ppo}",
                "rl.max_tokens=300000",
            ),
        ),
    ),
    seeds=3,
    value=pass_1_less("rloo", "ppo"),
    judge=above(0.0, fails_below=0.0),
)
