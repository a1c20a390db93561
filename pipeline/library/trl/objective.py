"""The objective of TRL's GRPO as parts of `rl.algorithm`: the same loss and gradient on the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.library.trl.config import GRPOConfig

EPS = 1e-4
"""TRL adds it to a standard deviation of rewards."""
NO_CAP = 1e9
"""Above any weight: log-ratios are clamped to 20."""
AGGREGATES = {
    "grpo": "sequence_mean_token_mean",
    "sapo": "sequence_mean_token_mean",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "vespo": "token_mean",
    "dr_grpo": "sequence_mean_token_sum_norm",
    "luspo": "sequence_mean_token_sum",
}
"""`loss_type` -> how the values of tokens become one number."""
SCALES = {True: "group", False: "none", "group": "group", "batch": "batch", "none": "none"}
MODES = {
    "token_truncate": ("token", "truncate"),
    "token_mask": ("token", "mask"),
    "sequence_truncate": ("sequence", "truncate"),
    "sequence_mask": ("sequence", "mask"),
}
"""`vllm_importance_sampling_mode` -> level and action of the mismatch."""


def choice(args: GRPOConfig, name: str, known: Sequence[Any] | Mapping[Any, Any]) -> Any:
    """Return the argument's value. Raises: ConfigError unless it is one of `known`."""
    value = getattr(args, name)
    if not isinstance(value, (str, bool)) or value not in known:
        raise ConfigError(f"{name}={value!r}; give one of {', '.join(map(str, known))}")
    return value


def algorithm_of(args: GRPOConfig, num_rewards: int, num_minibatches: int) -> dict[str, Any]:
    """Return `rl.algorithm` for the arguments, `num_rewards` reward functions and the optimiser steps of a pass.

    Raises: ConfigError for a combination that this project has no equal of.
    """
    loss = choice(args, "loss_type", AGGREGATES)
    level = choice(args, "importance_sampling_level", ("token", "sequence"))
    if loss == "bnpo" and args.gradient_accumulation_steps > 1:
        raise ConfigError(
            f"loss_type='bnpo' with gradient_accumulation_steps={args.gradient_accumulation_steps} divides by the "
            "tokens of each part of a batch, so that the loss depends on how it is cut; set "
            "gradient_accumulation_steps=1 and a larger per_device_train_batch_size, or loss_type='dapo'"
        )
    surrogate, clips = _surrogate(args, loss)
    aggregate = AGGREGATES[loss]
    tree: dict[str, Any] = {
        "name": "custom",
        "advantage": _advantage(args, num_rewards),
        "ratio": "sequence_product" if loss == "vespo" else level,  # VESPO's weight is of the response in any case
        "surrogate": surrogate,
        "aggregate": aggregate,
        "num_epochs": args.num_iterations,
        "num_minibatches": num_minibatches,
        **_kl(args, loss, level),
        **_masks(args, loss, level),
        **_entropy(args),
        **(_mismatch(args, loss, level) if args.use_vllm and args.vllm_importance_sampling_correction else {}),
    }
    unusual = {
        "wide_sequence_clip": level == "sequence" and bool(clips) and max(clips) > 0.05,
        "narrow_token_clip": level == "token" and bool(clips) and max(clips) < 0.01,
        "sequence_ratio_token_mean": tree["ratio"] == "sequence" and aggregate == "token_mean",
        "cut_sampling": args.top_p < 1 or args.top_k > 0,
    }
    # TRL has all of these without a word.
    return {**tree, "allow": [name for name, is_so in unusual.items() if is_so]}


def _surrogate(args: GRPOConfig, loss: str) -> tuple[dict[str, Any], list[float]]:
    """Return the surrogate, and the widths of its clip, if it has one."""
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if loss == "sapo":
        taus = {"tau_positive": args.sapo_temperature_pos, "tau_negative": args.sapo_temperature_neg}
        return {"name": "soft_gate", **taus}, []
    if loss == "vespo":
        signs = {"positive": "pos", "negative": "neg"}
        shapes = {
            f"{k}_{s}": getattr(args, f"vespo_{k}_{short}") for s, short in signs.items() for k in ("k", "lambda")
        }
        return {"name": "gamma_weight", **shapes}, []
    if loss == "cispo":
        if high <= 1:
            raise ConfigError(
                f"loss_type='cispo' with a largest weight of {high:g} (epsilon_high, or else epsilon) bounds every "
                "weight below 1; set epsilon_high=5.0"
            )
        # TRL's number is the largest weight itself, ours its distance from 1.
        return {"name": "cispo", "clip_low": None, "clip_high": high - 1}, [high - 1]
    clips = {"clip_low": args.epsilon, "clip_high": high}
    if args.delta is not None:
        return {"name": "two_sided", **clips, "delta": args.delta}, [args.epsilon, high]
    return {"name": "clip", **clips}, [args.epsilon, high]


