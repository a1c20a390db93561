"""The table of TRL's arguments against TRL itself: each is translated or refused, and none is dropped in silence."""

from __future__ import annotations

import dataclasses
import inspect
import runpy
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from tests.library.trl.tiny import CHATS, ROWS, save_tiny
from tests.source import ROOT
from tests.trl_classes import trl_class
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.library.trl.arguments import ARGUMENTS, TRL
from verizero.trl import GRPOConfig, GRPOTrainer

SMALL: dict[str, Any] = {
    "num_generations": 4, "max_completion_length": 8, "max_steps": 12, "gradient_checkpointing": False,
}  # fmt: skip
"""Arguments of a run on the tiny model."""


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(c)) for c in completions]


def digits(completions: list[str], **_: Any) -> list[float]:
    return [float(sum(x.isdigit() for x in c)) for c in completions]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("model"), chat=True)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trainer_of(folder: str, rows: Any = ROWS, rewards: Any = length, **arguments: Any) -> GRPOTrainer:
    own = {k: arguments.pop(k) for k in ("eval_dataset", "peft_config", "processing_class", "model") if k in arguments}
    args = GRPOConfig(**{"output_dir": "out", **SMALL, **arguments})
    return GRPOTrainer(**{"model": folder, **own}, reward_funcs=rewards, args=args, train_dataset=rows)


def recipe_of(folder: str, **arguments: Any) -> RunConfig:
    recipe: RunConfig = trainer_of(folder, **arguments).recipe
    return recipe


def test_the_table_has_every_argument_of_trl_with_its_default() -> None:
    import trl

    assert trl.__version__ == TRL
    theirs = {
        f.name: f.default if f.default is not dataclasses.MISSING else f.default_factory()  # type: ignore[misc]
        for f in dataclasses.fields(trl_class("GRPOConfig"))
        if f.init
    }
    assert {name: argument.default for name, argument in ARGUMENTS.items()} == theirs


def test_the_trainer_takes_trls_arguments_in_trls_order() -> None:
    assert list(inspect.signature(GRPOTrainer).parameters) == list(
        inspect.signature(trl_class("GRPOTrainer")).parameters
    )


