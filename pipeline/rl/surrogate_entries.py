"""Named surrogates: the formula, source, function and options of each, and the ratios that it has a meaning with."""

from __future__ import annotations

from verizero.pipeline.rl.entries import Option, SurrogateEntry

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
