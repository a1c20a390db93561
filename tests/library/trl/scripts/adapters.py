"""A loaded model with its tokenizer, adapters, each reward normalised by itself, a KL, several updates of a batch."""

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

model = AutoModelForCausalLM.from_pretrained("tiny")
tokenizer = AutoTokenizer.from_pretrained("tiny", padding_side="left")


def digits(completions, **kwargs):
    return [float(sum(c.isdigit() for c in completion)) for completion in completions]


def letters(completions, **kwargs):
    return [float(sum(c.isalpha() for c in completion)) for completion in completions]


trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[digits, letters],
    args=GRPOConfig(
        output_dir="adapters",
        multi_objective_aggregation="normalize_then_sum",
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=3e-4,
        epsilon_high=4e-4,
        beta=0.04,
        steps_per_generation=4,
        num_generations=8,
        max_completion_length=8,
        max_steps=8,
        learning_rate=1e-3,
    ),
    train_dataset=Dataset.from_dict({"prompt": [f"{a}*{a}=" for a in range(8)]}),
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.train()
assert trainer.state.global_step == 8
