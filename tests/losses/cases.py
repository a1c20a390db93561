"""The losses of docs/losses.md: ours by name, TRL's arguments by name and as the paper has it, and what differs."""

from dataclasses import dataclass, field
from typing import Any

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One loss. Arguments of TRL are those of `<trainer>Config`."""

    name: str
    source: str
    ours: tuple[str, Arguments]
    """A name of ours and its numbers; without numbers it is the preset."""
    named: Arguments
    """TRL's arguments of somebody who asks for the loss by its name."""
    asked: Arguments
    """TRL's arguments that are nearest to the paper."""
    why: str
    """What differs between TRL with `asked`, the paper and ours; empty: nothing."""
    same: Arguments = field(default_factory=dict)
    """Our numbers under which ours is TRL's with `asked`."""
    paper: Arguments = field(default_factory=dict)
    """Numbers of the paper's formula where ours has others."""
    trainer: str = "GRPO"
    same_name: str = ""
    """Name of ours for `same`; empty: that of `ours`."""


GSPO = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
EPS = {"eps": 1e-4}
BY_EPS = "TRL adds 1e-4 to the deviation, ours 1e-6"
TWO_SIDED: Arguments = {
    "advantage": {"name": "group_norm"}, "ratio": "token", "aggregate": "token_mean",
    "surrogate": {"name": "two_sided", "clip_low": 0.02, "clip_high": 0.05, "delta": 1.06},
}  # fmt: skip
NARROW: Arguments = {"epsilon": 0.02, "epsilon_high": 0.05}
RL: tuple[Case, ...] = (
    Case(
        "GRPO", "2402.03300", ("grpo", {}), {"loss_type": "grpo"},
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
        f"by name TRL has no KL, and with `beta` alone the KL times the ratio; {BY_EPS}", EPS,
    ),
    Case(
        "Dr. GRPO", "2503.20783", ("dr_grpo", {}), {"loss_type": "dr_grpo"},
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "by name TRL still divides by the deviation",
    ),
    Case(
        "DAPO", "2503.14476", ("dapo", {"overlong_buffer": None}), {"loss_type": "dapo"},
        {"loss_type": "dapo", "epsilon_high": 0.28},
        f"by name TRL's upper clip is 0.2; {BY_EPS}; the mean of eq. 8 is by prompt, that of both over the batch", EPS,
    ),
    Case(
        "GSPO", "2507.18071", ("gspo", {}), {"importance_sampling_level": "sequence"}, {"loss_type": "grpo", **GSPO},
        f"by name TRL's clip is 0.2 and its mean over tokens; {BY_EPS}", EPS,
    ),
    Case(
        "CISPO", "2506.13585", ("cispo", {}), {"loss_type": "cispo"}, {"loss_type": "cispo", "epsilon_high": 5.0},
        f"by name TRL's largest weight is 0.2, below every ratio; {BY_EPS}", EPS,
    ),
    Case("SAPO", "2511.20347", ("sapo", {}), {"loss_type": "sapo"}, {"loss_type": "sapo"}, BY_EPS, EPS),
    Case(
        "GMPO", "2507.20673", ("gmpo", {}), {}, {"loss_type": "grpo"}, BY_EPS, EPS, trainer="experimental.gmpo.GMPO"
    ),
    Case(
        "LUSPO", "2602.05261", ("luspo", {}), {"loss_type": "luspo"}, {"loss_type": "luspo", **GSPO},
        f"by name TRL's ratio is per token; {BY_EPS}", EPS,
    ),
    Case("VESPO", "2602.10693", ("vespo", {}), {"loss_type": "vespo"}, {"loss_type": "vespo"}, BY_EPS, EPS),
    Case(
        "two-sided clip (INTELLECT-2)", "2505.07291", ("custom", TWO_SIDED), {"delta": 1.06, **NARROW},
        {"delta": 1.06, **NARROW}, BY_EPS,
        {"advantage": {"name": "group_norm", **EPS}},
    ),
    Case(
        "GDPO", "2601.05242", ("gdpo", {}), {"multi_objective_aggregation": "normalize_then_sum"},
        {"multi_objective_aggregation": "normalize_then_sum", "loss_type": "grpo", "reward_weights": [1.0, 1.0]},
        f"by name TRL's mean is over tokens; {BY_EPS}", EPS,
    ),
    Case(
        "DeepSeek-V3.2", "2512.02556", ("deepseek_v32", {}), {"off_policy_mask_threshold": 0.1},
        {
            "off_policy_mask_threshold": 0.1, "loss_type": "grpo", "scale_rewards": "none", "beta": 0.001,
        },
        "by name TRL divides by the deviation, has no KL and a mean over tokens",
    ),
)  # fmt: skip


