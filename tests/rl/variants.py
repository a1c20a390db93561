"""Every objective worth testing: all presets, and combinations for what no preset turns on."""

from verizero.pipeline import registry
from verizero.pipeline.algorithms.base import load_algorithm

LONGEST = 9

_CUSTOM = {"advantage": "group_norm", "ratio": "token", "surrogate": "clip", "aggregate": "token_mean"}
_ICEPOP = {"mismatch_level": "token", "mismatch_action": "mask", "mismatch_floor": 0.8, "mismatch_cap": 1.25}
COMBINATIONS = {
    "dual_clip": ("custom", {**_CUSTOM, "surrogate": {"name": "dual_clip", "dual": 1.4}}),
    "two_sided": ("custom", {**_CUSTOM, "surrogate": {"name": "two_sided", "delta": 1.4}}),
    "cispo_low": ("cispo", {"clip_low": 0.2, "clip_high": 0.3}),
    "k1_loss": ("grpo", {"kl_form": "k1", "allow": ["k1_in_loss"]}),
    "k2_loss": ("grpo", {"kl_form": "k2"}),
    "k3_unbiased_loss": ("grpo", {"kl_form": "k3_unbiased", "kl_coef": 0.5}),
    "k3_ratio_of_a_response": (
        "gspo",
        {"kl_in": "loss", "kl_form": "k3_ratio", "kl_coef": 0.5, "off_policy_delta": 0.02},
    ),
    "k3_ratio_of_tokens": ("dapo", {"kl_in": "loss", "kl_form": "k3_ratio", "kl_coef": 0.5, "kl_cap": 0.02}),
    "k1_plus_loss": ("grpo", {"kl_form": "k1_plus", "kl_coef": 0.5}),
    "k3_plus_loss": ("grpo", {"kl_form": "k3_plus", "kl_coef": 0.5}),
    "k3_capped_loss": ("grpo", {"kl_form": "k3", "kl_coef": 0.5, "kl_cap": 0.02}),
    "k3_unbiased_capped_loss": ("grpo", {"kl_form": "k3_unbiased", "kl_coef": 0.5, "kl_cap": 0.02}),
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
    "gspo_high_entropy": ("gspo", {"high_entropy_share": 0.2}),
    "luspo_high_entropy": ("luspo", {"high_entropy_share": 0.2}),
    "gmpo_high_entropy": ("gmpo", {"high_entropy_share": 0.2}),
    "kimi_k2_high_entropy": ("kimi_k2", {"high_entropy_share": 0.2}),
    "gspo_mask": ("gspo", _ICEPOP),
    "gspo_token_mask": ("gspo_token", _ICEPOP),
    "luspo_mask": ("luspo", _ICEPOP),
    "gmpo_mask": ("gmpo", _ICEPOP),
    "kimi_k2_mask": ("kimi_k2", _ICEPOP),
    "vespo_mask": ("vespo", _ICEPOP),
    "gmpo_tis": ("gmpo", {"mismatch_level": "token", "mismatch_cap": 1.2}),
    "rejected": ("grpo", {"mismatch_reject": {"max_k2": 0.15, "sum_k1": (-0.9, 0.9)}}),
    "rejected_tokens": ("gspo", {"mismatch_level": "token", "mismatch_reject": {"token_k3": 0.05, "mean_k3": 0.1}}),
    "stale_bypass": ("grpo", {"mismatch_stale": "bypass", "mismatch_level": "token"}),
    "stale_decoupled": ("grpo", {"mismatch_stale": "decoupled", "mismatch_level": "token"}),
    "stale_decoupled_gspo": ("gspo", {"mismatch_stale": "decoupled", **_ICEPOP}),
    "dppo_tight": ("dppo", {"threshold_low": 0.03, "threshold_high": 0.02, "ratio_cap": 1.2, "drift_coef": 0.1}),
    "dppo_symmetric": ("prime_rl", {"symmetric": True, "threshold_low": 0.03, "threshold_high": 0.02}),
    "dppo_symmetric_kl": ("dppo", {"symmetric": True, "divergence": "kl", "threshold_low": 1e-3}),
    "binary_kl_gate": ("grpo", {"mismatch_reject": {"mean_binary_kl": 0.02}}),
    "dppo_kl": ("dppo", {"divergence": "kl", "threshold_low": 0.01, "threshold_high": 0.02}),
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
    "sequence_gate": (
        "custom",
        {**_CUSTOM, "surrogate": "soft_gate", "ratio": "sequence_token", "aggregate": "sequence_mean_token_mean"},
    ),
}


def variants():
    """Parts by name, lengths resolved."""
    presets = {name: (name, {}) for name in registry.names("algorithms") if name != "custom"}
    return {
        key: load_algorithm(name, params)[1].resolve(LONGEST)
        for key, (name, params) in {**presets, **COMBINATIONS}.items()
    }


def rows_like(parts):
    """The kind of random rows that reach every branch of the parts, as arguments of `random_rows`."""
    stale = parts.params.mismatch_level == "token" or bool(parts.params.criteria)
    return {"per_token": parts.token_advantage, "stale": stale}
