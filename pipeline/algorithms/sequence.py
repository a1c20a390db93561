"""Objectives with one ratio for a whole response."""

from __future__ import annotations

from dataclasses import replace

from verizero.pipeline.algorithms.grpo import GroupNormParams, Grpo, one_update
from verizero.pipeline.registry import Plugins, named
from verizero.pipeline.rl.parts import ClipHigh, ClipLow, KlCoef, KlIn, Part, Parts, PolicyParams, option

PLUGINS: Plugins = {}
BY_ROW = "an episode whose history was rewritten has a ratio for each of its rows, not one for all"


@named(PLUGINS, "gspo", "arXiv:2507.18071 eq. 5 to 7", BY_ROW, one_update(4))
class Gspo(Grpo):
    """GSPO: one length-normalised ratio per response, with a clip of its own size.

    J   = mean_i min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i),  A_i as in GRPO
    r_i = (pi(y_i) / pi_old(y_i))^(1/|y_i|)
    """

    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = 4e-4
    kl_in: KlIn = "none"
    kl_coef: KlCoef = 0.0

    def parts(self) -> Parts:
        """Return GRPO's parts with the ratio of the whole response."""
        return replace(super().parts(), ratio="sequence")


@named(PLUGINS, "gspo_token", "arXiv:2507.18071 eq. 13 and 14", BY_ROW)
class GspoToken(Gspo):
    """GSPO-token: the response's ratio by value, each token's own gradient, so advantages may differ between tokens.

    J   = mean_i (1/|y_i|) sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t),  A_t as in GRPO
    r_t = sg[(pi(y_i) / pi_old(y_i))^(1/|y_i|)] pi(y_t) / sg[pi(y_t)]
    """

    def parts(self) -> Parts:
        """Return GSPO's parts with a ratio that has each token's gradient."""
        return replace(super().parts(), ratio="sequence_token")


@named(PLUGINS, "luspo", "arXiv:2602.05261", BY_ROW)
class Luspo(Gspo):
    """LUSPO: GSPO's sequence loss times the response's length, which takes away its pull to short responses.

    J = mean_i |y_i| min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i),  A_i and r_i as in GSPO
    """

    def parts(self) -> Parts:
        """Return GSPO's parts with a sum over the tokens of a response."""
        return replace(super().parts(), aggregate="sequence_mean_token_sum")


@named(PLUGINS, "gmpo", "arXiv:2507.20673", BY_ROW)
class Gmpo(GroupNormParams):
    """GMPO: the geometric mean of token ratios, each clipped in log space.

    J = mean_i A_i exp( (1/|y_i|) sum_t s min(s log r_t, clip(s log r_t, -clip, clip)) ),  s = sign A_i
    A_i and r_t as in GRPO
    """

    clip: float = option("geometric_mean", "clip")

    def parts(self) -> Parts:
        """Return GMPO's parts."""
        return self.of_parts(self.advantage(), "token", Part.of("geometric_mean", self), "sequence_mean")


@named(
    PLUGINS,
    "kimi_k2",
    "arXiv:2507.20534 section 3.2.3; 2501.12599 eq. 3",
    "tau has no number in the papers; 0.5 makes the first gradient that of REINFORCE",
    "PTX loss and temperature decay are off until the recipe gives them numbers, and there is no token budget",
    BY_ROW,
)
class KimiK2(PolicyParams):
    """Kimi K2: a squared regression of the response's log-ratio on its centred reward.

    J = mean_i -(R_i - mean of the group - tau log(pi(y_i) / pi_old(y_i)))^2
    """

    tau: float = option("squared", "tau")

    def parts(self) -> Parts:
        """Return Kimi K2's parts."""
        return self.of_parts(Part("group_mean"), "sequence_product", Part.of("squared", self), "sequence_mean")


@named(
    PLUGINS,
    "vespo",
    "arXiv:2602.10693",
    "weights against engine mismatch (mismatch_level) multiply outside of w; TRL puts them inside: w = pi / pi_gen",
    BY_ROW,
)
class Vespo(GroupNormParams):
    """VESPO: REINFORCE weighted by a gamma density of the whole response's ratio, which needs no clip.

    J = (1 / sum_i |y_i|) sum_i sum_t sg[exp(lambda + k log w_i - lambda w_i)] A_i log pi(y_t),  A_i as in GRPO
    w_i = pi(y_i) / pi_old(y_i);  k and lambda are the positive ones where A_i >= 0, else the negative ones
    """

    k_positive: float = option("gamma_weight", "k_positive")
    lambda_positive: float = option("gamma_weight", "lambda_positive")
    k_negative: float = option("gamma_weight", "k_negative")
    lambda_negative: float = option("gamma_weight", "lambda_negative")

    def parts(self) -> Parts:
        """Return VESPO's parts."""
        return self.of_parts(self.advantage(), "sequence_product", Part.of("gamma_weight", self), "token_mean")
