"""Catalog of all named parts: advantages, credits, surrogates, ratios, aggregations, estimates of the KL.

An entry says what a part is, what it needs and the options that it takes.

A new advantage is a function in `advantages.py` and an entry here; so are surrogates and ratios. An entry names its
function by text, because choosing an algorithm must not load tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from verizero.pipeline.errors import ConfigError

OptionValue = float | int | bool | str | None | tuple[float, ...]
Function = str | Callable[..., Any]
"""A callable, or the text `module.name` of one in this package."""
INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a part: its default, its description, and the values that it may have.

    Values are numbers in [low, high] and above `above`, integers where `whole` is true; or one of `choices`; or true
    and false, where the default is one of these; or a list of numbers, where `many` is true. A default of None allows
    None too.
    """

    default: OptionValue
    description: str
    low: float = -INFINITY
    above: float | None = None
    high: float = INFINITY
    choices: tuple[str, ...] = ()
    many: bool = False
    whole: bool = False

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
        if self.whole and not isinstance(value, int):
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
            text = " ".join(["a whole number" if self.whole else "a number", " and ".join(bounds)]).rstrip()
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
    """Inputs besides rewards: "group", "critic", "greedy", "components", "score_norms"; and "no_negative" reward."""
    per_token: bool = False
    """The advantage may differ between the tokens of a response."""
    divides: bool = False
    """The advantage is divided, unless option `std` is "none", so that it is no longer in the reward's unit."""


Differences = Literal["token", "mean", "sum", "nothing"]
"""A log-ratio is log pi(y_t) - log pi_old(y_t) of one token, the mean or the sum of these over a response, or 0."""


@dataclass(frozen=True, slots=True)
class RatioEntry:
    """A named importance ratio: one of the catalog, or one of an algorithm from outside (`Parts.ratio`).

    `log_ratio(logprobs, old_logprobs, mask)` takes three [B, T], which are 0 outside the mask, and returns the ratio's
    logarithm: [B, T] if it is per token, [B, 1] if it is per response.
    """

    name: str
    formula: str
    log_ratio: Function
    per: Literal["token", "response"]
    of: Differences = "token"
    """By it rules judge the width of a clip. "nothing": the ratio is 1, without a gradient."""

    @property
    def is_one(self) -> bool:
        """The ratio is always 1: the batch is used once, on-policy."""
        return self.of == "nothing"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class SurrogateEntry(Entry):
    """A named surrogate."""

    of: tuple[Differences, ...] = ("token", "mean", "sum")
    """Ratios that the surrogate has a meaning with, by what they are of."""
    is_detached: bool = False
    """The ratio is a weight without a gradient, so `sequence_token`, with its gradient per token, makes no sense."""
    whole_response: bool = False
    """The surrogate has one value for the whole response."""
    checks_width: bool = False
    """The rules compare the width of the clip to the level of the ratio."""
    selects: Function | None = None
    """Function that selects tokens once for the whole batch, by covariance; None: the surrogate needs no selection."""
    tokens_without_gradient: Function | None = None
    """Function that returns the tokens [B, T] bool to which the surrogate gives no gradient, to be counted.

    None: a clip, which is counted by its range, or no such tokens.
    """

    def takes(self, ratio: RatioEntry) -> bool:
        """True if the surrogate has a meaning with the ratio."""
        return ratio.of in self.of and not (self.is_detached and ratio.per == "token" and ratio.of == "mean")


@dataclass(frozen=True, slots=True)
class CreditEntry(Entry):
    """A named credit by turn: how single turns enter the advantages of their tokens."""

    replaces: str | None = None
    """The advantage whose estimator the credit replaces; None: it adds to any advantage per response."""


def load(function: Function) -> Callable[..., Any]:
    """Return the callable that an entry names. Importing its module loads tensors."""
    if not isinstance(function, str):
        return function
    module, _, name = function.rpartition(".")
    loaded: Callable[..., Any] = getattr(import_module(f"verizero.pipeline.rl.{module}"), name)
    return loaded


