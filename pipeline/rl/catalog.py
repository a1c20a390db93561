"""What each named part is: its formula, its source, the numbers it takes and their bounds. Loads no tensors.

The functions themselves are in `advantages.py` and `surrogates.py`; a test holds this table against their signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.errors import ConfigError

Option = float | int | bool | str | None | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """What an option may be: a number in (low, high], one of `choices`, a flag, or also None."""

    low: float = float("-inf")
    high: float = float("inf")
    choices: tuple[str, ...] = ()
    flag: bool = False
    optional: bool = False
    open_low: bool = False
    many: bool = False

    def check(self, where: str, value: Option) -> None:
        """Nothing. Raises: ConfigError naming the option, its value and what is allowed."""
        if value is None and self.optional:
            return
        if not self._holds(value):
            raise ConfigError(f"{where} must be {self}, got {value!r}")

    def _holds(self, value: Option) -> bool:
        if self.choices:
            return value in self.choices
        if self.flag:
            return isinstance(value, bool)
        if self.many:
            return isinstance(value, tuple) and len(value) > 0 and all(isinstance(v, (int, float)) for v in value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high

    def __str__(self) -> str:
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        elif self.flag:
            text = "true or false"
        elif self.many:
            text = "a list of numbers"
        else:
            text = f"a number {'>' if self.open_low else '>='} {self.low:g}"
            text += f" and <= {self.high:g}" if self.high != float("inf") else ""
        return text + (", or null" if self.optional else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """One named part. `formula` has the option names in braces, and explanations after the first semicolon."""

    formula: str
    source: str
    options: Mapping[str, Bound] = field(default_factory=dict)
    per_token: bool = False
    """The advantage may differ from token to token of one response."""
    needs: frozenset[str] = frozenset()
    ratios: tuple[str, ...] = ()
    """Ratio levels that this surrogate has a meaning with."""
    whole_response: bool = False
    """The surrogate has one value for the whole response."""


POSITIVE = Bound(low=0.0, open_low=True)
NON_NEGATIVE = Bound(low=0.0)
DDOF = Bound(low=0, high=1)
STD = Bound(choices=("group", "batch", "leave_one_out", "none"))
UNIT = Bound(low=0.0, high=1.0)
CLIPS = {"clip_low": Bound(low=0.0, high=1.0, open_low=True), "clip_high": POSITIVE}
SPREAD = {"ddof": DDOF, "eps": NON_NEGATIVE}
RATIOS = ("token", "sequence", "sequence_token", "sequence_product")

ADVANTAGES: dict[str, Entry] = {
    "gae": Entry(
        "A_t = delta_t + {gamma} * {lam} * A_(t+1); delta_t = r_t + {gamma} * V_(t+1) - V_t, returns = A + V",
        "arXiv:1506.02438 eq. 16; decoupled and length-adaptive lambda arXiv:2503.01491, 2504.05118",
        {
            "gamma": UNIT,
            "lam": UNIT,
            "lam_critic": Bound(low=0.0, high=1.0, optional=True),
            "length_alpha": Bound(low=0.0, open_low=True, optional=True),
            "bootstrap_truncated": Bound(flag=True),
            "whiten": Bound(flag=True),
            **SPREAD,
        },
        per_token=True,
        needs=frozenset({"critic"}),
    ),
    "group_norm": Entry(
        "A_i = (R_i - {baseline} of the group) / (std over {std} + {eps}), ddof {ddof}",
        "arXiv:2402.03300 section 4.1.2",
        {"baseline": Bound(choices=("mean", "leave_one_out")), "std": STD, **SPREAD},
    ),
    "group_mean": Entry("A_i = R_i - mean of the group", "arXiv:2503.20783"),
    "leave_one_out": Entry("A_i = R_i - mean of the group's others", "arXiv:2402.14740"),
    "max_rl": Entry("A_i = (R_i - mean) / mean of the group; 0 where mean <= 0", "arXiv:2602.02710"),
    "greedy_baseline": Entry(
        "A_i = R_i - R of the greedy response", "arXiv:2310.10505 algorithm 1", needs=frozenset({"greedy"})
    ),
    "reward_to_go_norm": Entry(
        "A_t = sum_(s>=t) {gamma}^(s-t) r_s; whitened over all tokens of the batch (ddof {ddof}, eps {eps})",
        "arXiv:2501.03262",
        {"gamma": UNIT, **SPREAD},
        per_token=True,
    ),
    "group_mean_batch_norm": Entry(
        "A_i = R_i - mean of the group; whitened over the batch (ddof {ddof}, eps {eps})",
        "arXiv:2501.03262",
        SPREAD,
    ),
    "optimal_baseline": Entry("A_i = R_i - sum_j |y_j| R_j / sum_j |y_j|", "arXiv:2505.23585"),
    "none": Entry("A_i = R_i", "Williams 1992"),
    "normalize_then_sum": Entry(
        "A_i = whiten_batch( sum_k w_k (R_ik - mean_g) / (std_g + {eps}) ); w = {weights}",
        "arXiv:2601.05242",
        {"weights": Bound(many=True, optional=True), **SPREAD},
        needs=frozenset({"components"}),
    ),
}

SURROGATES: dict[str, Entry] = {
    "clip": Entry(
        "min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A)", "arXiv:1707.06347 eq. 7", CLIPS, ratios=RATIOS
    ),
    "dual_clip": Entry(
        "min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A); not below {dual} A where A < 0",
        "arXiv:1912.09729",
        {**CLIPS, "dual": Bound(low=1.0, open_low=True)},
        ratios=RATIOS,
    ),
    "two_sided": Entry(
        "min(min(r, {delta}) A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A)",
        "arXiv:2505.07291",
        {**CLIPS, "delta": Bound(low=1.0, open_low=True)},
        ratios=RATIOS,
    ),
    "cispo": Entry(
        "sg[clip(r, 1 - {clip_low}, 1 + {clip_high})] A log pi",
        "arXiv:2506.13585 eq. 4 and 5",
        {"clip_low": Bound(low=0.0, high=1.0, optional=True), "clip_high": POSITIVE},
        ratios=("token", "sequence", "sequence_product"),
    ),
    "geometric_mean": Entry(
        "A exp(mean_t s min(s log r_t, clip(s log r_t, -{clip}, {clip}))); s = sign A",
        "arXiv:2507.20673",
        {"clip": POSITIVE},
        ratios=("token",),
        whole_response=True,
    ),
    "soft_gate": Entry(
        "(4 / tau) sigmoid(tau (r - 1)) A; tau = {tau_positive} where A > 0, else {tau_negative}",
        "arXiv:2511.20347",
        {"tau_positive": POSITIVE, "tau_negative": POSITIVE},
        ratios=RATIOS,
    ),
    "squared": Entry(
        "-(A - {tau} log(pi(y) / pi_old(y)))^2",
        "arXiv:2501.12599 eq. 3; 2507.20534 section 3.2.3",
        {"tau": POSITIVE},
        ratios=("sequence_product",),
        whole_response=True,
    ),
    "gamma_weight": Entry(
        "sg[exp(l + k log w - l w)] A log pi; w = pi(y) / pi_old(y), "
        "(k, l) = ({k_positive}, {lambda_positive}) where A >= 0, else ({k_negative}, {lambda_negative})",
        "arXiv:2602.10693",
        dict.fromkeys(("k_positive", "lambda_positive", "k_negative", "lambda_negative"), POSITIVE),
        ratios=("sequence_product",),
    ),
    "clip_cov": Entry(
        "min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A); 0 on a random share {share} of all tokens, drawn among "
        "those with {cov_low} <= cov <= {cov_high}, cov = (log pi - mean)(A - mean)",
        "arXiv:2505.22617",
        {**CLIPS, "share": UNIT, "cov_low": Bound(), "cov_high": Bound()},
        ratios=("token",),
    ),
    "kl_cov": Entry(
        "r A - {coef} K |log pi_old - log pi|; K is 1 on the share {share} of all tokens of highest cov, else 0, "
        "cov = (log pi - mean)(A - mean)",
        "arXiv:2505.22617",
        {"share": UNIT, "coef": NON_NEGATIVE},
        ratios=("token",),
    ),
    "reinforce": Entry("A log pi", "Williams 1992", ratios=("none",)),
}

AGGREGATES: dict[str, str] = {
    "sequence_mean_token_mean": "mean_i (1/|y_i|) sum_t",
    "token_mean": "(1 / sum_i |y_i|) sum_i sum_t",
    "sequence_mean_token_sum_norm": "mean_i (1/{norm_length}) sum_t",
    "sequence_mean_token_sum": "mean_i sum_t",
    "sequence_mean": "mean_i",
}

KL_FORMS: dict[str, str] = {  # d = log pi_ref - log pi
    "k1": "-d",
    "k2": "d^2 / 2",
    "k3": "exp(d) - d - 1",
    "k3_unbiased": "(pi / pi_old) (exp(d) - d - 1)",
}
