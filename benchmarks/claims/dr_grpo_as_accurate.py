"""Dr. GRPO, without division by spread and length, is as accurate as GRPO."""

from __future__ import annotations

from benchmarks.claims.claim import Arm, Claim, within
from benchmarks.claims.reading import pass_1_less

DEMO = "configs/demo.yaml"


CLAIM = Claim(
    name="dr_grpo_as_accurate",
    title="Dr. GRPO is as accurate as GRPO",
    source="arXiv:2503.20783",
    published="Qwen2.5-1.5B on MATH: Dr. GRPO prevents wrong answers from growing, at an accuracy as high as GRPO's",
    test="the demo's RL, 300,000 tokens, one with GRPO and one with Dr. GRPO, same learning rate. Answers have a "
    "fixed length here, so only accuracy is compared. The policy has 0.4M parameters.",
    statistic="held-out pass@1 (mean of both domains) after RL, Dr. GRPO less GRPO, for each seed",
    rule="holds if the 95% interval over seeds is within +-0.05; fails if all of it is beyond",
    arms=(
        Arm("grpo", DEMO, ("rl.max_tokens=300000",)),
        Arm(
            "dr grpo",
            DEMO,
            (
                "rl.algorithm={name: dr_grpo, kl_in: loss, kl_coef: 0.001}",
                "rl.max_tokens=300000",
            ),
        ),
    ),
    seeds=3,
    value=pass_1_less("dr grpo", "grpo"),
    judge=within(0.05),
)
