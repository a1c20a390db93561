"""The guard's signs: collapses are seen and noise is not; checkpoints and the rate of a rollback."""

import json
import random
from typing import Any

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.config.guard import GuardConfig
from verizero.pipeline.run.collapse import good_checkpoints, measures, note_checkpoint, observe, with_lower_rate
from verizero.pipeline.run.state import RunState, StageState

HEALTHY = {
    "entropy": 0.4,
    "kl/k3": 0.01,
    "groups/sampled": 20.0,
    "groups/all_wrong": 4.0,
    "groups/equal": 0.0,
    "length/mean": 50.0,
    "truncated": 0.02,
    "verdict/no_answer": 0.05,
    "verdict/timeout": 0.0,
    "clip_fraction/low": 0.01,
    "clip_fraction/high": 0.01,
}


COLLAPSES: list[tuple[dict[str, float], str]] = [
    ({"entropy": 0.03}, "min_entropy"),
    ({"entropy": 2.5}, "max_entropy"),
    ({"length/mean": 9.0}, "min_length"),
    ({"truncated": 0.6}, "max_truncated"),
    ({"kl/k3": 1.5}, "max_kl"),
    ({"clip_fraction/low": 0.4}, "max_clip_fraction"),
    ({"groups/all_wrong": 12.0, "groups/equal": 8.0}, "max_flat"),
    ({"verdict/no_answer": 0.3, "verdict/timeout": 0.1}, "max_unanswered"),
]


ONLINE = {"loss": {"name": "dpo"}, "rounds": 1, "steps_per_round": 2, "prompts_per_step": 3, "group_size": 4}


def noisy(rng: random.Random, row: dict[str, float]) -> dict[str, float]:
    return {k: v * rng.uniform(0.7, 1.3) for k, v in row.items()} | {"groups/sampled": row["groups/sampled"]}


def seen(rows: list[dict[str, float]], config: GuardConfig) -> list[set[str]]:
    """The settings whose limits were passed, after each row; the memory goes through JSON each time, as checkpoints."""
    memory: dict[str, Any] = {}
    out = []
    for row in rows:
        memory = json.loads(json.dumps(memory))
        out.append({s.setting for s in observe(memory, row, config)})
    return out


def test_noise_and_single_wild_steps_are_no_collapse() -> None:
    rng = random.Random(0)
    rows = [noisy(rng, HEALTHY) for _ in range(200)]
    for i in range(20, 200, 20):
        rows[i] |= {"kl/k3": 400.0, "entropy": 9.0, "truncated": 0.9, "verdict/no_answer": 0.9}
    assert seen(rows, GuardConfig()) == [set()] * 200


@pytest.mark.parametrize(("change", "setting"), COLLAPSES, ids=[name for _, name in COLLAPSES])
def test_each_sign_is_seen_once_most_of_the_window_shows_it(change: dict[str, float], setting: str) -> None:
    rng = random.Random(1)
    rows = [noisy(rng, HEALTHY) for _ in range(12)] + [HEALTHY | change for _ in range(5)]
    found = seen(rows, GuardConfig(window=5))
    assert found == [set()] * 14 + [{setting}] * 3
    assert seen(rows, GuardConfig(window=5, limits={setting: None})) == [set()] * 17


@pytest.mark.parametrize(("all_right", "signs"), [(20.0, set()), (12.0, set()), (8.0, {"min_entropy"})])
def test_a_policy_that_is_sure_and_right_is_no_collapse(all_right: float, signs: set[str]) -> None:
    sure = HEALTHY | {"groups/all_wrong": 0.0, "groups/all_right": all_right, "entropy": 0.01}
    assert seen([HEALTHY] * 10 + [sure] * 5, GuardConfig())[-1] == signs


def test_steps_without_an_update_or_a_group_are_judged_by_what_they_have() -> None:
    bare = {k: v for k, v in HEALTHY.items() if k.startswith(("groups", "verdict", "length", "truncated"))}
    assert "entropy" not in measures(bare)
    assert measures({"groups/sampled": 0.0}) == {}
    flat = bare | {"groups/all_wrong": 20.0}
    assert seen([HEALTHY] * 5 + [flat] * 5, GuardConfig())[-1] == {"max_flat"}
    empty: dict[str, float] = {"groups/sampled": 0.0}
    assert seen([HEALTHY] * 5 + [empty] * 9, GuardConfig()) == [set()] * 14


@pytest.mark.parametrize(("late", "rollout"), [(0, []), (2, ["max_staleness=2"]), (3, ["max_staleness=3"])], ids=str)
def test_checkpoints_are_kept_until_no_collapse_would_go_back_to_them(late: int, rollout: list[str]) -> None:
    """Every checkpoint that a later collapse asks for was among those kept at each save in between."""
    config = tiny(overrides=[ROLL_BACK, "guard.window=5", *(f"rollout.{r}" for r in rollout)]).of_stage("rl")
    state = RunState(StageState("rl"))
    on_disk: set[int] = set()
    for step in range(60):
        state.rl_step = step
        good = good_checkpoints(state, config)
        if step >= 5:
            assert set(good[:1]) <= on_disk
            assert good, step
            assert good[0] * 4 <= max(0, step - 6 - late)  # the policy of step k wrote the responses of k + 1 + late
            assert good[0] * 4 > step - 6 - late - 4
        if step % 4 == 0:
            kept = note_checkpoint(state, config)
            on_disk = (on_disk | {state.next_checkpoint}) & set(kept)
            state.next_checkpoint += 1
            assert len(kept) <= 3  # with 3 late steps, the oldest is just old enough
    assert note_checkpoint(RunState(StageState("rl")), tiny().of_stage("rl")) == []


def test_checkpoints_are_kept_in_stages_in_rounds_alone() -> None:
    """A preference stage is to name the policy before a collapse too."""
    online = {"stages": ["sft", "online_preference"], "online_preference": ONLINE, "guard": {"action": "stop"}}
    assert note_checkpoint(RunState(StageState("online_preference")), tiny(online).of_stage("online_preference")) == [0]
    assert note_checkpoint(RunState(StageState("sft")), tiny(online).of_stage("sft")) == []


def test_each_roll_back_halves_the_learning_rate_and_changes_nothing_else() -> None:
    for times in (0, 1, 2):
        rolled = RunState(StageState(guard={"roll_backs": times}))
        low = {"guard": {"action": "roll_back"}, "rl": {"optimizer": {"learning_rate": 1e-3 * 0.5**times}}}
        assert with_lower_rate(tiny({"guard": low["guard"]}).of_stage("rl"), rolled) == tiny(low).of_stage("rl")


ROLL_BACK = "guard={action: roll_back, window: 2}"
