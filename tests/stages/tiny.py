"""A recipe that runs every stage in a second or two."""

import copy

from verizero.pipeline.config.load import parse
from verizero.pipeline.config.yaml_reader import merge

SUMS = {"digits": 1, "num_train": 30, "num_evaluation": 6, "num_demonstrations": 300}
FEW_SHOWN = (
    "[{generator: {name: arithmetic, params: {num_train: 6000, num_evaluation: 200, num_demonstrations: 300}}}, "
    "{generator: {name: induction, params: {a_max: 9, b_min: 10, b_max: 69, num_train: 420, num_evaluation: 120, "
    "num_demonstrations: 300}}}]"
)
"""The demo's tasks with a hundredth of its demonstrations, which take longer to read than a short run to train."""
# responses are graded after all are sampled: a process for graders costs more than the rest of a short session
TREE = {
    "name": "tiny",
    "seed": 3,
    "stages": ["sft", "rl"],
    "model": {
        "create": {
            "model_type": "qwen2",
            "config": {
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "max_position_embeddings": 64,
                "tie_word_embeddings": True,
            },
            "characters": "0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyz\\{}:?",
        }
    },
    "data": {
        "train": [{"generator": {"name": "arithmetic", "params": SUMS}}],
        "evaluation": [{"generator": {"name": "arithmetic", "params": SUMS, "split": "evaluation"}}],
    },
    "sft": {"steps": 120, "batch_size": 16, "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2}},
    "rl": {
        "algorithm": {"name": "grpo", "kl_coef": 0.01},
        "rounds": 2,
        "steps_per_round": 3,
        "prompts_per_step": 3,
        "group_size": 6,
        "optimizer": {"learning_rate": 1e-3},
        "reference": {"schedule": "every_round"},
        "select": {"keep": "informative"},
    },
    "rollout": {"max_response_tokens": 30},
    "train": {"device": "cpu", "threads": 1, "micro_batch_tokens": 640},
    "scoring": {"overlap": False},
    "evaluation": {"k": 2},
    "checkpoint": {"every_steps": 1, "keep": 2},
    "report": {"trackers": []},
}
FOUR_STAGES = {
    "stages": [
        "sft",
        "rl",
        {"name": "sft_again", "kind": "sft", "with": {"steps": 5}},
        {"name": "rl_again", "kind": "rl", "with": {"rounds": 1}},
    ],
    "sft": {"steps": 40},
    "rl": {
        "rounds": 2,
        "steps_per_round": 2,
        "select": {"keep": "all"},
        "algorithm": {"name": "ppo", "critic_warmup_steps": 1, "num_minibatches": 1},
    },
}
"""Changes that make a recipe of four stages, two kinds twice; each stage of RL begins with a critic."""


def tiny(changes=None, overrides=()):
    """The recipe with `changes` laid over it and `overrides` applied."""
    return parse(merge(copy.deepcopy(TREE), changes or {}), overrides)
