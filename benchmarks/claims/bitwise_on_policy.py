"""Engine and trainer give every sampled token the same log-prob, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.claims.claim import Arm, Claim, exactly_zero
from benchmarks.claims.reading import greatest_of_steps

DEMO = "configs/demo.yaml"


def greatest(runs: Mapping[str, Path]) -> float:
    """Return the greatest mean difference of a step, in nats."""
    return greatest_of_steps(runs["demo"], "mismatch/abs")


CLAIM = Claim(
    name="bitwise_on_policy",
    title="Engine and trainer agree on every sampled token bit for bit",
    source="https://blog.vllm.ai/2025/11/10/bitwise-consistent-train-inference.html",
    published="vLLM and TorchTitan with batch-invariant kernels, Qwen3-1.7B: a KL of exactly 0.0 in every step, 2.4 "
    "times slower",
    test="the demo's RL, 300,000 tokens, with the embedded engine and no special kernels: what they differ by as "
    "they are. The policy has 0.4M parameters.",
    statistic="mean absolute difference of log-probs, engine's less trainer's, of the step where it is greatest, for "
    "each seed",
    rule="holds if it is exactly 0 for all seeds; fails if the 95% interval over seeds is above 0",
    arms=(Arm("demo", DEMO, ("rl.max_tokens=300000",)),),
    seeds=3,
    value=greatest,
    judge=exactly_zero,
)
