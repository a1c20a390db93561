"""Several functions: of tokens, by a pattern, of a column, for some tasks only, asynchronous; with weights."""

import asyncio
import re

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

rows = [
    {
        "prompt": [{"role": "system", "content": "add"}, {"role": "user", "content": f"{a}+{a}="}],
        "ground_truth": str(2 * a),
        "task": "math" if a % 2 else "coding",
    }
    for a in range(4)
]


def longer_is_better(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def has_format(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.search(r"\d", content) else 0.0 for content in contents]


def is_right(prompts, completions, ground_truth, **kwargs):
    assert all(prompt[-1]["role"] == "user" for prompt in prompts)
    return [float(c[0]["content"].strip() == right) for c, right in zip(completions, ground_truth, strict=True)]


def math_only(prompts, completions, task, **kwargs):
    return [float(len(c[0]["content"])) if t == "math" else None for c, t in zip(completions, task, strict=True)]


async def slow(prompts, completions, **kwargs):
    await asyncio.sleep(0.01)
    return [float("=" in c[0]["content"]) for c in completions]


trainer = GRPOTrainer(
    model="tiny",
    reward_funcs=[longer_is_better, has_format, is_right, math_only, slow],
    args=GRPOConfig(
        output_dir="several",
        reward_weights=[0.1, 1.0, 1.0, 0.1, 0.5],
        num_generations=4,
        max_completion_length=8,
        max_steps=2,
        learning_rate=1e-3,
    ),
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
assert "rewards/has_format/mean" in trainer.state.log_history[0], trainer.state.log_history[0]
