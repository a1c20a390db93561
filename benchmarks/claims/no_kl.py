"""RL without a KL penalty is as accurate as with one."""

from __future__ import annotations

from benchmarks.claims.claim import Arm, Claim, above
from benchmarks.claims.reading import pass_1_less

DEMO = "configs/demo.yaml"


CLAIM = Claim(
    name="no_kl",
    title="Removing the KL penalty costs no accuracy",
    source="arXiv:2503.24290, arXiv:2503.14476",
    published="Open-Reasoner-Zero and DAPO train without a KL penalty and report results at least as good; the first "
    "ablates it",
    test="the demo's RL, 300,000 tokens, GRPO's published coefficient 0.04 and 0. The reference is the policy of "
    "the round's start. The policy has 0.4M parameters.",
    statistic="held-out pass@1 (mean of both domains) after RL, without the penalty less with it, for each seed",
    rule="holds if the 95% interval over seeds is above -0.02; fails if it is below -0.02",
    arms=(
        Arm(
            "kl 0.04",
            DEMO,
            (
                "rl.algorithm={name: grpo, kl_coef: 0.04}",
                "rl.max_tokens=300000",
            ),
        ),
        Arm(
            "no kl",
            DEMO,
            (
                "rl.algorithm={name: grpo, kl_coef: 0.0}",
                "rl.max_tokens=300000",
            ),
        ),
    ),
    seeds=3,
    value=pass_1_less("no kl", "kl 0.04"),
    judge=above(-0.02, fails_below=-0.02),
)
