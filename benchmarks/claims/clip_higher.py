"""A higher upper clip keeps the policy's entropy up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.claims.claim import Arm, Claim, above
from benchmarks.claims.reading import last_steps

DEMO = "configs/demo.yaml"


def difference(runs: Mapping[str, Path]) -> float:
    """Return the entropy with the upper clip at 0.28 less that at 0.2, in nats."""
    return last_steps(runs["clip 0.28"], "entropy") - last_steps(runs["clip 0.2"], "entropy")


CLAIM = Claim(
    name="clip_higher",
    title="A higher upper clip keeps entropy up",
    source="arXiv:2503.14476, section 3.1",
    published="with Qwen2.5-32B the entropy falls towards 0 under a clip of 0.2, and stays up with an upper clip of "
    "0.28",
    test="the demo's RL, 300,000 tokens, eight minibatches a batch so that ratios move; upper clip 0.2 and 0.28. "
    "The policy has 0.4M parameters.",
    statistic="mean entropy over the last quarter of the RL steps, upper clip 0.28 less 0.2, in nats a token, for each "
    "seed",
    rule="holds if the 95% interval over seeds is above 0; fails if it is below 0",
    arms=(
        Arm(
            "clip 0.2",
            DEMO,
            (
                "rl.algorithm={name: grpo, num_minibatches: 8}",
                "rl.max_tokens=300000",
            ),
        ),
        Arm(
            "clip 0.28",
            DEMO,
            (
                "rl.algorithm={name: grpo, num_minibatches: 8, clip_high: 0.28}",
                "rl.max_tokens=300000",
            ),
        ),
    ),
    seeds=3,
    value=difference,
    judge=above(0.0, fails_below=0.0),
)
