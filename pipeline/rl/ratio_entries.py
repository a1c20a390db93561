"""Named importance ratios pi / pi_old, with their formulas. Loads no tensors; `ratios.py` computes them."""

from __future__ import annotations

from verizero.pipeline.rl.entries import RatioEntry

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
