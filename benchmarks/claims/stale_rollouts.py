"""Responses of weights that are a few updates old cost no accuracy."""

from __future__ import annotations

from benchmarks.claims.claim import Arm, Claim, within
from benchmarks.claims.reading import pass_1_less

DEMO = "configs/demo.yaml"


CLAIM = Claim(
    name="stale_rollouts",
    title="Rollouts of weights up to four updates old cost no accuracy",
    source="arXiv:2505.24298",
    published="AReaL, 1.5B on mathematics: a staleness of 4 with the decoupled objective is within about a point of "
    "none",
    test="the demo's RL, 300,000 tokens; every batch is sampled in step with the policy, or by weights at most "
    "four updates old, with the ratios to those weights. The policy has 0.4M parameters.",
    statistic="held-out pass@1 (mean of both domains) after RL, staleness 4 less 0, for each seed",
    rule="holds if the 95% interval over seeds is within +-0.05; fails if all of it is beyond",
    arms=(
        Arm("none", DEMO, ("rl.max_tokens=300000",)),
        Arm(
            "four behind",
            DEMO,
            (
                "rollout.max_staleness=4",
                "rl.max_tokens=300000",
            ),
        ),
    ),
    seeds=3,
    value=pass_1_less("four behind", "none"),
    judge=within(0.05),
)
