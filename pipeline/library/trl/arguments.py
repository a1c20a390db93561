"""Every argument of TRL 1.16's `GRPOConfig`: its default there, and what becomes of it here.

An argument either becomes fields of a recipe, or is refused unless it has its default: because this project cannot do
what it asks for, or because it has no meaning here. docs/trl.md is made of this table (`make docs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TRL = "1.16.0"
"""The version of TRL whose arguments and defaults these are."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of TRL, and what becomes of it."""

    default: Any
    kind: Literal["translated", "refused", "meaningless"]
    text: str
    """Translated: the fields of a recipe. Refused: the reason, then the remedy. Meaningless: the reason."""
    field: str | None = None
    """The field of a recipe that takes the value as it is."""


TRANSLATED: dict[str, tuple[Any, str]] = {
    "output_dir": (None, "`output` and `name`: the run's folder; None: `trainer_output`"),
    "run_name": (None, "`name`; the run's folder is then `output_dir/run_name`"),
    "per_device_train_batch_size": (8, "`rl.prompts_per_step`, with the next three and `num_generations`"),
    "gradient_accumulation_steps": (1, "`rl.prompts_per_step`, `rl.algorithm.num_minibatches`"),
    "steps_per_generation": (None, "`rl.algorithm.num_minibatches`; a multiple of `gradient_accumulation_steps`"),
    "generation_batch_size": (None, "`rl.prompts_per_step` times `rl.group_size`"),
    "num_train_epochs": (3.0, "`rl.rounds` times `rl.steps_per_round`, by the number of rows"),
    "max_steps": (-1, "`rl.rounds` times `rl.steps_per_round`"),
    "lr_scheduler_type": (
        "linear",
        "`rl.optimizer.schedule`: linear, cosine, cosine_with_min_lr, constant, constant_with_warmup",
    ),
    "lr_scheduler_kwargs": (None, "`rl.optimizer.final_share`, from min_lr or min_lr_rate"),
    "warmup_steps": (0, "`rl.optimizer.warmup_steps`; below 1 a share of the steps. The first update moves too"),
    "optim": (
        "adamw_torch_fused",
        "`rl.optimizer.kind`: adamw_torch_fused, adamw_torch, adamw_8bit, adamw_bnb_8bit, paged_adamw_8bit",
    ),
    "adam_beta1": (0.9, "`rl.optimizer.betas`"),
    "adam_beta2": (0.999, "`rl.optimizer.betas`"),
    "max_grad_norm": (1.0, "`rl.optimizer.max_grad_norm`; 0: null"),
    "bf16": (None, "`model.dtype`; None and True: bfloat16 on a GPU with float32 masters; False: float32"),
    "gradient_checkpointing_kwargs": (None, "`{'use_reentrant': False}`, as it is done here"),
    "torch_compile": (False, "`train.compile`: True is on, False is auto"),
    "full_determinism": (False, "`train.deterministic`, which is true in any case"),
    "use_cpu": (False, "`train.device`"),
    "disable_dropout": (
        False,
        "there is no dropout in any case; where a model's config has some, True must be given",
    ),
    "router_aux_loss_coef": (None, "0.0, as no term balances experts; for a mixture of experts it must be given"),
    "logging_strategy": ("steps", "`trainer.state.log_history`: steps or no"),
    "logging_steps": (10, "`trainer.state.log_history`: a mean over so many steps; metrics.jsonl has each step"),
    "logging_first_step": (False, "`trainer.state.log_history`"),
    "disable_tqdm": (None, "True: no output"),
    "report_to": (
        "none",
        "`report.trackers`: tensorboard, wandb, mlflow, trackio, those of plug-ins, or none",
    ),
    "log_completions": (False, "`report.samples_per_step`; True: all groups of a step, else its default"),
    "eval_strategy": (
        "no",
        "`rl.rounds`, as evaluations come after rounds; with `eval_dataset` there is one at the end",
    ),
    "eval_steps": (None, "`rl.steps_per_round`; it divides the steps"),
    "eval_on_start": (False, "`evaluation.before_training`"),
    "num_generations_eval": (None, "`evaluation.k`; None: `num_generations`"),
    "save_strategy": ("steps", "`checkpoint.every_steps`: steps, epoch, or no: at the end of the run alone"),
    "save_steps": (500, "`checkpoint.every_steps`"),
    "save_total_limit": (None, "`checkpoint.keep`; None: all"),
    "push_to_hub": (False, "True: `trainer.push_to_hub()` when the run has ended"),
    "hub_model_id": (None, "the name of the repository, owner/name"),
    "hub_private_repo": (None, "False: a new repository is public; else it is private"),
    "hub_strategy": ("every_save", "every_save or end: once, when the run has ended"),
    "model_init_kwargs": (None, "`model.dtype` from dtype, `model.revision` from revision"),
    "shuffle_dataset": (True, "`data.sampling.order`"),
    "chat_template_kwargs": (None, "`data.template.chat_arguments`"),
    "use_vllm": (False, "`rollout.engine`: vllm or torch"),
    "vllm_model_impl": ("vllm", "`rollout.vllm.arguments`"),
    "beta": (0.0, "`rl.algorithm.kl_coef`; 0: no reference"),
    "use_bias_correction_kl": (True, "`rl.algorithm.kl_form`: k3_unbiased, per response k3_ratio; False: k3"),
    "num_iterations": (1, "`rl.algorithm.num_epochs`"),
    "epsilon": (0.2, "`rl.algorithm.surrogate.clip_low`; not read by cispo, sapo, vespo"),
    "epsilon_high": (None, "`rl.algorithm.surrogate.clip_high`; of cispo the largest weight, above 1"),
    "delta": (None, "`rl.algorithm.surrogate`: two_sided; not read by cispo, sapo, vespo"),
    "sapo_temperature_neg": (1.05, "`rl.algorithm.surrogate.tau_negative`, with loss_type sapo"),
    "sapo_temperature_pos": (1.0, "`rl.algorithm.surrogate.tau_positive`, with loss_type sapo"),
    "vespo_k_pos": (2.0, "`rl.algorithm.surrogate.k_positive`, with loss_type vespo"),
    "vespo_lambda_pos": (3.0, "`rl.algorithm.surrogate.lambda_positive`, with loss_type vespo"),
    "vespo_k_neg": (3.0, "`rl.algorithm.surrogate.k_negative`, with loss_type vespo"),
    "vespo_lambda_neg": (2.0, "`rl.algorithm.surrogate.lambda_negative`, with loss_type vespo"),
    "importance_sampling_level": ("token", "`rl.algorithm.ratio`"),
    "loss_type": ("dapo", "`rl.algorithm.surrogate` and `aggregate`: all eight; bnpo without gradient accumulation"),
    "reward_weights": (None, "weights of the verifier `rewards`, or of `scoring.components`"),
    "multi_objective_aggregation": ("sum_then_normalize", "`rl.algorithm.advantage`; of several rewards"),
    "scale_rewards": ("group", "`rl.algorithm.advantage.std`"),
    "mask_truncated_completions": (False, "`rl.algorithm.overlong_filter` and `overlong_counts`"),
    "sync_ref_model": (False, "`rl.reference.schedule`: ema"),
    "ref_model_mixup_alpha": (0.6, "`rl.reference.alpha`, with `sync_ref_model`"),
    "ref_model_sync_steps": (512, "`rl.reference.every`, with `sync_ref_model`"),
    "top_entropy_quantile": (1.0, "`rl.algorithm.high_entropy_share`, above 0, with a ratio per token"),
    "entropy_coef": (0.0, "`rl.algorithm.entropy_coef`"),
    "use_adaptive_entropy": (False, "`rl.algorithm.entropy_target`, `entropy_step`, `entropy_max`"),
    "entropy_coef_max": (1.0, "`rl.algorithm.entropy_max`, with `use_adaptive_entropy`"),
    "entropy_coef_delta": (0.005, "`rl.algorithm.entropy_step`, with `use_adaptive_entropy`"),
    "entropy_target": (0.2, "`rl.algorithm.entropy_target`, with `use_adaptive_entropy`"),
    "vllm_importance_sampling_correction": (True, "`rl.algorithm.mismatch_level`, with `use_vllm`"),
    "vllm_importance_sampling_mode": ("sequence_mask", "`rl.algorithm.mismatch_level` and `mismatch_action`"),
    "vllm_importance_sampling_clip_max": (3.0, "`rl.algorithm.mismatch_cap`"),
    "vllm_importance_sampling_clip_min": (None, "`rl.algorithm.mismatch_floor`"),
    "off_policy_mask_threshold": (None, "`rl.algorithm.off_policy_delta`"),
}
"""Argument -> (default, what it becomes)."""

