"""The numbers of steps, prompts and updates that a script of TRL asks for, and the fields that depend on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.library.trl.config import GRPOConfig
from verizero.pipeline.library.trl.objective import choice

SCHEDULES = ("linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup")
STRATEGIES = ("no", "steps", "epoch")
OPTIMIZERS = {
    "adamw_torch_fused": "adamw",
    "adamw_torch": "adamw",
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
}
"""The name of an optimiser there -> the value of `optimizer.kind`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The numbers of a script's steps. A step here samples one batch; TRL counts the updates on it as steps."""

    prompts: int
    """Prompts of a batch."""
    minibatches: int
    """Updates in one pass over a batch."""
    updates: int
    """Updates on a batch, in all passes."""
    steps: int
    """Batches of the whole run."""
    steps_per_epoch: int
    """Batches in which each row comes once."""

    @classmethod
    def of(cls, args: GRPOConfig, num_rows: int) -> Schedule:
        """Return the numbers for a data set of `num_rows`. Raises: ConfigError where they do not come out whole."""
        accumulated, size = args.gradient_accumulation_steps, args.per_device_train_batch_size
        pieces = _pieces(args)
        responses = size * pieces
        if args.num_generations < 2:
            raise ConfigError(f"num_generations={args.num_generations}: rewards are compared in groups; give 2 or more")
        if responses % args.num_generations:
            raise ConfigError(
                f"per_device_train_batch_size={size} times {pieces} steps_per_generation is {responses} responses, "
                f"which num_generations={args.num_generations} does not divide; make it a multiple of it"
            )
        if pieces % accumulated:
            raise ConfigError(
                f"steps_per_generation={pieces} is no multiple of gradient_accumulation_steps={accumulated}: an update "
                "here is on one batch of responses; make it one"
            )
        prompts, minibatches = responses // args.num_generations, pieces // accumulated
        if minibatches > prompts:
            raise ConfigError(
                f"steps_per_generation={pieces} makes {minibatches} updates of a batch of {prompts} prompts, and an "
                "update here has whole groups; lower steps_per_generation, or raise per_device_train_batch_size"
            )
        updates = minibatches * args.num_iterations
        per_epoch = num_rows // prompts  # TRL leaves out the rows of a last batch that is not full
        if args.max_steps > 0:
            if args.max_steps % updates:
                near = args.max_steps // updates * updates
                raise ConfigError(
                    f"max_steps={args.max_steps} ends within a batch of {updates} updates (steps_per_generation, "
                    f"num_iterations); set max_steps={near or updates} or {near + updates}"
                )
            steps = args.max_steps // updates
        elif per_epoch == 0:
            raise ConfigError(
                f"a batch has {prompts} prompts and train_dataset has {num_rows} rows, so an epoch has no batch; set "
                "max_steps, or lower per_device_train_batch_size or gradient_accumulation_steps"
            )
        else:
            steps = math.ceil(args.num_train_epochs * per_epoch)
        return cls(prompts, minibatches, updates, steps, max(1, per_epoch))

    @property
    def total_updates(self) -> int:
        """Updates of the whole run: what TRL calls its steps."""
        return self.steps * self.updates

    def every(self, args: GRPOConfig, what: str) -> int | None:
        """Return the batches between two evaluations ("eval") or checkpoints ("save"); None: there are none between."""
        strategy = str(choice(args, f"{what}_strategy", STRATEGIES))
        if strategy == "no":
            return None
        if strategy == "epoch":
            return self.steps_per_epoch
        asked = getattr(args, f"{what}_steps")
        updates: float = args.logging_steps if asked is None else asked
        return max(1, math.ceil((updates * self.total_updates if updates < 1 else updates) / self.updates))