def test_the_page_has_the_table() -> None:
    text = (ROOT / "docs" / "trl.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "make_trl.py"))["page"](text) == text, "make docs"


def another(default: Any) -> Any:
    """Return a value that is not the default."""
    return default + 1 if isinstance(default, int | float) and not isinstance(default, bool) else object()


@pytest.mark.parametrize("name", [n for n, a in ARGUMENTS.items() if a.kind != "translated"])
def test_what_is_not_translated_is_refused_by_name_with_the_reason(name: str) -> None:
    argument = ARGUMENTS[name]
    GRPOConfig(**{name: argument.default})
    value = not argument.default if isinstance(argument.default, bool) else another(argument.default)
    with pytest.raises(ConfigError) as caught:
        GRPOConfig(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} ")
    assert argument.text in str(caught.value)
    args = GRPOConfig()
    setattr(args, name, value)  # as scripts do after the arguments were parsed
    with pytest.raises(ConfigError, match=f"^{name}="):
        GRPOTrainer("nowhere", length, args, ROWS)


RL, OPT = "rl.algorithm", "rl.optimizer"
ADAPTIVE = {"use_adaptive_entropy": True}
VLLM = {"use_vllm": True}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "output_dir": ({"output_dir": "some/where"}, {"output": "some", "name": "where"}),
    "run_name": ({"run_name": "first"}, {"output": "out", "name": "first"}),
    "per_device_train_batch_size": ({"per_device_train_batch_size": 24}, {"rl.prompts_per_step": 6}),
    "gradient_accumulation_steps": ({"gradient_accumulation_steps": 3}, {"rl.prompts_per_step": 6}),
    "steps_per_generation": (
        {"steps_per_generation": 2},
        {"rl.prompts_per_step": 4, f"{RL}.num_minibatches": 2, "rl.steps_per_round": 6},
    ),
    "generation_batch_size": ({"generation_batch_size": 16}, {f"{RL}.num_minibatches": 2, "rl.prompts_per_step": 4}),
    "num_train_epochs": ({"num_train_epochs": 2, "max_steps": -1}, {"rl.steps_per_round": 24}),
    "max_steps": ({"max_steps": 5}, {"rl.steps_per_round": 5}),
    "lr_scheduler_type": ({"lr_scheduler_type": "cosine"}, {f"{OPT}.schedule": "cosine", f"{OPT}.final_share": 0.0}),
    "lr_scheduler_kwargs": (
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-7}},
        {f"{OPT}.schedule": "cosine", f"{OPT}.final_share": pytest.approx(0.1)},
    ),
    "warmup_steps": ({"warmup_steps": 0.25}, {f"{OPT}.warmup_steps": 3}),
    "optim": ({"optim": "adamw_bnb_8bit"}, {f"{OPT}.kind": "adamw_8bit"}),
    "adam_beta1": ({"adam_beta1": 0.8}, {f"{OPT}.betas": (0.8, 0.999)}),
    "adam_beta2": ({"adam_beta2": 0.99}, {f"{OPT}.betas": (0.9, 0.99)}),
    "max_grad_norm": ({"max_grad_norm": 0.0}, {f"{OPT}.max_grad_norm": None}),
    "bf16": ({"bf16": False}, {"model.dtype": "float32"}),
    "gradient_checkpointing_kwargs": ({"gradient_checkpointing_kwargs": {"use_reentrant": False}}, {}),
    "torch_compile": ({"torch_compile": True}, {"train.compile": "on"}),
    "full_determinism": ({"full_determinism": True}, {"train.deterministic": True}),
    "use_cpu": ({"use_cpu": True}, {"train.device": "cpu"}),
    "disable_dropout": ({"disable_dropout": True}, {}),
    "router_aux_loss_coef": ({"router_aux_loss_coef": 0.0}, {}),
    "logging_strategy": ({"logging_strategy": "no"}, {}),
    "logging_steps": ({"logging_steps": 0.5}, {}),
    "logging_first_step": ({"logging_first_step": True}, {}),
    "disable_tqdm": ({"disable_tqdm": True}, {}),
    "report_to": ({"report_to": ["tensorboard"]}, {"report.trackers": ("tensorboard",)}),
    "log_completions": ({"log_completions": True}, {"report.samples_per_step": 2}),
    "eval_strategy": ({"eval_strategy": "epoch", "max_steps": 24, "eval_dataset": ROWS}, {"rl.rounds": 2}),
    "eval_steps": (
        {"eval_strategy": "steps", "eval_steps": 4, "eval_dataset": ROWS},
        {"rl.rounds": 3, "rl.steps_per_round": 4},
    ),
    "eval_on_start": ({"eval_on_start": True, "eval_dataset": ROWS}, {"evaluation.before_training": True}),
    "num_generations_eval": ({"num_generations_eval": 2, "eval_dataset": ROWS}, {"evaluation.k": 2}),
    "save_strategy": ({"save_strategy": "no"}, {"checkpoint.every_steps": 12}),
    "save_steps": ({"save_steps": 5}, {"checkpoint.every_steps": 5, "checkpoint.keep": 3}),
    "save_total_limit": ({"save_steps": 5, "save_total_limit": 1}, {"checkpoint.keep": 1}),
    "push_to_hub": ({"push_to_hub": True, "hub_model_id": "me/my-model"}, {}),
    "hub_model_id": ({"hub_model_id": "me/my-model"}, {}),
    "hub_private_repo": ({"hub_private_repo": False}, {}),
    "hub_strategy": ({"hub_strategy": "end"}, {}),
    "model_init_kwargs": ({"model_init_kwargs": {"dtype": "bfloat16"}}, {"model.dtype": "bfloat16"}),
    "shuffle_dataset": ({"shuffle_dataset": False}, {"data.sampling.order": "sequential"}),
    "chat_template_kwargs": (
        {"chat_template_kwargs": {"enable_thinking": False}, "rows": CHATS},
        {"data.template.name": "chat", "data.template.chat_arguments": {"enable_thinking": False}},
    ),
    "use_vllm": (VLLM, {"rollout.engine": "vllm", f"{RL}.mismatch_level": "sequence"}),
    "vllm_model_impl": (
        {**VLLM, "vllm_model_impl": "transformers"},
        {"rollout.vllm.arguments": {"model_impl": "transformers"}},
    ),
    "beta": ({"beta": 0.1}, {f"{RL}.kl_coef": 0.1, f"{RL}.kl_form": "k3_unbiased", "rl.reference.schedule": "frozen"}),
    "use_bias_correction_kl": ({"beta": 0.1, "use_bias_correction_kl": False}, {f"{RL}.kl_form": "k3"}),
    "num_iterations": ({"num_iterations": 3}, {f"{RL}.num_epochs": 3, "rl.steps_per_round": 4}),
    "epsilon": ({"epsilon": 0.1}, {f"{RL}.surrogate.clip_low": 0.1, f"{RL}.surrogate.clip_high": 0.1}),
    "epsilon_high": ({"epsilon_high": 0.28}, {f"{RL}.surrogate.clip_low": 0.2, f"{RL}.surrogate.clip_high": 0.28}),
    "delta": ({"delta": 2.0}, {f"{RL}.surrogate.name": "two_sided", f"{RL}.surrogate.delta": 2.0}),
    "sapo_temperature_neg": (
        {"loss_type": "sapo", "sapo_temperature_neg": 2.0},
        {f"{RL}.surrogate.tau_negative": 2.0},
    ),
    "sapo_temperature_pos": (
        {"loss_type": "sapo", "sapo_temperature_pos": 2.0},
        {f"{RL}.surrogate.tau_positive": 2.0},
    ),
    "vespo_k_pos": ({"loss_type": "vespo", "vespo_k_pos": 1.0}, {f"{RL}.surrogate.k_positive": 1.0}),
    "vespo_lambda_pos": ({"loss_type": "vespo", "vespo_lambda_pos": 1.0}, {f"{RL}.surrogate.lambda_positive": 1.0}),
    "vespo_k_neg": ({"loss_type": "vespo", "vespo_k_neg": 1.0}, {f"{RL}.surrogate.k_negative": 1.0}),
    "vespo_lambda_neg": ({"loss_type": "vespo", "vespo_lambda_neg": 1.0}, {f"{RL}.surrogate.lambda_negative": 1.0}),
    "importance_sampling_level": ({"importance_sampling_level": "sequence"}, {f"{RL}.ratio": "sequence"}),
    "loss_type": ({"loss_type": "dr_grpo"}, {f"{RL}.aggregate": "sequence_mean_token_sum_norm"}),
    "reward_weights": (
        {"rewards": [length, digits], "reward_weights": [0.5, 2.0]},
        {"data.train.0.verifier.params.weights": {"length": 0.5, "digits": 2.0}},
    ),
    "multi_objective_aggregation": (
        {"rewards": [length, digits], "multi_objective_aggregation": "normalize_then_sum"},
        {f"{RL}.advantage.name": "normalize_then_sum", "scoring.components.0.verifier.path": "digits.pkl:digits"},
    ),
    "scale_rewards": ({"scale_rewards": False}, {f"{RL}.advantage.std": "none"}),
    "mask_truncated_completions": (
        {"mask_truncated_completions": True},
        {f"{RL}.overlong_filter": True, f"{RL}.overlong_counts": True},
    ),
    "sync_ref_model": ({"beta": 0.1, "sync_ref_model": True}, {"rl.reference.schedule": "ema"}),
    "ref_model_mixup_alpha": (
        {"beta": 0.1, "sync_ref_model": True, "ref_model_mixup_alpha": 1.0},
        {"rl.reference.schedule": "every_n_steps", "rl.reference.every": 512},
    ),
    "ref_model_sync_steps": (
        {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 6, "num_iterations": 2},
        {"rl.reference.every": 3, "rl.reference.alpha": 0.6},
    ),
    "top_entropy_quantile": ({"top_entropy_quantile": 0.2}, {f"{RL}.high_entropy_share": 0.2}),
    "entropy_coef": ({"entropy_coef": 0.01}, {f"{RL}.entropy_coef": 0.01}),
    "use_adaptive_entropy": (ADAPTIVE, {f"{RL}.entropy_target": 0.2, f"{RL}.entropy_step": 0.005}),
    "entropy_coef_max": ({**ADAPTIVE, "entropy_coef_max": 0.5}, {f"{RL}.entropy_max": 0.5}),
    "entropy_coef_delta": ({**ADAPTIVE, "entropy_coef_delta": 0.1}, {f"{RL}.entropy_step": 0.1}),
    "entropy_target": ({**ADAPTIVE, "entropy_target": 2.0}, {f"{RL}.entropy_target": 2.0}),
    "vllm_importance_sampling_correction": ({**VLLM, "vllm_importance_sampling_correction": False}, {}),
    "vllm_importance_sampling_mode": (
        {**VLLM, "vllm_importance_sampling_mode": "token_truncate"},
        {f"{RL}.mismatch_level": "token", f"{RL}.mismatch_action": "truncate", f"{RL}.mismatch_cap": 3.0},
    ),
    "vllm_importance_sampling_clip_max": (
        {**VLLM, "vllm_importance_sampling_clip_max": 2.0},
        {f"{RL}.mismatch_cap": 2.0, f"{RL}.mismatch_action": "mask"},
    ),
    "vllm_importance_sampling_clip_min": (
        {**VLLM, "vllm_importance_sampling_clip_min": 0.5},
        {f"{RL}.mismatch_floor": 0.5},
    ),
    "off_policy_mask_threshold": ({"off_policy_mask_threshold": 0.5}, {f"{RL}.off_policy_delta": 0.5}),
    "learning_rate": ({"learning_rate": 1e-5}, {f"{OPT}.learning_rate": 1e-5}),
    "weight_decay": ({"weight_decay": 0.1}, {f"{OPT}.weight_decay": 0.1}),
    "adam_epsilon": ({"adam_epsilon": 1e-6}, {f"{OPT}.eps": 1e-6}),
    "gradient_checkpointing": ({"gradient_checkpointing": True}, {"train.gradient_checkpointing": True}),
    "seed": ({"seed": 7}, {"seed": 7}),
    "num_generations": ({"num_generations": 2}, {"rl.group_size": 2, "rl.prompts_per_step": 4}),
    "max_completion_length": ({"max_completion_length": 6}, {"rollout.max_response_tokens": 6}),
    "temperature": ({"temperature": 0.7}, {"rollout.temperature": 0.7, "evaluation.temperature": 0.7}),
    "top_p": ({"top_p": 0.9}, {"rollout.top_p": 0.9, f"{RL}.allow": ["cut_sampling"]}),
    "top_k": ({"top_k": 5}, {"rollout.top_k": 5, f"{RL}.allow": ["cut_sampling"]}),
    "vllm_enable_sleep_mode": ({**VLLM, "vllm_enable_sleep_mode": True}, {"rollout.vllm.sleep": True}),
    "vllm_gpu_memory_utilization": (
        {**VLLM, "vllm_gpu_memory_utilization": 0.5},
        {"rollout.vllm.gpu_memory_share": 0.5},
    ),
    "vllm_max_model_length": ({**VLLM, "vllm_max_model_length": 64}, {"rollout.vllm.max_model_tokens": 64}),
    "vllm_tensor_parallel_size": ({**VLLM, "vllm_tensor_parallel_size": 1}, {"rollout.vllm.tensor_parallel": 1}),
}
"""Argument -> (arguments, the fields of the recipe that they give). Without fields: the recipe stays as it is."""
NOT_OF_THE_RECIPE = {
    *("gradient_checkpointing_kwargs", "full_determinism", "disable_dropout", "logging_strategy", "logging_steps"),
    *("router_aux_loss_coef", "push_to_hub", "hub_model_id", "hub_private_repo", "hub_strategy"),
    *("logging_first_step", "disable_tqdm", "bf16", "optim", "vllm_tensor_parallel_size", "output_dir", "run_name"),
}
"""Arguments whose example leaves the recipe as it is, or changes its name alone."""