def _margin(name: str, source: str, kind: str, ours: Arguments | None = None, why: str = "", **more: Any) -> Case:
    theirs = {"loss_type": kind, **more.pop("asked", {})}
    named = {"loss_type": kind, **more.pop("named", {})}
    return Case(name, source, (more.pop("as_ours"), ours or {}), named, theirs, why, trainer="DPO", **more)


PAIRS: tuple[Case, ...] = (
    _margin("DPO", "2305.18290", "sigmoid", as_ours="dpo"),
    _margin(
        "DPO per token (Tulu 3)", "2411.15124", "sigmoid_norm", {"length_average": True}, as_ours="dpo",
    ),
    _margin(
        "IPO", "2310.12036", "ipo", as_ours="ipo", paper={"length_average": False},
        why="the formula sums log-ratios; TRL and ours average them per token, as the paper's results have it "
        "(`length_average: false` sums)",
    ),
    _margin("SLiC, RSO (hinge)", "2305.10425", "hinge", as_ours="hinge"),
    _margin(
        "robust DPO", "2403.00409", "robust", {"label_smoothing": 0.1}, as_ours="robust",
        asked={"label_smoothing": 0.1}, why="by name TRL's `label_smoothing` is 0, which is DPO",
    ),
    _margin(
        "EXO", "2402.00856", "exo_pair", as_ours="exo", named={"label_smoothing": 1e-3},
        asked={"label_smoothing": 1e-3}, why="TRL refuses its own default of 0 for `label_smoothing`",
    ),
    _margin("NCA", "2402.05369", "nca_pair", as_ours="nca"),
    _margin(
        "SPPO", "2405.00675", "sppo_hard", as_ours="sppo", asked={"beta": 1e-3}, why="by name TRL's `beta` is 0.1",
    ),
    _margin("APO-zero", "2408.06266", "apo_zero", as_ours="apo_zero", why="1 is added to the paper's, by TRL and ours"),
    _margin("APO-down", "2408.06266", "apo_down", as_ours="apo_down", why="1 is added to the paper's, by TRL and ours"),
    _margin(
        "BCO", "2404.04656", "bco_pair", as_ours="bco", paper={"shifted": True},
        why="the paper takes the mean reward of both sides off; TRL on pairs and ours do not",
    ),
    _margin("DiscoPOP", "2406.08414", "discopop", as_ours="discopop"),
    Case(
        "KTO", "2402.01306", ("kto", {}), {"loss_type": "kto"}, {"loss_type": "kto"}, "", trainer="KTO",
    ),
    Case(
        "CPO", "2401.08417", ("cpo", {}), {"loss_type": "sigmoid"}, {"loss_type": "sigmoid"},
        "the likelihood is a sum in the paper, in TRL a mean over all tokens, in ours by response; without it "
        "(`nll_coef: 0`, `cpo_alpha=0`) all are equal",
        paper={"summed": True}, trainer="experimental.cpo.CPO",
    ),
    Case(
        "SimPO", "2405.14734", ("simpo", {"gamma": 0.5}), {"loss_type": "simpo", "beta": 2.0},
        {"loss_type": "simpo", "beta": 2.0, "cpo_alpha": 0.0},
        "by name TRL adds the likelihood of the chosen response", trainer="experimental.cpo.CPO",
    ),
    Case(
        "ORPO", "2403.07691", ("orpo", {}), {}, {},
        "TRL's likelihood is a mean over all tokens, those of prompts too; ours is of the response, by response",
        trainer="experimental.orpo.ORPO",
    ),
)  # fmt: skip
