"""GSPO clips two orders of magnitude more tokens than GRPO, and still learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from benchmarks.claims.claim import Arm, Claim, above
from benchmarks.claims.reading import mean_of_steps

DEMO = "configs/demo.yaml"
CLIPPED = ("clip_fraction/low", "clip_fraction/high")


def orders(runs: Mapping[str, Path]) -> float:
    """Return log10 of GSPO's clipped share over GRPO's."""
    gspo, grpo = (mean_of_steps(runs[name], *CLIPPED) for name in ("gspo", "grpo"))
    return math.log10(gspo / max(grpo, 1e-9))


CLAIM = Claim(
    name="gspo_clips_more",
    title="GSPO clips two orders of magnitude more tokens than GRPO",
    source="arXiv:2507.18071",
    published="a share of 0.15 of the tokens is clipped under GSPO (3e-4, 4e-4), 0.0013 under GRPO; Qwen3-30B-A3B",
    test="the demo's RL, 300,000 tokens, eight minibatches a batch so that ratios move; both with their published "
    "clips. The policy is dense, has 0.4M parameters and answers in 20 to 40 tokens.",
    statistic="log10 of (mean clipped share over steps under GSPO / the same under GRPO), for each seed",
    rule="holds if the 95% interval over seeds is above 1.7 (50 times); fails if it is below 1 (10 times)",
    arms=(
        Arm("grpo", DEMO, ("rl.algorithm={name: grpo, num_minibatches: 8}", "rl.max_tokens=300000")),
        Arm("gspo", DEMO, ("rl.algorithm={name: gspo, num_minibatches: 8}", "rl.max_tokens=300000")),
    ),
    seeds=5,
    value=orders,
    judge=above(1.7, fails_below=1.0),
)
