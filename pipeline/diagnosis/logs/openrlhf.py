"""OpenRLHF: numbers that its loggers of W&B and TensorBoard write, and the lines "Global step N" of its console.

Source: OpenRLHF at 3c3be6234e, openrlhf/utils/logging_utils.py (`WandbLogger`, `TensorboardLogger`),
openrlhf/trainer/ppo_trainer.py (`_compute_rollout_stats`, `fit`) and openrlhf/trainer/ray/ppo_actor.py.
"""

from __future__ import annotations

import re

from verizero.pipeline.diagnosis.logs.facts import is_share
from verizero.pipeline.diagnosis.logs.logged import Logged
from verizero.pipeline.diagnosis.logs.tool import Option, Tool

PASS = re.compile(r"eval/?_?(?:eval_)?(.+)_pass1$")


def _derive(values: dict[str, float], logged: Logged) -> None:
    """Add the held-out pass@1 of each data set, and whether rewards are shares of right responses."""
    reward, std, size = (values.get(n) for n in ("reward/sampled", "reward/std", "?rollout/num_samples"))
    if reward in (0.0, 1.0) and std == 0.0:
        values |= {"correct/sampled": reward, "groups/without_signal": 1.0}
    elif reward is not None and std and size is not None and 0 < reward < 1 and is_share(reward, std, size):
        values["correct/sampled"] = reward
    for name in [n for n in values if n.startswith("?eval")]:
        if (match := PASS.match(name[1:])) is not None:
            values[f"evaluation/{match[1]}/pass@1"] = values[name]
        del values[name]


TOOL = Tool(
    name="openrlhf",
    title="OpenRLHF",
    prefixes=("train/",),
    signs=("policy_loss", "ppo_clip_ratio", "response_clip_ratio", "rollout/truncated_rate", "actor_lr"),
    metrics={
        "rollout/reward_mean": "reward/sampled",
        "rollout/reward_std": "reward/std",
        "rollout/response_length_mean": "length/mean",
        "rollout/truncated_rate": "truncated",
        "reward": "reward/sampled",
        "response_length": "length/mean",
        "response_clip_ratio": "truncated",
        "kl": "kl/k1",
        "entropy_loss": "entropy",
        "actor_grad_norm": "grad_norm",
        "actor_lr": "learning_rate",
        "policy_loss": "loss",
        "ppo_clip_ratio": "clip_fraction/high",
        "vllm_kl": "mismatch/k3",
    },
    options={
        "actor.adam.lr": Option("rl.optimizer.learning_rate"),
        "actor.eps_clip": Option("rl.algorithm.clip_low"),
        "actor.entropy_coef": Option("rl.algorithm.entropy_coef"),
        "algo.kl.init_coef": Option("rl.algorithm.kl_coef"),
        "train.max_epochs": Option("rl.algorithm.num_epochs"),
        "rollout.temperature": Option("rollout.temperature"),
        "rollout.top_p": Option("rollout.top_p"),
        "rollout.max_new_tokens": Option("rollout.max_response_tokens"),
        "rollout.n_samples_per_prompt": Option("rl.group_size"),
    },
    written="--{option} {value}",
    where="the command of train_ppo_ray",
    remedies={
        "advantages_vanish": "set --rollout.temperature 1.0 and --rollout.n_samples_per_prompt 8 or more",
        "constant_reward": "call reward_func of --reward.remote_url with a right and a wrong query",
        "end_token_missing": "set --data.apply_chat_template, and the tokenizer's eos_token to the end of a turn",
        "engine_mismatch": "set --algo.advantage.is_correction_enable, and one number type with --ds.param_dtype",
        "length_cap": "double --rollout.max_new_tokens",
        "learning_rate_high": "divide --actor.adam.lr by ten",
        "learning_rate_low": "raise --actor.adam.lr by a factor of ten",
        "kl_too_strong": "lower --algo.kl.init_coef",
        "other_template": "compare --data.input_template and --data.apply_chat_template with the model's training",
        "sampling_differs": "set --rollout.top_p 1.0 and one --rollout.temperature",
        "stale_engine_weights": "look at --vllm.sync_backend, and set --train.async_queue_size 1",
        "too_easy": "set --algo.dynamic_filtering_enable with --algo.dynamic_filtering_range 0.0 1.0",
        "too_hard": "filter --data.prompt_dataset by pass rate, or raise --rollout.n_samples_per_prompt",
        "wrong_references": "check --data.label_key of some rows of --data.prompt_dataset by hand",
    },
    logs_if={
        "kl/k1": "logged with --algo.kl.init_coef above 0",
        "mismatch/k3": "logged with --algo.advantage.is_correction_enable",
        "entropy": "logged with --actor.entropy_coef",
    },
    derive=_derive,
)