def value_at(recipe: RunConfig, dotted: str) -> Any:
    value: Any = recipe
    for key in dotted.split("."):
        if isinstance(value, dict):
            value = value[key]
        else:
            value = value[int(key)] if key.isdecimal() else attrgetter(key)(value)
    return value


def test_every_translated_argument_has_an_example() -> None:
    assert CHANGES.keys() == {n for n, a in ARGUMENTS.items() if a.kind == "translated"}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_translated_gives_the_fields_of_the_table(folder: str, name: str) -> None:
    arguments, fields = CHANGES[name]
    recipe = recipe_of(folder, **arguments)
    for dotted, value in fields.items():
        assert value_at(recipe, dotted) == value, dotted
    if name not in NOT_OF_THE_RECIPE:
        assert recipe != recipe_or_none(folder, {k: v for k, v in arguments.items() if k != name})


def recipe_or_none(folder: str, arguments: dict[str, Any]) -> RunConfig | None:
    """Return the recipe; None if the arguments are refused."""
    try:
        return recipe_of(folder, **arguments)
    except ConfigError:
        return None


def test_the_plain_script_has_trls_defaults(folder: str) -> None:
    recipe = GRPOTrainer(folder, length, GRPOConfig("out", max_completion_length=16), ROWS).recipe
    assert (recipe.seed, recipe.rl.steps_per_round, recipe.rl.prompts_per_step, recipe.rl.group_size) == (42, 72, 1, 8)
    assert recipe.rl.optimizer.model_dump() == {
        "kind": "adamw", "learning_rate": 1e-6, "schedule": "linear", "warmup_steps": 0, "decay_share": 0.2,
        "final_share": 0.0,
        "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "max_grad_norm": 1.0,
    }  # fmt: skip
    assert recipe.rl.algorithm == {
        "name": "custom", "ratio": "token", "aggregate": "token_mean",
        "advantage": {"name": "group_norm", "baseline": "mean", "std": "group", "ddof": 1, "eps": 1e-4},
        "surrogate": {"name": "clip", "clip_low": 0.2, "clip_high": 0.2},
        "num_epochs": 1, "num_minibatches": 1, "kl_in": "none", "allow": [],
    }  # fmt: skip
    assert recipe.rl.reference.schedule == "none"
    assert recipe.data.evaluation == ()
    assert [s.part for s in recipe.data.train] == [None]  # all rows train
    assert recipe.scoring.truncated is None


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"learning_rat": 1.0}, "no argument 'learning_rat'; did you mean learning_rate"),
    ({"per_device_train_batch_size": 6}, "6 responses, which num_generations=4 does not divide"),
    ({"num_generations": 1}, "num_generations=1: rewards are compared in groups"),
    ({"gradient_accumulation_steps": 2, "steps_per_generation": 3}, "steps_per_generation=3 is no multiple of"),
    ({"generation_batch_size": 16, "steps_per_generation": 2}, "generation_batch_size and steps_per_generation"),
    ({"generation_batch_size": 12}, "generation_batch_size=12 is no multiple"),
    ({"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_generations": 8}, "whole groups"),
    ({"num_iterations": 5}, "set max_steps=10 or 15"),
    ({"max_steps": -1, "per_device_train_batch_size": 400}, "100 prompts and train_dataset has 24 rows"),
    ({"eval_strategy": "steps"}, "eval_strategy='steps' without eval_dataset"),
    ({"eval_strategy": "steps", "eval_steps": 5, "eval_dataset": ROWS}, "do not divide the 12 batches"),
    ({"lr_scheduler_type": "polynomial"}, "lr_scheduler_type='polynomial'"),
    ({"lr_scheduler_kwargs": {"power": 2}}, "lr_scheduler_kwargs has 'power'"),
    ({"optim": "lion_8bit"}, "optim='lion_8bit'"),
    ({"loss_type": "ppo"}, "loss_type='ppo'; give one of grpo"),
    ({"loss_type": "bnpo", "gradient_accumulation_steps": 2}, "loss_type='bnpo' with gradient_accumulation_steps=2"),
    ({"loss_type": "cispo"}, "epsilon_high=5.0"),
    ({"multi_objective_aggregation": "normalize_then_sum"}, "there is one"),
    ({"reward_weights": [1.0, 2.0]}, "reward_weights has 2 numbers for 1 reward"),
    ({"loss_type": "vespo", "importance_sampling_level": "sequence", "beta": 0.1}, "two ratios"),
    ({"top_entropy_quantile": 0.2, "importance_sampling_level": "sequence"}, "top_entropy_quantile=0.2 with a ratio"),
    ({"top_entropy_quantile": 0.2, "entropy_coef": 0.1}, "top_entropy_quantile=0.2 with an entropy bonus"),
    ({**VLLM, "loss_type": "vespo"}, "vllm_importance_sampling_correction=False"),
    (
        {**VLLM, "importance_sampling_level": "sequence", "vllm_importance_sampling_mode": "token_mask"},
        "vllm_importance_sampling_mode='sequence_mask'",
    ),
    ({"sync_ref_model": True}, "sync_ref_model=True with beta=0.0"),
    ({"model_init_kwargs": {"attn_implementation": "sdpa"}}, "attn_implementation='sdpa'"),
    ({"push_to_hub": True}, "hub_model_id=None is no repository"),
    ({"push_to_hub": True, "hub_model_id": "me/it", "hub_strategy": "checkpoint"}, "hub_strategy='checkpoint'"),
    ({"report_to": "comet_ml"}, "no tracker 'comet_ml'"),
    ({"max_completion_length": None}, "max_completion_length=None"),
    ({"rows": [{"question": "1+1="}]}, "no column 'prompt' in row 1; its columns are question"),
    ({"rows": None}, "train_dataset=None"),
    ({"rows": iter(ROWS)}, "take(n)"),
    ({"rows": {"train": ROWS}}, "its split"),
    ({"rewards": None}, "reward_funcs is not given"),
    ({"rewards": lambda completions, trainer_state: [0.0] * len(completions)}, "asks for 'trainer_state'"),
    ({"rewards": "some/reward-model"}, "'some/reward-model', a model that scores"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_cannot_be_is_refused_before_anything_trains(folder: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer_of(folder, **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["tools", "rollout_func", "environment_factory", "optimizers"])
def test_arguments_of_the_trainer_are_refused_by_name(name: str) -> None:
    value: Any = (object(), None) if name == "optimizers" else [length]
    with pytest.raises(ConfigError, match=rf"GRPOTrainer\({name}=...\) is not possible"):
        GRPOTrainer("nowhere", length, GRPOConfig(), ROWS, **{name: value})


def test_several_processes_are_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE=2"):
        trainer_of(folder)
