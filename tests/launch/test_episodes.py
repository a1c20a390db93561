"""Episodes on two ranks: the batch is shared between them, and they learn what one process learns."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.launch.runs import assert_same_run, by_one, by_ranks

GAMES = (
    "data.train=[{generator: {name: guess, params: {high: 6}}}]",
    *("data.evaluation=[]", "data.on_overlap=report", "rollout.max_response_tokens=8", "rl.group_size=4"),
    *("rl.select.keep=all", "rl.algorithm={name: dr_grpo, entropy_coef: 0.05}"),
    *("episodes.max_tokens=24", "episodes.cut_turn=answer"),
)


@pytest.mark.run
@pytest.mark.parametrize("prompts", [5, 1])
def test_two_ranks_learn_from_episodes_what_one_does(recipe: Path, prompts: int) -> None:
    """Of one prompt, the second rank has no episode; of five, it is done before the first in some turns."""
    changes = (*GAMES, f"rl.prompts_per_step={prompts}")
    two, one = by_ranks(recipe, f"two-{prompts}", *changes), by_one(recipe, f"one-{prompts}", *changes)
    assert_same_run(two, one)
    begun, learned = (load_file(f / "model" / "model.safetensors") for f in (recipe.parent / "start", two))
    assert any((learned[name] - begun[name]).abs().max() > 1e-3 for name in learned)
