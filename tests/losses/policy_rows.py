"""Random responses to two prompts, as they are and in TRL's own trainer, which has graded them; and a tiny model."""

import random

import torch
import transformers
from datasets import Dataset

from tests.trl_classes import trl_class
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.models.load import create_model, save_folder
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

LONGEST, GENERATIONS, PROMPTS = 9, 4, 2
COMMON = {
    "num_iterations": 2, "per_device_train_batch_size": GENERATIONS * PROMPTS, "num_generations": GENERATIONS,
    "max_completion_length": LONGEST, "bf16": False, "use_cpu": True, "gradient_checkpointing": False, "max_steps": 2,
    "model_init_kwargs": {"dtype": torch.float64},
}  # fmt: skip
OPTIMIZER = OptimizerConfig(learning_rate=0.02, eps=1e-2, max_grad_norm=None)
SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 640, "tie_word_embeddings": True,
}  # fmt: skip
CHARACTERS = "0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyz\\{}:?"


def save_tiny(folder):
    """Save a model of a few thousand random weights with a tokenizer of characters."""
    tokenizer = character_tokenizer(CHARACTERS)
    save_folder(create_model("qwen2", SIZES, tokenizer, 0), tokenizer, folder)


class Rows:
    """Random responses to two prompts, the same for both sides."""

    def __init__(self, end, words):
        rng = random.Random(7)
        self.prompts = [[rng.randrange(2, words) for _ in range(3 + p)] for p in range(PROMPTS)]
        self.responses = []
        for i in range(PROMPTS * GENERATIONS):
            body = [rng.randrange(2, words) for _ in range(LONGEST if i % 3 == 0 else rng.randrange(1, LONGEST - 1))]
            self.responses.append(body if len(body) == LONGEST else [*body, end])
        self.logprobs = [[-rng.uniform(2.0, 6.0) for _ in ids] for ids in self.responses]
        self.rewards = [[rng.uniform(-1, 2), float(rng.random() < 0.5)] for _ in self.responses]

    def column(self, number, completion_ids):
        """Return the rewards of these responses by one of the two functions."""
        return [self.rewards[self.responses.index(list(ids))][number] for ids in completion_ids]

    def groups(self, has_components):
        """Return the rows as this project has them, sampled by the present policy, with one reward or with both."""
        made = [[] for _ in range(PROMPTS)]
        for i, ids in enumerate(self.responses):
            prompt = i // GENERATIONS
            finish = "length" if len(ids) == LONGEST else "stop"
            rollout = Rollout(f"{prompt}", i, self.prompts[prompt], ids, self.logprobs[i], "", finish, 0)
            given = self.rewards[i] if has_components else self.rewards[i][:1]
            components = tuple(given) if has_components else ()
            made[prompt].append(ScoredRollout(rollout, Verdict("graded", 0.5), sum(given), components))
        return [Group(Prompt(str(p), "?", "exact", "x"), tuple(members)) for p, members in enumerate(made)]


def scored(folder, out, arguments, kind):
    """Return TRL's trainer `<kind>Trainer`, the inputs of its loss with advantages and old log-probs, and the rows."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = Rows(tokenizer.eos_token_id, len(tokenizer))

    def first(completion_ids, **_):
        return rows.column(0, completion_ids)

    def second(completion_ids, **_):
        return rows.column(1, completion_ids)

    def sampled(prompts, trainer):
        own = [rows.prompts[i // GENERATIONS] for i in range(len(rows.responses))]
        return {"prompt_ids": own, "completion_ids": rows.responses, "logprobs": rows.logprobs}

    data = [{"prompt": str(p)} for p in range(PROMPTS)]
    trainer = trl_class(f"{kind}Trainer")(
        model=folder,
        reward_funcs=[first, second] if "reward_weights" in arguments else first,
        args=trl_class(f"{kind}Config")(output_dir=str(out), report_to="none", **{**COMMON, **arguments}),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer,
        rollout_func=sampled,
    )
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.model.train()
    if trainer.ref_model is not None:
        move(trainer.ref_model)
    inputs = trainer._generate_and_score_completions([data[i // GENERATIONS] for i in range(len(rows.responses))])
    return trainer, inputs, rows


def move(model, seed=3, size=0.05):
    """Change the weights, so that the model is another policy."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += size * torch.randn(p.shape, generator=generator, dtype=torch.float64)
