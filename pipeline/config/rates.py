"""Learning rates by what is trained: small models take larger steps, adapters ten times larger ones.

Of reinforcement learning: TRL, verl and prime-rl start models of half a billion parameters and more at 1e-6; the
recipes of this project train 0.8 million at 4e-4 (configs/demo.yaml) and 135 million at 3e-5 in a short schedule that
decays (configs/smollm2.yaml), so a constant rate begins lower. Of imitation: TRL's default, 2e-5, for large models,
and this project's recipes for small ones. Of pairs: TRL's default for DPO, 1e-6, for large models, and
configs/preferences for small ones. Of ranks, by a reward model: 9e-6 for 6 billion parameters (2203.02155, appendix C),
and this project's 3e-4 for a model of its demo. Ten times for adapters: "LoRA Without Regret"
(Schulman and others, 2025), which found that ratio for SFT and RL alike.
"""

from __future__ import annotations

from typing import Literal

Learns = Literal["rewards", "texts", "preferences", "ranks"]
RATES: dict[Learns, tuple[tuple[float, float], ...]] = {
    "rewards": ((5e6, 3e-4), (5e7, 5e-5), (3e8, 1e-5), (float("inf"), 1e-6)),
    "texts": ((5e6, 2e-3), (5e7, 5e-4), (3e8, 1e-4), (float("inf"), 2e-5)),
    "preferences": ((5e6, 5e-5), (5e7, 2e-5), (3e8, 5e-6), (float("inf"), 1e-6)),
    "ranks": ((5e6, 3e-4), (5e7, 1e-4), (3e8, 5e-5), (float("inf"), 1e-5)),
}
"""By what is learnt from: (parameters of a model, rate) for models of at most so many parameters."""
LORA = 10.0


def learning_rate(learns: Learns, num_parameters: int, is_lora: bool = False) -> float:
    """Return a rate to begin with for a model of so many parameters, all of them or adapters of it being trained."""
    rate = next(rate for most, rate in RATES[learns] if num_parameters <= most)
    return float(f"{rate * (LORA if is_lora else 1.0):.3g}")  # 0.003, not 0.0029999999999999996