GAMMA = Option(1.0, "discount per token", low=0, high=1)
SPREAD = {
    "ddof": Option(1, "1: sample standard deviation, 0: population's", low=0, high=1),
    "eps": Option(1e-6, "added to the standard deviation", low=0),
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
            "whiten": Option(True, "advantages are brought to mean 0 and deviation 1 over the batch"),
            **SPREAD,
        },
        needs=frozenset({"critic"}),
        per_token=True,
    ),
    "group_norm": AdvantageEntry(
        "A_i = (R_i - mean of the group) / (std over {std} + {eps}), ddof {ddof}",
        "arXiv:2402.03300 section 4.1.2",
        "advantages.group_norm",
        {
            "std": Option(
                "group", "standard deviation that rewards are divided by", choices=("group", "batch", "none")
            ),
            **SPREAD,
        },
        needs=GROUP,
        divides=True,
    ),
    "group_mean": AdvantageEntry(
        "A_i = R_i - mean of the group", "arXiv:2503.20783", "advantages.group_mean", needs=GROUP
    ),
    "batch_mean": AdvantageEntry("A_i = R_i - mean of the batch", "FlashREINFORCE, 2026", "advantages.batch_mean"),
    "leave_one_out": AdvantageEntry(
        "A_i = R_i - mean of the group's others", "arXiv:2402.14740", "advantages.leave_one_out", needs=GROUP
    ),
    "max_rl": AdvantageEntry(
        "A_i = (R_i - mean) / mean of the group; 0 where mean <= 0",
        "arXiv:2602.02710",
        "advantages.max_rl",
        needs=GROUP | {"no_negative"},
        divides=True,
    ),
    "greedy_baseline": AdvantageEntry(
        "A_i = R_i - R of the greedy response; kl in the reward counts by {kl_credit}",
        "arXiv:2310.10505 algorithm 1",
        "advantages.greedy_baseline",
        KL_CREDIT,
        needs=frozenset({"greedy"}),
    ),
    "best_of_k": AdvantageEntry(
        "A_i = mean_S ([i in S] (best of S - best of S without i)); "
        "S = the subsets of {k} responses of the group (none: the whole group)",
        "arXiv:2503.19595; subsets 2505.15201",
        "advantages.best_of_k",
        {"k": Option(None, "size of the subsets whose best counts; null: the whole group", low=2, whole=True)},
        needs=GROUP,
    ),
    "reward_to_go_norm": AdvantageEntry(
        "A_t = sum_(s>=t) {gamma}^(s-t) r_s; whitened over all tokens of the batch (ddof {ddof}, eps {eps})",
        "arXiv:2501.03262",
        "advantages.reward_to_go_norm",
        {"gamma": GAMMA, **SPREAD},
        per_token=True,
    ),
    "group_mean_batch_norm": AdvantageEntry(
        "A_i = R_i - mean of the group; whitened over all tokens of the batch (ddof {ddof}, eps {eps})",
        "arXiv:2501.03262",
        "advantages.group_mean_batch_norm",
        SPREAD,
        needs=GROUP,
        divides=True,
    ),
    "optimal_baseline": AdvantageEntry(
        "A_i = R_i - sum_j |y_j| R_j / sum_j |y_j|", "arXiv:2505.23585", "advantages.optimal_baseline", needs=GROUP
    ),
    "optimal_token_baseline": AdvantageEntry(
        "A_t = G_t - sum_j W_jt G_jt / sum_j W_jt over the group's others; G_t = sum_(s>=t) r_s, "
        "W_t = sum_(s<=t) (1 - 2 pi(y_s) + sum_v pi(v)^2)",
        "arXiv:2602.07078",
        "advantages.optimal_token_baseline",
        needs=frozenset({"group", "score_norms"}),
        per_token=True,
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

TURNS = {
    "coef": Option(1.0, "weight of the turns' part", above=0),
    "outcome": Option(1.0, "weight of the advantage of the whole episode beside the turns' part", low=0),
    "gamma": Option(1.0, "discount per turn", low=0, high=1),
    "std": Option(
        "none",
        "standard deviation that a turn's part is divided by: group: that of the returns of which it is the mean",
        choices=("none", "group"),
    ),
}

CREDITS: dict[str, CreditEntry] = {
    "outcome": CreditEntry(
        "A of the whole episode on each of its trained tokens", "the algorithm's", "turn_credit.none"
    ),
    "turns": CreditEntry(
        "A_k = {outcome} A_i + {coef} (G_ik - mean of the group's turns k), divided by the std of: {std}; "
        "G_ik = sum_(j>=k) {gamma}^(j-k) r_ij, r = the environment's reward for the turn",
        "arXiv:2505.11821",
        "turn_credit.turns",
        TURNS,
    ),
    "process": CreditEntry(
        "A_k = {outcome} A_i + {coef} sum_(j>=k) (r_ij - mean) / std; "
        "k is the token's step or turn, mean and std are of all rewards of steps of the group, of which a response "
        "without steps is one",
        "arXiv:2402.03300 section 4.1.3",
        "turn_credit.process",
        {key: TURNS[key] for key in ("coef", "outcome")},
    ),
    "turn_gae": CreditEntry(
        "t counts turns: V at the first token of a turn, one A and one return for all its tokens; "
        "r_t = what its tokens have, + {coef} the environment's reward for the turn",
        "arXiv:1506.02438 eq. 16, over turns",
        "turn_credit.turn_gae",
        {"coef": Option(1.0, "weight of the environment's rewards for turns", low=0)},
        replaces="gae",
    ),
}

CLIPS = {
    "clip_low": Option(0.2, "a ratio below 1 - clip_low stops pushing down", above=0, high=1),
    "clip_high": Option(0.2, "a ratio above 1 + clip_high stops pushing up", above=0),
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
        is_detached=True,
        checks_width=True,
    ),
    "geometric_mean": SurrogateEntry(
        "A exp(mean_t s min(s log r_t, clip(s log r_t, -{clip}, {clip}))); s = sign A",
        "arXiv:2507.20673",
        "surrogates.geometric_mean",
        {"clip": Option(0.4, "token log-ratios are clipped to plus or minus this", above=0)},
        of=("token",),
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
        of=("sum",),
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
        of=("sum",),
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
        of=("token",),
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
        of=("token",),
        selects="selection.top_by_covariance",
    ),
    "dppo": SurrogateEntry(
        "sg[M min(r, {ratio_cap})] A log pi - {drift_coef} (log r)^2; M = 0 where pi has left pi_old, in the direction "
        "of A or with symmetric in any, by more than {threshold_high} (upwards) or {threshold_low} (downwards) in "
        "binary {divergence}, else 1",
        "arXiv:2602.04879; the squared log-ratio 2602.02276",
        "surrogates.dppo",
        {
            "divergence": Option(
                "tv",
                "distance of pi to pi_old, by the token's own probability: total variation or kl",
                choices=("tv", "kl"),
            ),
            "symmetric": Option(
                False, "a token stops on either side of pi_old, not only where its advantage pushes it"
            ),
            "threshold_low": Option(0.15, "a token that fell by more than this stops", above=0),
            "threshold_high": Option(0.15, "a token that rose by more than this stops", above=0),
            "ratio_cap": Option(None, "largest ratio that counts; null: no bound", above=0),
            "drift_coef": Option(0.0, "weight of the squared log-ratio, which pulls every token back to pi_old", low=0),
        },
        of=("token",),
        tokens_without_gradient="surrogates.beyond_divergence",
    ),
    "reinforce": SurrogateEntry("A log pi", "Williams 1992", "surrogates.reinforce", of=("nothing",)),
}

