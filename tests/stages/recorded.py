"""Whole runs of the tiny recipe whose phases are recorded: what each was called with, and what it returned."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.stages.sessions import rows, run_all
from tests.stages.start import ONLY_RL, start
from tests.stages.tiny import tiny
from verizero.pipeline.loop.phases import Generated
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run

SHORT = (
    *("rl.rounds=1", "rl.steps_per_round=3", "rl.select.keep=all"),
    *("evaluation.before_training=false", "evaluation.limit=1"),
)
EXPERTS = (
    "model.create.model_type=qwen3_moe",
    "model.create.config={hidden_size: 16, intermediate_size: 32, moe_intermediate_size: 16, num_hidden_layers: 2, "
    "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, max_position_embeddings: 64, num_experts: 4, "
    "num_experts_per_tok: 2, norm_topk_prob: true, tie_word_embeddings: true}",
)
"""A policy that is a mixture of experts."""
CUT = ("rollout.top_p=0.9", "rollout.top_k=12")
"""Sampling that cuts off unlikely tokens."""
V32 = "rl.algorithm={name: deepseek_v32}"
GRPO = "rl.algorithm={name: grpo, kl_coef: 0, entropy_coef: 0.05}"
"""The bonus moves the policy where no answer is right."""
Calls = dict[str, list[tuple[tuple[Any, ...], Any]]]
"""Phase -> its calls, each the arguments and the result."""


@functools.cache
def run(*overrides: str) -> tuple[list[dict[str, float]], Calls]:
    """The metrics of each RL step of the tiny recipe, and every call of each phase."""
    calls: Calls = {}

    def wrap(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            kept = result.rollouts if isinstance(result, Generated) else result
            calls.setdefault(phase, []).append((arguments, kept))
            return result

        return call

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy = [text for text in overrides if text.startswith("model.")]
        own = [start("sft.steps=60", *policy), *ONLY_RL, *SHORT, *(t for t in overrides if t not in policy)]
        with open_run(tiny(overrides=own), folder, folder, "auto", Progress()) as session:
            run_all(session, wrap)
            steps = [r["metrics"] for r in rows(session) if r["kind"] == "step" and r["stage"] == "rl"]
    return steps, calls
