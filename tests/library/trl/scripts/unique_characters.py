"""Prompts that are texts, an evaluation during training, and the saved model."""

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

dataset = Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(4) for b in range(4)]})


def reward_num_unique_chars(completions, **kwargs):
    return [len(set(completion)) for completion in completions]


training_args = GRPOConfig(
    output_dir="tiny-GRPO",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_generations=4,
    max_completion_length=8,
    num_train_epochs=1,
    learning_rate=1e-3,
    logging_steps=2,
    eval_strategy="steps",
    eval_steps=3,
    report_to="none",
)
trainer = GRPOTrainer(
    model="tiny",
    reward_funcs=reward_num_unique_chars,
    args=training_args,
    train_dataset=dataset.select(range(12)),
    eval_dataset=dataset.select(range(12, 16)),
)
trainer.train()
trainer.save_model(training_args.output_dir)
assert any("eval_reward" in row for row in trainer.state.log_history)
