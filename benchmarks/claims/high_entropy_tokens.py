"""Training on the fifth of tokens with the highest entropy suffices."""

from __future__ import annotations

from benchmarks.claims.claim import Arm, Claim, above
from benchmarks.claims.reading import pass_1_less

DEMO = "configs/demo.yaml"


CLAIM = Claim(
    name="high_entropy_tokens",
    title="The fifth of tokens with the highest entropy is enough to train on",
    source="arXiv:2506.01939",
    published="20% of the tokens: equal with Qwen3-8B, +11.0 points on AIME 2025 with Qwen3-32B",
    test="the demo's RL, 300,000 tokens; gradients of all tokens, or of the fifth with the highest entropy in each "
    "batch. The policy has 0.4M parameters.",
    statistic="held-out pass@1 (mean of both domains) after RL, a fifth of the tokens less all, for each seed",
    rule="holds if the 95% interval over seeds is above -0.02; fails if it is below -0.02",
    arms=(
        Arm("all tokens", DEMO, ("rl.max_tokens=300000",)),
        Arm(
            "a fifth",
            DEMO,
            (
                "rl.algorithm={name: grpo, kl_coef: 0.001, high_entropy_share: 0.2}",
                "rl.max_tokens=300000",
            ),
        ),
    ),
    seeds=3,
    value=pass_1_less("a fifth", "all tokens"),
    judge=above(-0.02, fails_below=-0.02),
)
