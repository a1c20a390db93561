"""Named advantages: the formula, source, function, needs and options of each."""

from __future__ import annotations

from verizero.pipeline.rl.entries import AdvantageEntry, Option

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
        "A_i = mean_S ([i in S] (best of S - best of S without i)) / (std over {std} + {eps}), ddof {ddof}; "
        "S = the subsets of {k} responses of the group (none: the whole group); std none: undivided",
        "arXiv:2503.19595; subsets 2505.15201",
        "advantages.best_of_k",
        {
            "k": Option(None, "size of the subsets whose best counts; null: the whole group", low=2, whole=True),
            "std": Option("none", "standard deviation that advantages are divided by", choices=("none", "group")),
            **SPREAD,
        },
        needs=GROUP,
        divides=True,
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
    "optimal_token_baseline": AdvantageEntry(
        "A_t = G_t - sum_j W_jt G_jt / sum_j W_jt, {baseline} of the group; G_t = sum_(s>=t) r_s, "
        "W_t = sum_(s<=t) (1 - 2 pi(y_s) + sum_v pi(v)^2)",
        "arXiv:2602.07078",
        "advantages.optimal_token_baseline",
        {
            "baseline": Option(
                "leave_one_out",
                "over the group's other responses, or over all of them",
                choices=("leave_one_out", "mean"),
            )
        },
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
