"""Catalog of named parts: the formula, source, function, needs and options of each advantage and surrogate.

A new advantage or surrogate is a function in `advantages.py` or `surrogates.py` and one entry here. An entry names its
function by text, because choosing an algorithm must not load tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from pipeline.errors import ConfigError

OptionValue = float | int | bool | str | None | tuple[float, ...]
Function = str | Callable[..., Any]
"""A callable, or the text `module.name` of one in this package."""
INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a part: its default, its description, and the values that it may have.

    Values are numbers in [low, high] and above `above`; or one of `choices`; or true and false, where the default is
    one of these; or a list of numbers, where `many` is true. A default of None allows None too.
    """

    default: OptionValue
    description: str
    low: float = -INFINITY
    above: float | None = None
    high: float = INFINITY
    choices: tuple[str, ...] = ()
    many: bool = False

    def check(self, where: str, value: OptionValue) -> None:
        """Raise ConfigError naming the option, the value and what is allowed, unless the value is allowed."""
        if value is None and self.default is None:
            return
        if not self._allows(value):
            raise ConfigError(f"{where} must be {self}, got {value!r}")

    def _allows(self, value: OptionValue) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(self.default, bool):
            return isinstance(value, bool)
        if self.many:
            return isinstance(value, tuple) and len(value) > 0 and all(isinstance(v, (int, float)) for v in value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):  # to Python a bool is an int
            return False
        return (self.above is None or value > self.above) and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        elif isinstance(self.default, bool):
            text = "true or false"
        elif self.many:
            text = "a list of numbers"
        else:
            bounds = [f"> {self.above:g}"] if self.above is not None else []
            bounds += [f">= {self.low:g}"] if self.low != -INFINITY else []
            bounds += [f"<= {self.high:g}"] if self.high != INFINITY else []
            text = " ".join(["a number", " and ".join(bounds)]).rstrip()
        return text + (", or null" if self.default is None else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """A named part. `formula` has the option names in braces, and explanations after the first semicolon."""

    formula: str
    source: str
    function: Function
    options: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdvantageEntry(Entry):
    """A named advantage."""

    needs: frozenset[str] = frozenset()
    """Inputs besides rewards: "group", "critic", "greedy", "components"."""
    per_token: bool = False
    """The advantage may differ between the tokens of a response."""
    divides: bool = False
    """The advantage is divided, unless option `std` is "none", so that it is no longer in the reward's unit."""


@dataclass(frozen=True, slots=True)
class SurrogateEntry(Entry):
    """A named surrogate."""

    ratios: tuple[str, ...] = ("token", "sequence", "sequence_token", "sequence_product")
    """Levels of the importance ratio that the surrogate has a meaning with."""
    whole_response: bool = False
    """The surrogate has one value for the whole response."""
    checks_width: bool = False
    """The rules compare the width of the clip to the level of the ratio."""
    selects: Function | None = None
    """Function that selects tokens once for the whole batch, by covariance; None: the surrogate needs no selection."""


def load(function: Function) -> Callable[..., Any]:
    """Return the callable that an entry names. Importing its module loads tensors."""
    if not isinstance(function, str):
        return function
    module, _, name = function.rpartition(".")
    loaded: Callable[..., Any] = getattr(import_module(f"pipeline.rl.{module}"), name)
    return loaded


GAMMA = Option(1.0, "discount per token", low=0, high=1)
SPREAD = {
    "ddof": Option(1, "1: sample standard deviation, 0: population's", low=0, high=1),
    "eps": Option(1e-6, "added to the standard deviation", low=0),
}
CLIPS = {
    "clip_low": Option(0.2, "a ratio below 1 - clip_low stops pushing down", above=0, high=1),
    "clip_high": Option(0.2, "a ratio above 1 + clip_high stops pushing up", above=0),
}
KL_CREDIT = {
    "kl_credit": Option(
        "to_go",
        "a token answers for the kl in the reward from itself to the end, or for that of the whole response",
        choices=("to_go", "response"),
    )
}
GROUP = frozenset({"group"})

ADVANTAGES: dict[str, AdvantageEntry] = {
    "gae": AdvantageEntry(
        "A_t = delta_t + {gamma} * {lam} * A_(t+1); delta_t = r_t + {gamma} * V_(t+1) - V_t, returns = A + V",
        "arXiv:1506.02438 eq. 16; decoupled and length-adaptive lambda arXiv:2503.01491, 2504.05118",
        "advantages.gae",
        {
            "gamma": GAMMA,
            "lam": Option(0.95, "lambda of GAE", low=0, high=1),
            "lam_critic": Option(None, "lambda of the critic's returns; null: the same", low=0, high=1),
            "length_alpha": Option(None, "lambda = 1 - 1 / (alpha length) for the policy", above=0),
            "bootstrap_truncated": Option(False, "a truncated response ends with the critic's value, not 0"),
            "whiten": Option(True, "advantages are brought to mean 0 and deviation 1 over the batch"),
            **SPREAD,
        },
        needs=frozenset({"critic"}),
        per_token=True,
    ),
    "group_norm": AdvantageEntry(
        "A_i = (R_i - {baseline} of the group) / (std over {std} + {eps}), ddof {ddof}",
        "arXiv:2402.03300 section 4.1.2",
        "advantages.group_norm",
        {
            "baseline": Option(
                "mean", "mean of the whole group, or of its other responses", choices=("mean", "leave_one_out")
            ),
            "std": Option(
                "group",
                "standard deviation that rewards are divided by",
                choices=("group", "batch", "leave_one_out", "none"),
            ),
            **SPREAD,
        },
        needs=GROUP,
        divides=True,
    ),
    "group_mean": AdvantageEntry(
        "A_i = R_i - mean of the group", "arXiv:2503.20783", "advantages.group_mean", needs=GROUP
    ),
    "leave_one_out": AdvantageEntry(
        "A_i = R_i - mean of the group's others", "arXiv:2402.14740", "advantages.leave_one_out", needs=GROUP
    ),
    "max_rl": AdvantageEntry(
        "A_i = (R_i - mean) / mean of the group; 0 where mean <= 0",
        "arXiv:2602.02710",
        "advantages.max_rl",
        needs=GROUP,
        divides=True,
    ),
    "greedy_baseline": AdvantageEntry(
        "A_i = R_i - R of the greedy response; kl in the reward counts by {kl_credit}",
        "arXiv:2310.10505 algorithm 1",
        "advantages.greedy_baseline",
        KL_CREDIT,
        needs=frozenset({"greedy"}),
    ),
    "reward_to_go_norm": AdvantageEntry(
        "A_t = sum_(s>=t) {gamma}^(s-t) r_s; whitened over all tokens of the batch (ddof {ddof}, eps {eps})",
        "arXiv:2501.03262",
        "advantages.reward_to_go_norm",
        {"gamma": GAMMA, **SPREAD},
        per_token=True,
    ),
    "group_mean_batch_norm": AdvantageEntry(
        "A_i = R_i - mean of the group; whitened over all {over} of the batch (ddof {ddof}, eps {eps})",
        "arXiv:2501.03262",
        "advantages.group_mean_batch_norm",
        {
            "over": Option(
                "tokens", "what counts once: each token, or each response however long", choices=("tokens", "responses")
            ),
            **SPREAD,
        },
        needs=GROUP,
        divides=True,
    ),
    "optimal_baseline": AdvantageEntry(
        "A_i = R_i - sum_j |y_j| R_j / sum_j |y_j|", "arXiv:2505.23585", "advantages.optimal_baseline", needs=GROUP
    ),
    "none": AdvantageEntry(
        "A_i = R_i; kl in the reward counts by {kl_credit}", "Williams 1992", "advantages.none", KL_CREDIT
    ),
    "normalize_then_sum": AdvantageEntry(
        "A_i = whiten_batch( sum_k w_k (R_ik - mean_g) / (std_g + {eps}) ); w = {weights}",
        "arXiv:2601.05242",
        "advantages.normalize_then_sum",
        {"weights": Option(None, "one for each reward component; null: all 1", many=True), **SPREAD},
        needs=frozenset({"components", "group"}),
        divides=True,
    ),
}

SURROGATES: dict[str, SurrogateEntry] = {
    "clip": SurrogateEntry(
        "min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A)",
        "arXiv:1707.06347 eq. 7",
        "surrogates.clip",
        CLIPS,
        checks_width=True,
    ),
    "dual_clip": SurrogateEntry(
        "min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A); not below {dual} A where A < 0",
        "arXiv:1912.09729",
        "surrogates.dual_clip",
        {**CLIPS, "dual": Option(3.0, "bound on the loss where A < 0", above=1)},
        checks_width=True,
    ),
    "two_sided": SurrogateEntry(
        "min(min(r, {delta}) A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A)",
        "arXiv:2505.07291",
        "surrogates.two_sided",
        {**CLIPS, "delta": Option(4.0, "largest ratio that counts where A < 0", above=1)},
        checks_width=True,
    ),
    "cispo": SurrogateEntry(
        "sg[clip(r, 1 - {clip_low}, 1 + {clip_high})] A log pi",
        "arXiv:2506.13585 eq. 4 and 5",
        "surrogates.cispo",
        {
            "clip_low": Option(None, "weights stay above 1 - clip_low; null: no bound", low=0, high=1),
            "clip_high": Option(4.0, "a ratio above 1 + clip_high stops pushing up", above=0),
        },
        ratios=("token", "sequence", "sequence_product"),
        checks_width=True,
    ),
    "geometric_mean": SurrogateEntry(
        "A exp(mean_t s min(s log r_t, clip(s log r_t, -{clip}, {clip}))); s = sign A",
        "arXiv:2507.20673",
        "surrogates.geometric_mean",
        {"clip": Option(0.4, "token log-ratios are clipped to plus or minus this", above=0)},
        ratios=("token",),
        whole_response=True,
    ),
    "soft_gate": SurrogateEntry(
        "(4 / tau) sigmoid(tau (r - 1)) A; tau = {tau_positive} where A > 0, else {tau_negative}",
        "arXiv:2511.20347",
        "surrogates.soft_gate",
        {
            "tau_positive": Option(1.0, "steepness of the gate where A > 0", above=0),
            "tau_negative": Option(1.05, "steepness of the gate where A <= 0", above=0),
        },
    ),
    "squared": SurrogateEntry(
        "-(A - {tau} log(pi(y) / pi_old(y)))^2",
        "arXiv:2501.12599 eq. 3; 2507.20534 section 3.2.3",
        "surrogates.squared",
        {"tau": Option(0.5, "log-ratio is pulled to advantage / tau", above=0)},
        ratios=("sequence_product",),
        whole_response=True,
    ),
    "gamma_weight": SurrogateEntry(
        "sg[exp(l + k log w - l w)] A log pi; w = pi(y) / pi_old(y), "
        "(k, l) = ({k_positive}, {lambda_positive}) where A >= 0, else ({k_negative}, {lambda_negative})",
        "arXiv:2602.10693",
        "surrogates.gamma_weight",
        {
            "k_positive": Option(2.0, "shape where A >= 0", above=0),
            "lambda_positive": Option(3.0, "rate where A >= 0", above=0),
            "k_negative": Option(3.0, "shape where A < 0", above=0),
            "lambda_negative": Option(2.0, "rate where A < 0", above=0),
        },
        ratios=("sequence_product",),
    ),
    "clip_cov": SurrogateEntry(
        "min(r A, clip(r, 1 - {clip_low}, 1 + {clip_high}) A); 0 on a random share {share} of all tokens, drawn among "
        "those with {cov_low} <= cov <= {cov_high}, cov = (log pi - mean)(A - mean)",
        "arXiv:2505.22617",
        "surrogates.clip_cov",
        {
            **CLIPS,
            "share": Option(2e-4, "share of all tokens that have no gradient", low=0, high=1),
            "cov_low": Option(1.0, "lowest covariance of a token that may be drawn"),
            "cov_high": Option(5.0, "highest covariance of a token that may be drawn"),
        },
        ratios=("token",),
        selects="selection.random_by_covariance",
    ),
    "kl_cov": SurrogateEntry(
        "r A - {coef} K |log pi_old - log pi|; K is 1 on the share {share} of all tokens of highest cov, else 0, "
        "cov = (log pi - mean)(A - mean)",
        "arXiv:2505.22617",
        "surrogates.kl_cov",
        {
            "share": Option(2e-3, "share of all tokens that are penalised", low=0, high=1),
            "coef": Option(1.0, "weight of the penalty", low=0),
        },
        ratios=("token",),
        selects="selection.top_by_covariance",
    ),
    "reinforce": SurrogateEntry("A log pi", "Williams 1992", "surrogates.reinforce", ratios=("none",)),
}

RATIOS: dict[str, str] = {
    "token": "r_t = pi(y_t) / pi_old(y_t)",
    "sequence": "r = (pi(y) / pi_old(y))^(1/|y|), one per response",
    "sequence_token": "r_t = sg[(pi(y) / pi_old(y))^(1/|y|)] pi(y_t) / sg[pi(y_t)]",
    "sequence_product": "r = pi(y) / pi_old(y), one per response",
    "none": "none: the batch is used once, on-policy",
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

REJECTIONS: dict[str, str] = {  # x = log(pi_old / pi_gen); k1 = -x, k2 = x^2 / 2, k3 = exp(x) - x - 1
    **{f"token_{k}": f"{k} of the token" for k in ("k1", "k2", "k3")},
    **{f"sum_{k}": f"sum of {k} over the response" for k in ("k1", "k2", "k3")},
    **{f"mean_{k}": f"mean of {k} over the response" for k in ("k1", "k2", "k3")},
    **{f"max_{k}": f"largest {k} of the response" for k in ("k2", "k3")},
}
"""Criteria by which tokens or whole responses are dropped."""
