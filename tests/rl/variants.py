"""Every objective worth testing: all presets, and combinations for what no preset turns on."""

from __future__ import annotations

from typing import Any

from pipeline import registry
from pipeline.algorithms.base import load_algorithm
from pipeline.rl.parts import Parts

LONGEST = 9

_CUSTOM: dict[str, Any] = {"advantage": "group_norm", "ratio": "token", "surrogate": "clip", "aggregate": "token_mean"}
COMBINATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "dual_clip": ("custom", {**_CUSTOM, "surrogate": {"name": "dual_clip", "dual": 1.4}}),
    "two_sided": ("custom", {**_CUSTOM, "surrogate": {"name": "two_sided", "delta": 1.4}}),
    "cispo_low": ("cispo", {"clip_low": 0.2, "clip_high": 0.3}),
    "k1_loss": ("grpo", {"kl_form": "k1"}),
    "k2_loss": ("grpo", {"kl_form": "k2"}),
    "k3_unbiased_loss": ("grpo", {"kl_form": "k3_unbiased", "kl_coef": 0.5}),
    "kl_sequence": ("gmpo", {"kl_in": "loss", "kl_form": "k3", "kl_coef": 0.3}),
    "overlong_filter": ("grpo", {"overlong_filter": True}),
    "off_policy": ("grpo", {"off_policy_delta": 0.02}),
    "off_policy_tokens": ("ppo", {"off_policy_delta": 0.02}),
    "high_entropy": ("dapo", {"high_entropy_share": 0.2}),
    "tis_token": ("grpo", {"mismatch_level": "token", "mismatch_cap": 1.2, "mismatch_floor": 0.7}),
    "tis_sequence": ("gspo", {"mismatch_level": "sequence", "mismatch_cap": 1.2}),
    "mis_geometric": (
        "grpo",
        {"mismatch_level": "geometric", "mismatch_action": "mask", "mismatch_cap": 1.1, "mismatch_floor": 0.9},
    ),
    "mis_token": ("dapo", {"mismatch_level": "token", "mismatch_action": "mask", "mismatch_cap": 1.2}),
    "entropy": ("dr_grpo", {"entropy_coef": 0.3}),
    "wide_sequence": ("gspo", {"clip_low": 0.2, "clip_high": 0.2, "allow": ["wide_sequence_clip"]}),
    "product_clip": (
        "custom",
        {
            **_CUSTOM,
            "ratio": "sequence_product",
            "aggregate": "sequence_mean_token_mean",
            "allow": ["product_ratio_clip"],
        },
    ),
    "sequence_gate": ("custom", {**_CUSTOM, "surrogate": "soft_gate", "ratio": "sequence_token", "kl": "none"}),
}
COMBINATIONS["sequence_gate"][1]["aggregate"] = "sequence_mean_token_mean"


def variants() -> dict[str, Parts]:
    """Parts by name, lengths resolved."""
    presets = {name: (name, {}) for name in registry.names("algorithms") if name != "custom"}
    return {
        key: load_algorithm(name, params)[1].resolve(LONGEST)
        for key, (name, params) in {**presets, **COMBINATIONS}.items()
    }
