"""No arguments but model, reward and data; prompts are messages."""

from datasets import Dataset
from trl import GRPOTrainer

dataset = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": "what is 2+3?"}], "solution": "5"}],
)


def has_solution(completions, solution, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [
        float(right in content) + 0.01 * len(set(content)) for content, right in zip(contents, solution, strict=True)
    ]


trainer = GRPOTrainer(
    model="tiny",
    reward_funcs=has_solution,
    train_dataset=dataset,
)
trainer.train()
