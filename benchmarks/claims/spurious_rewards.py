"""Random rewards raise the accuracy of a policy that has hardly learned the task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.claims.claim import Arm, Claim, above
from benchmarks.claims.reading import pass_1

RECIPE = "benchmarks/claims/recipes/random_rewards.yaml"


def gain(runs: Mapping[str, Path]) -> float:
    """Return the gain of pass@1 with random rewards."""
    return pass_1(runs["random"], -1) - pass_1(runs["random"], 0)


CLAIM = Claim(
    name="spurious_rewards",
    title="GRPO with random rewards raises held-out accuracy",
    source="arXiv:2506.10947",
    published="MATH-500 of Qwen2.5-Math-7B: +21.4 points with random rewards (+29.1 with right ones), and none without "
    "the clip; other families of models gain little or nothing",
    test="the demo's RL, 300,000 tokens, eight minibatches a batch so that the clip acts. The reward of a response is "
    "a coin, drawn from a hash of reference and response. Evaluations grade as ever.",
    statistic="held-out pass@1 (mean of both domains) after RL less before, for each seed",
    rule="holds if the 95% interval over seeds is above 0.02; fails if it is below 0.02",
    arms=(Arm("random", RECIPE, ("rl.algorithm={name: grpo, num_minibatches: 8}", "rl.max_tokens=300000")),),
    seeds=5,
    value=gain,
    judge=above(0.02, fails_below=0.02),
)
