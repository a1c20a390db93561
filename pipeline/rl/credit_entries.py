"""Named credits by turn: how single turns of an episode enter the advantages of their tokens."""

from __future__ import annotations

from verizero.pipeline.rl.entries import CreditEntry, Option

ADDED = {
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
        ADDED,
    ),
    "states": CreditEntry(
        "A_k = {outcome} A_i + {coef} (G_ik - mean of the group's turns in the same state), divided by the std of: "
        "{std}; G_ik = sum_(j>=k) {gamma}^(j-k) (r_ij + [j = last] R_i), 0 for a state that is seen once",
        "arXiv:2505.10978",
        "turn_credit.states",
        ADDED,
    ),
    "process": CreditEntry(
        "A_k = {outcome} A_i + {coef} sum_(j>=k) (r_ij - mean) / std; "
        "k is the token's step or turn, mean and std are of all rewards of steps of the group, of which a response "
        "without steps is one",
        "arXiv:2402.03300 section 4.1.3",
        "turn_credit.process",
        {key: ADDED[key] for key in ("coef", "outcome")},
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