AS_THEY_ARE: dict[str, tuple[Any, str]] = {
    "learning_rate": (1e-6, "rl.optimizer.learning_rate"),
    "weight_decay": (0.0, "rl.optimizer.weight_decay"),
    "adam_epsilon": (1e-8, "rl.optimizer.eps"),
    "gradient_checkpointing": (True, "train.gradient_checkpointing"),
    "seed": (42, "seed"),
    "num_generations": (8, "rl.group_size"),
    "max_completion_length": (512, "rollout.max_response_tokens"),
    "temperature": (1.0, "rollout.temperature"),
    "top_p": (1.0, "rollout.top_p"),
    "top_k": (0, "rollout.top_k"),
    "vllm_enable_sleep_mode": (False, "rollout.vllm.sleep"),
    "vllm_gpu_memory_utilization": (0.3, "rollout.vllm.gpu_memory_share"),
    "vllm_max_model_length": (None, "rollout.vllm.max_model_tokens"),
    "vllm_tensor_parallel_size": (1, "rollout.vllm.tensor_parallel"),
}
"""Argument -> (default, the field of a recipe that takes its value)."""

_SEVERAL = "a script trains in one process; for several, `verizero train` of the recipe in the run's folder, given/"
_HUB = "the model is uploaded once, to the main branch, when the run has ended; leave it out"
REFUSED: dict[str, tuple[Any, str]] = {
    "optim_args": (None, "AdamW takes adam_beta1, adam_beta2, adam_epsilon and weight_decay alone; set these"),
    "optim_target_modules": (None, "the optimiser is AdamW; set peft_config to train less of the model"),
    "label_smoothing_factor": (0.0, "the loss has no labels to smooth, in TRL neither; leave it out"),
    "fp16": (False, "float16 overflows without loss scaling, which is not here; use bf16"),
    "use_liger_kernel": (
        False,
        "log-probs are fused here in any case; leave it out, or set `train.kernels: liger` in the recipe",
    ),
    "neftune_noise_alpha": (None, "noise on embeddings would make sampled and trained policies differ; leave it out"),
    "auto_find_batch_size": (False, "TRL refuses it for GRPO too; set `train.micro_batch_tokens` in the recipe"),
    "include_num_input_tokens_seen": ("no", "metrics.jsonl has tokens/generated and tokens/trained; leave it out"),
    "project": ("huggingface", "the tracker's project is named by the tracker's own environment variable; use that"),
    "trackio_space_id": (None, "trackio writes on this machine; use its own environment variables"),
    "trackio_bucket_id": (None, "trackio writes on this machine; use its own environment variables"),
    "trackio_static_space_id": (None, "trackio writes on this machine; use its own environment variables"),
    "eval_delay": (0, "evaluations begin with the first round; leave it out"),
    "batch_eval_metrics": (False, "held-out measures are those of rewards; write them into a reward function"),
    "save_only_model": (False, "a checkpoint that resumes to the same bytes needs all of its state; leave it out"),
    "hub_token": (None, "no secret is written to a recipe; use `hf auth login` or HF_TOKEN"),
    "hub_always_push": (False, _HUB),
    "hub_revision": (None, _HUB),
    "log_completions_hub_repo": (None, "responses stay in rollouts.jsonl of the run's folder; upload that file"),
    "load_best_model_at_end": (False, "the model of the last step is kept; lower max_steps to stop earlier"),
    "metric_for_best_model": (None, "the model of the last step is kept; leave it out"),
    "greater_is_better": (None, "the model of the last step is kept; leave it out"),
    "ignore_data_skip": (False, "a resumed run takes the prompts that it would have taken; leave it out"),
    "restore_callback_states_from_checkpoint": (False, "there are no callbacks of TRL; leave it out"),
    "data_seed": (None, "all draws come from one seed; set seed"),
    "parallelism_config": (None, _SEVERAL + ", with train.sequence_parallel"),
    "fsdp": (None, _SEVERAL + ", with train.backend=fsdp"),
    "fsdp_config": (None, _SEVERAL + ", with train.backend=fsdp"),
    "deepspeed": (None, _SEVERAL + ", with train.backend=deepspeed"),
    "local_rank": (-1, _SEVERAL),
    "remove_unused_columns": (False, "reward functions get every column; drop columns from the data set"),
    "train_sampling_strategy": ("random", "prompts come in a random order or in that of the rows: shuffle_dataset"),
    "resume_from_checkpoint": (None, "TRL's trainer does not read it here; give it to trainer.train()"),
    "trust_remote_code": (False, "code of a model's author is not run; use an architecture of transformers"),
    "cast_lm_head_to_fp32": (False, "the head has the model's dtype; set bf16=False for a whole model in float32"),
    "min_p": (None, "sampling has top_p and top_k alone; use top_p"),
    "generation_kwargs": (None, "sampling has temperature, top_p and top_k alone; set these"),
    "repetition_penalty": (
        1.0,
        "it changes the distribution that is sampled from, and training would not know; drop it",
    ),
    "vllm_mode": ("colocate", "servers need this project's extension: rollout.engine=vllm_server, docs/engines.md"),
    "vllm_structured_outputs_regex": (None, "responses are not forced into a form; reward the form instead"),
    "vllm_importance_sampling_cap": (None, "it is deprecated in TRL; set vllm_importance_sampling_clip_max"),
    "entropy_coef_min": (0.0, "the adaptive coefficient ends at 0; leave it out"),
    "max_tool_calling_iterations": (None, "tools are environments here, with episodes.max_turns: docs/episodes.md"),
    "log_unique_prompts": (False, "rollouts.jsonl has whole groups; set report.samples_per_step in the recipe"),
    "num_completions_to_print": (None, "rollouts.jsonl has whole groups; set report.samples_per_step in the recipe"),
    "log_multimodal": (True, "policies read text alone; leave it out"),
}
"""Argument -> (default, why another value is refused, and what to do)."""