RATIOS: dict[str, RatioEntry] = {
    entry.name: entry
    for entry in (
        RatioEntry("token", "r_t = pi(y_t) / pi_old(y_t)", "ratios.token", per="token"),
        RatioEntry(
            "sequence",
            "r = (pi(y) / pi_old(y))^(1/|y|), one per response",
            "ratios.sequence",
            per="response",
            of="mean",
        ),
        RatioEntry(
            "sequence_token",
            "r_t = sg[(pi(y) / pi_old(y))^(1/|y|)] pi(y_t) / sg[pi(y_t)]",
            "ratios.sequence_token",
            per="token",
            of="mean",
        ),
        RatioEntry(
            "sequence_product",
            "r = pi(y) / pi_old(y), one per response",
            "ratios.sequence_product",
            per="response",
            of="sum",
        ),
        RatioEntry("none", "none: the batch is used once, on-policy", "ratios.none", per="token", of="nothing"),
    )
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
    "k3_ratio": "r (exp(d) - d - 1)",
    "k1_plus": "sg[-d] with the gradient of d^2 / 2",
    "k3_plus": "sg[exp(d) - d - 1] with the gradient of d^2 / 2",
}

REJECTIONS: dict[str, str] = {  # x = log(pi_old / pi_gen); k1 = -x, k2 = x^2 / 2, k3 = exp(x) - x - 1
    **{f"token_{k}": f"{k} of the token" for k in ("k1", "k2", "k3")},
    **{f"sum_{k}": f"sum of {k} over the response" for k in ("k1", "k2", "k3")},
    **{f"mean_{k}": f"mean of {k} over the response" for k in ("k1", "k2", "k3")},
    **{f"max_{k}": f"largest {k} of the response" for k in ("k2", "k3")},
    "mean_binary_kl": "mean binary kl of the response",
}
"""Criteria by which tokens or whole responses are dropped."""
