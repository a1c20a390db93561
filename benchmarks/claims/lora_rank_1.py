"""LoRA of rank 1 learns as much by RL as training all weights does."""

from __future__ import annotations

from benchmarks.claims.claim import Arm, Claim, within
from benchmarks.claims.reading import pass_1_less

DEMO = "configs/demo.yaml"


CLAIM = Claim(
    name="lora_rank_1",
    title="LoRA of rank 1 learns as much by RL as training all weights",
    source="https://thinkingmachines.ai/blog/lora/ (2025)",
    published="on MATH and GSM8K with Llama-3.1-8B, rank 1 reaches the reward of full fine-tuning, at a learning rate "
    "about ten times as high; alpha 32, adapters on all layers",
    test="the demo's RL, 300,000 tokens; rank 1 with alpha 32 on all linear layers at ten times the demo's learning "
    "rate. The policy has 0.4M parameters, so rank 1 is a far larger share of them than there.",
    statistic="held-out pass@1 (mean of both domains) after RL, rank 1 less all weights, for each seed",
    rule="holds if the 95% interval over seeds is within +-0.05; fails if all of it is beyond",
    arms=(
        Arm("all weights", DEMO, ("rl.max_tokens=300000",)),
        Arm(
            "rank 1",
            DEMO,
            ("rl.max_tokens=300000", "train.lora={rank: 1, alpha: 32}", "rl.optimizer.learning_rate=4e-3"),
        ),
    ),
    seeds=5,
    value=pass_1_less("rank 1", "all weights"),
    judge=within(0.05),
)
