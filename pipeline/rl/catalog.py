"""Catalog of all named parts: advantages, credits, surrogates, ratios, aggregations, estimates of the KL.

A new advantage is a function in `advantages.py` and an entry in `advantage_entries.py`; surrogates and ratios have such
a pair of files too. An entry names its function by text, because choosing an algorithm must not load tensors.
"""

from __future__ import annotations

from verizero.pipeline.rl.advantage_entries import ADVANTAGES, SPREAD
from verizero.pipeline.rl.credit_entries import CREDITS
from verizero.pipeline.rl.entries import (
    INFINITY,
    AdvantageEntry,
    CreditEntry,
    Entry,
    Option,
    OptionValue,
    RatioEntry,
    SurrogateEntry,
    load,
)
from verizero.pipeline.rl.ratio_entries import RATIOS
from verizero.pipeline.rl.surrogate_entries import SURROGATES

__all__ = [
    "ADVANTAGES",
    "CREDITS",
    "INFINITY",
    "RATIOS",
    "SPREAD",
    "SURROGATES",
    "AdvantageEntry",
    "CreditEntry",
    "Entry",
    "Option",
    "OptionValue",
    "RatioEntry",
    "SurrogateEntry",
    "load",
]

AGGREGATES: dict[str, str] = {
    "sequence_mean_token_mean": "mean_i (1/|y_i|) sum_t",
    "token_mean": "(1 / sum_i |y_i|) sum_i sum_t",
    "prompt_mean": "mean_q (1 / sum_(i in q) |y_i|) sum_(i in q) sum_t",
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