def _advantage(args: GRPOConfig, num_rewards: int) -> dict[str, Any]:
    known = ("sum_then_normalize", "normalize_then_sum")
    scale = SCALES[choice(args, "scale_rewards", SCALES)]
    if choice(args, "multi_objective_aggregation", known) == "sum_then_normalize":
        return {"name": "group_norm", "baseline": "mean", "std": scale, "ddof": 1, "eps": EPS}
    if num_rewards < 2:
        raise ConfigError(
            "multi_objective_aggregation='normalize_then_sum' normalises each of several rewards, and there is one; "
            "leave it out"
        )
    weights = [1.0] * num_rewards if args.reward_weights is None else [float(w) for w in args.reward_weights]
    return {"name": "normalize_then_sum", "weights": weights, "ddof": 1, "eps": EPS}


def _kl(args: GRPOConfig, loss: str, level: str) -> dict[str, Any]:
    if args.beta == 0:
        return {"kl_in": "none"}
    form = "k3" if not args.use_bias_correction_kl else "k3_unbiased" if level == "token" else "k3_ratio"
    if form == "k3_ratio" and loss == "vespo":
        raise ConfigError(
            "beta with loss_type='vespo', importance_sampling_level='sequence' and use_bias_correction_kl=True needs "
            "two ratios of a response; set importance_sampling_level='token', which vespo does not read otherwise"
        )
    return {"kl_in": "loss", "kl_form": form, "kl_coef": args.beta}


def _masks(args: GRPOConfig, loss: str, level: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    if args.mask_truncated_completions:
        tree |= {"overlong_filter": True, "overlong_counts": True}
    if args.off_policy_mask_threshold is not None:
        tree["off_policy_delta"] = args.off_policy_mask_threshold
    if args.top_entropy_quantile < 1:
        share = f"top_entropy_quantile={args.top_entropy_quantile:g}"
        if level == "sequence" or loss == "vespo":
            raise ConfigError(
                f"{share} with a ratio of whole responses: the ratio here is of the tokens that train; set "
                "importance_sampling_level='token' and another loss_type than vespo, or top_entropy_quantile=1.0"
            )
        if args.entropy_coef != 0 or args.use_adaptive_entropy:
            raise ConfigError(
                f"{share} with an entropy bonus: the bonus here is of all tokens; set top_entropy_quantile=1.0, or "
                "entropy_coef=0 without use_adaptive_entropy"
            )
        tree["high_entropy_share"] = args.top_entropy_quantile
    return tree


def _entropy(args: GRPOConfig) -> dict[str, Any]:
    tree: dict[str, Any] = {} if args.entropy_coef == 0 else {"entropy_coef": args.entropy_coef}
    if args.use_adaptive_entropy:
        tree |= {
            "entropy_target": args.entropy_target,
            "entropy_step": args.entropy_coef_delta,
            "entropy_max": args.entropy_coef_max,
        }
    return tree


def _mismatch(args: GRPOConfig, loss: str, level: str) -> dict[str, Any]:
    name = choice(args, "vllm_importance_sampling_mode", MODES)
    of, action = MODES[name]
    setting = f"vllm_importance_sampling_mode={name!r}"
    if loss == "vespo":
        raise ConfigError(
            f"loss_type='vespo' with use_vllm: TRL puts the weights of {setting} inside its own; set "
            "vllm_importance_sampling_correction=False"
        )
    if of == "token" and level == "sequence":
        raise ConfigError(
            f"{setting} with importance_sampling_level='sequence' weighs the tokens of one value; set "
            f"vllm_importance_sampling_mode='sequence_{action}'"
        )
    high, low = args.vllm_importance_sampling_clip_max, args.vllm_importance_sampling_clip_min
    if high is None and low is None and action == "truncate":
        raise ConfigError(f"{setting} needs vllm_importance_sampling_clip_max or vllm_importance_sampling_clip_min")
    return {
        "mismatch_level": of,
        "mismatch_action": action,
        "mismatch_cap": NO_CAP if high is None else high,
        "mismatch_floor": 0.0 if low is None else low,
    }
