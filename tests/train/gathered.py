"""Updates by ranks on responses which other ranks sampled, compared with one process; a claim of `on_ranks.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.train import episodes, sampled
from tests.train.batches import OPTIMIZER, frozen, groups_of, longer, parts_of, policy, settings_of, stale
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.run.rollouts import gather_groups, share_of
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.train.step import update
from verizero.pipeline.types import Group


def gathered_of(ranks: Ranks, groups: Sequence[Group]) -> list[Group]:
    """The groups as this rank has them after all ranks have sampled their shares."""
    share = share_of(ranks, [g.prompt for g in groups])
    (gathered,), _ = gather_groups(ranks, share, [[groups[i] for i in share.indices]], GradingTally({}, 0, 0.0))
    return gathered


def experts() -> Any:
    """A model with experts."""
    return sampled.model_of("qwen3_moe", torch.float64)


def recorded_groups() -> list[Group]:
    """Responses of a model with experts, with kept sets and routes."""
    return sampled.groups_of(experts(), sampled.Sampling(sampled.MAX, 0.9, 0.8, max_kept=9, keep_routing=True))


def trained(ranks: Ranks, groups: Sequence[Group], case: str) -> dict[str, Any]:
    """Weights after two updates; prompts are shared in the cases that say so."""
    _, name, params = CASES[case]
    model = experts() if case == "recorded experts" else policy()
    backend = Backend(model, ranks=ranks, config=TrainConfig(packing="auto" if "shared" in case else "off"))
    backend.start(OPTIMIZER, 10)
    backend.reference = frozen(experts() if case == "recorded experts" else policy(100))
    parts = parts_of(name, **params)
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
    for step in range(2):
        update(backend, parts, groups, settings_of(parts, 40, step=step))
    return {k: v.detach().clone() for k, v in backend.model.state_dict().items()}


CASES: dict[str, tuple[Callable[[], list[Group]], str, dict[str, Any]]] = {
    "grpo": (lambda: groups_of(5), "grpo", {"kl_coef": 0.05}),
    "several epochs": (lambda: groups_of(7), "grpo", {"num_epochs": 2, "num_minibatches": 3}),
    "a critic": (lambda: groups_of(5), "ppo", {"num_epochs": 2, "num_minibatches": 2}),
    "kl in the reward": (lambda: stale(groups_of(5), 1, 0, 2), "reinforce_pp", {"kl_coef": 0.1, "num_minibatches": 2}),
    "tokens of the whole batch": (lambda: stale(groups_of(6), 2, 1, 1), "clip_cov", {"num_minibatches": 2}),
    "episodes": (lambda: episodes.episodes_of(5, 4), "grpo", {"num_minibatches": 2}),
    "one rank that gets all": (
        lambda: groups_of(3, 2, 5, lost=False),
        "clip_cov",
        {"num_minibatches": 2, "num_epochs": 3},
    ),
    "shared prompts": (lambda: longer(stale(groups_of(6), 2, 1, 1)), "clip_cov", {"num_minibatches": 2}),
    "shared prompts in one group": (lambda: longer(groups_of(1, 6)), "grpo", {"kl_coef": 0.05}),
    "one group": (lambda: groups_of(1, 2), "grpo", {}),
    "recorded experts": (recorded_groups, "grpo", {"kl_coef": 0.0, "num_minibatches": 2}),
}


def gathered(ranks: Ranks, root: Path) -> dict[str, Any]:
    """How far the weights of each case are from those of one process; each rank is the one process of some cases."""
    mine = [name for i, name in enumerate(CASES) if i % ranks.size == ranks.rank]
    gathered = ranks.gather({name: trained(Ranks(), CASES[name][0](), name) for name in mine})
    by_one = {name: ends for part in gathered for name, ends in part.items()}
    out: dict[str, Any] = {}
    for name, (make, _, _) in CASES.items():
        groups = make()
        mine = gathered_of(ranks, groups)
        assert mine == groups, "all ranks have equal responses, with all that was recorded of their sampling"
        weights = trained(ranks, mine, name)
        # Ranks compute shared prompts with other rows than one process does, and the policy's norms are in float32.
        how = "gathered trees" if "shared" in name else "gathered"
        out[f"gathered, {name}"] = {how: max(float((weights[k] - v).abs().max()) for k, v in by_one[name].items())}
    return out