MEANINGLESS: dict[str, dict[str, Any]] = {
    "one process trains": {
        "average_tokens_across_devices": True, "log_on_each_node": True, "save_on_each_node": False,
        "ddp_find_unused_parameters": None, "ddp_bucket_cap_mb": None, "ddp_broadcast_buffers": None,
        "ddp_static_graph": None, "ddp_backend": None, "ddp_timeout": 1800, "accelerator_config": None,
        "ds3_gather_for_generation": True, "eval_use_gather_object": False, "log_level_replica": "warning",
    },
    "prompts are read before training, by no data loader": {
        "dataloader_drop_last": False, "dataloader_num_workers": 0, "dataloader_pin_memory": True,
        "dataloader_persistent_workers": False, "dataloader_prefetch_factor": None,
        "dataloader_multiprocessing_context": None, "dataloader_in_order": True, "length_column_name": "length",
        "label_names": None, "pad_to_multiple_of": "auto",
    },
    "an evaluation samples and grades, as many responses at a time as rollout.max_rows": {
        "per_device_eval_batch_size": 8, "prediction_loss_only": False, "eval_do_concat_batches": True,
        "eval_accumulation_steps": None, "include_for_metrics": [], "bf16_full_eval": False, "fp16_full_eval": False,
    },
    "the embedded engine and vLLM have their own caches and batches": {
        "use_cache": False, "cache_implementation": None, "use_transformers_continuous_batching": False,
        "transformers_continuous_batching_config": None, "use_transformers_paged": False,
    },
    "there is no vLLM server that TRL would call": {
        "vllm_server_base_url": None, "vllm_server_host": "0.0.0.0", "vllm_server_port": 8000,
        "vllm_server_timeout": 240.0, "vllm_group_port": 51216,
    },
    "the computation decides it": {
        "tf32": None, "torch_compile_backend": None, "torch_compile_mode": None, "liger_kernel_config": None,
        "torch_empty_cache_steps": None, "debug": "", "skip_memory_metrics": True, "enable_jit_checkpoint": False,
    },
    "the output is this project's own": {"log_level": "passive", "logging_nan_inf_filter": True},
    "scripts read it, no trainer does": {"do_train": False, "do_eval": False, "do_predict": False},
}  # fmt: skip
"""Reason -> the arguments without a meaning here, each with its default."""


def _all() -> Mapping[str, Argument]:
    made = {name: Argument(default, "translated", text) for name, (default, text) in TRANSLATED.items()}
    made |= {n: Argument(default, "translated", f"`{to}`", to) for n, (default, to) in AS_THEY_ARE.items()}
    made |= {name: Argument(default, "refused", text) for name, (default, text) in REFUSED.items()}
    made |= {n: Argument(default, "meaningless", why) for why, own in MEANINGLESS.items() for n, default in own.items()}
    num = sum(map(len, (TRANSLATED, AS_THEY_ARE, REFUSED, *MEANINGLESS.values())))
    assert len(made) == num, "an argument is in two tables"
    return made


ARGUMENTS: Mapping[str, Argument] = _all()
"""All arguments by name."""
