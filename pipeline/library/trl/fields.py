"""The fields of a recipe, by dotted name, that a script's `GRPOConfig` asks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.library.trl.arguments import AS_THEY_ARE
from verizero.pipeline.library.trl.config import GRPOConfig
from verizero.pipeline.library.trl.objective import algorithm_of, choice
from verizero.pipeline.library.trl.schedule import Schedule, schedule_fields

FOLDER = "trainer_output"
"""The output folder of scripts that name none."""


def fields_of(
    args: GRPOConfig, num_rows: int, num_rewards: int, *, is_chat: bool, has_evaluation: bool
) -> tuple[dict[str, Any], Schedule]:
    """Return the fields of the recipe, but for model and data, and the numbers of steps.

    Raises: ConfigError naming the argument and the remedy.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: GRPOTrainer trains in one process; start the script with "
            "python, or train on several with `verizero train` and the recipe that it writes"
        )
    if args.push_to_hub:  # the name is refused before the training
        repository(args)
        choice(args, "hub_strategy", ("every_save", "end"))
    schedule = Schedule.of(args, num_rows)
    plain = {to: getattr(args, name) for name, (_, to) in AS_THEY_ARE.items()}
    fields: dict[str, Any] = {to: value for to, value in plain.items() if args.use_vllm or "vllm" not in to}
    if not isinstance(args.max_completion_length, int):
        raise ConfigError(
            f"max_completion_length={args.max_completion_length!r}: responses need a limit; give a number"
        )
    return {
        **fields,
        **schedule_fields(args, schedule, has_evaluation),
        "rl.algorithm": algorithm_of(args, num_rewards, schedule.minibatches),
        **_engine(args),
        **_compute(args),
        **_data(args, is_chat),
        "report.trackers": _trackers(args.report_to),
        **({"report.samples_per_step": schedule.prompts} if args.log_completions else {}),
    }, schedule


def place(args: GRPOConfig) -> tuple[str, str]:
    """Return `output` and `name` of the run."""
    folder = Path(args.output_dir or FOLDER).expanduser()
    if args.run_name is not None:
        return str(folder), str(args.run_name)
    return str(folder.parent), folder.name or folder.resolve().name


def repository(args: GRPOConfig) -> str:
    """Return the name of the repository that is published. Raises: ConfigError without owner and name."""
    name = args.hub_model_id
    if not isinstance(name, str) or name.count("/") != 1:
        raise ConfigError(f"hub_model_id={name!r} is no repository; give owner and name, e.g. 'me/my-model'")
    return name


def _engine(args: GRPOConfig) -> dict[str, Any]:
    # The script says itself what corrects a mismatch.
    fields: dict[str, Any] = {"rollout.engine": "vllm" if args.use_vllm else "torch", "rollout.parity.action": "warn"}
    if args.use_vllm and choice(args, "vllm_model_impl", ("vllm", "transformers")) != "vllm":
        fields["rollout.vllm.arguments"] = {"model_impl": args.vllm_model_impl}
    return fields


def _compute(args: GRPOConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {"train.device": "cpu"} if args.use_cpu else {}
    if args.bf16 is False:
        fields["model.dtype"] = "float32"
    if args.torch_compile:
        fields["train.compile"] = "on"
    how = args.gradient_checkpointing_kwargs
    if how not in (None, {}, {"use_reentrant": False}):
        raise ConfigError(f"gradient_checkpointing_kwargs={how!r}; activations are computed again without reentrance")
    for name, value in dict(args.model_init_kwargs or {}).items():
        dtype = str(value).removeprefix("torch.")
        if value is None:
            continue
        if name == "revision":
            fields["model.revision"] = value
        elif name not in ("dtype", "torch_dtype") or dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(
                f"model_init_kwargs has {name}={value!r}; it may have dtype (float32, bfloat16, auto) and "
                "revision: how attention and kernels are computed is decided here"
            )
        elif dtype == "bfloat16":
            fields["model.dtype"] = dtype
    return fields


def _data(args: GRPOConfig, is_chat: bool) -> dict[str, Any]:
    template: dict[str, Any] = {"name": "chat" if is_chat else "plain"}
    if args.chat_template_kwargs and is_chat:
        template["chat_arguments"] = dict(args.chat_template_kwargs)
    return {
        "data.template": template,
        "data.sampling.order": "shuffle" if args.shuffle_dataset else "sequential",
        "data.overlap.on_overlap": "report",  # TRL trains on all rows
    }


def _trackers(asked: Any) -> list[str]:
    names = [asked] if isinstance(asked, str) else list(asked or [])
    names = [name for name in names if name != "none"]
    known = registry.names("trackers")
    for name in names:
        if name not in known:
            raise ConfigError(f"report_to={asked!r}: there is no tracker {name!r}; name {', '.join(known)} or none")
    return names