def _pieces(args: GRPOConfig) -> int:
    """Return steps_per_generation: the parts of the size of a device's batch in which a batch is computed."""
    size, whole = args.per_device_train_batch_size, args.generation_batch_size
    if whole is None:
        return int(args.steps_per_generation or args.gradient_accumulation_steps)
    if args.steps_per_generation is not None:
        raise ConfigError("generation_batch_size and steps_per_generation say the same; give one of them")
    if whole % size:
        raise ConfigError(
            f"generation_batch_size={whole} is no multiple of per_device_train_batch_size={size}; make it one"
        )
    return int(whole // size)


def schedule_fields(args: GRPOConfig, schedule: Schedule, has_evaluation: bool) -> dict[str, Any]:
    """Return the fields of steps, optimiser, checkpoints and evaluations. Raises: ConfigError."""
    between = schedule.every(args, "eval") if has_evaluation else None
    if not has_evaluation and args.eval_strategy != "no":
        raise ConfigError(f"eval_strategy={args.eval_strategy!r} without eval_dataset; give one, or leave it out")
    if between is not None and schedule.steps % min(between, schedule.steps):
        raise ConfigError(
            f"evaluations every {between} batches (eval_steps) do not divide the {schedule.steps} batches of the run, "
            "whose rounds have equal lengths; set eval_steps or max_steps so that they do"
        )
    per_round = min(between or schedule.steps, schedule.steps)
    saved = schedule.every(args, "save") or schedule.steps
    kept = args.save_total_limit if args.save_total_limit is not None else math.ceil(schedule.steps / saved)
    return {
        "rl.rounds": schedule.steps // per_round,
        "rl.steps_per_round": per_round,
        "rl.prompts_per_step": schedule.prompts,
        "rl.optimizer.betas": [args.adam_beta1, args.adam_beta2],
        "rl.optimizer.max_grad_norm": args.max_grad_norm or None,
        **_rate_fields(args, schedule.total_updates),
        "rl.reference": _reference(args, schedule),
        "evaluation.before_training": bool(args.eval_on_start),
        "evaluation.k": args.num_generations_eval or args.num_generations,
        "evaluation.temperature": args.temperature,
        "evaluation.top_p": args.top_p,
        "evaluation.limit": None,
        "checkpoint.every_steps": saved,
        "checkpoint.keep": kept,
    }


def _rate_fields(args: GRPOConfig, updates: int) -> dict[str, Any]:
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    numbers = dict(args.lr_scheduler_kwargs or {})
    if name not in SCHEDULES:
        raise ConfigError(f"lr_scheduler_type={name!r}; the schedules here are {', '.join(SCHEDULES)}")
    final = 0.0
    if name == "cosine_with_min_lr":
        lowest, share = numbers.pop("min_lr", None), numbers.pop("min_lr_rate", None)
        if (lowest is None) == (share is None):
            raise ConfigError(
                "lr_scheduler_type='cosine_with_min_lr' takes min_lr or min_lr_rate in lr_scheduler_kwargs"
            )
        final = share if lowest is None else lowest / args.learning_rate
    if numbers:
        raise ConfigError(
            f"lr_scheduler_kwargs has {next(iter(numbers))!r}, which lr_scheduler_type={name!r} has not here"
        )
    warmup = math.ceil(updates * args.warmup_steps) if args.warmup_steps < 1 else int(args.warmup_steps)
    if args.optim not in OPTIMIZERS:
        raise ConfigError(
            f"optim={str(args.optim)!r}: the optimiser is AdamW, with float32 masters of a bfloat16 policy; give one "
            f"of {', '.join(OPTIMIZERS)}, or leave it out"
        )
    return {
        "rl.optimizer.kind": OPTIMIZERS[args.optim],
        "rl.optimizer.schedule": name.split("_")[0],
        "rl.optimizer.warmup_steps": 0 if name == "constant" else warmup,
        "rl.optimizer.final_share": final,
    }


def _reference(args: GRPOConfig, schedule: Schedule) -> dict[str, Any]:
    if args.sync_ref_model and args.beta == 0:
        raise ConfigError("sync_ref_model=True with beta=0.0, which has no reference model; set beta, or leave it out")
    if not args.sync_ref_model:
        return {"schedule": "none" if args.beta == 0 else "frozen"}
    if args.ref_model_sync_steps % schedule.updates:
        raise ConfigError(
            f"ref_model_sync_steps={args.ref_model_sync_steps} falls within a batch of {schedule.updates} updates; "
            "make it a multiple of them"
        )
    every = args.ref_model_sync_steps // schedule.updates
    if args.ref_model_mixup_alpha == 1:
        return {"schedule": "every_n_steps", "every": every}
    return {"schedule": "ema", "alpha": args.ref_model_mixup_alpha, "every": every}
