"""The schedule of a run and its state: what is left, what starts again with a stage, what survives JSON to the bit."""

import json
from dataclasses import replace

from tests.made_episodes import episode_of, records, turn_of
from tests.stages.tiny import FOUR_STAGES, tiny
from tests.train.sampled import MAX, Sampling, groups_of, model_of
from verizero.pipeline.run.state import InFlightBatch, Item, RunState, StageState, schedule
from verizero.pipeline.types import Prompt, Verdict


def test_counters_of_one_stage_begin_anew_and_those_of_the_run_go_on() -> None:
    stage = StageState("rl", acceptance=0.2, num_bad_updates=2, num_tokens=99)
    stage.guard = {"roll_backs": 1}
    state = RunState(stage, rl_step=6, num_responses=7)
    before = state.to_json()
    state.enter("rl")
    assert state.to_json() == before
    state.enter("rl_again")
    fresh = RunState(StageState("rl_again", first_rl_step=6), rl_step=6, num_responses=7)
    assert state.to_json() == fresh.to_json()


def test_records_survive_json_to_the_bit() -> None:
    groups = groups_of(model_of("qwen3_moe"), Sampling(MAX, 0.9, 0.8, max_kept=9, keep_routing=True))
    bare = groups_of(model_of("qwen2"), Sampling(MAX))
    first, *others = bare[0].members
    verdict = Verdict("graded", 0.5, parts=(("a", 0.1),), steps=(("x", 0.1 + 0.2), ("y", -1.0)))
    stepped = replace(first, verdict=verdict, steps=((1, 0.1 + 0.2), (2, -1.0)))
    bare = [replace(bare[0], members=(stepped, *others), greedy_reward=0.1 + 0.2), *bare[1:]]
    state = RunState(StageState(carried=[*groups, *bare]))
    again = RunState.from_json(json.loads(json.dumps(state.to_json())))
    assert again.stage.carried == state.stage.carried
    old = state.to_json()
    for group in old["stage"]["carried"]:
        for member in group["members"]:
            del member["rollout"]["kept"], member["rollout"]["routing"]
    assert all(m.rollout.kept is None for g in RunState.from_json(old).stage.carried for m in g.members)


def test_what_a_state_does_not_say_has_its_default() -> None:
    assert RunState.from_json({"num_done": 2}).num_done == 2


def test_episodes_survive_json_to_the_bit() -> None:
    kept, routing = records(2, 4)
    first = replace(turn_of([1, 2, 3], [4, 5], reward=-1.25), kept=kept, routing=routing)
    forked = [replace(first, trains=False, kept=None, routing=None, reward=None), turn_of([6], [7], version=5)]
    rollout = episode_of([[first], forked], "turns", Verdict("graded", 0.1 + 0.2, "x", seconds=0.0))
    batch = InFlightBatch([Prompt("p0", "q", "environment", "42", environment="guess")], 3, 0, [[rollout]])
    again = RunState.from_json(json.loads(json.dumps(RunState(in_flight=[batch]).to_json())))
    assert again.in_flight == [batch]
    assert again.in_flight[0].rollouts[0][0].turns == rollout.turns


def test_the_items_of_a_list_of_stages() -> None:
    labels = [(i.kind, i.stage, i.label) for i in schedule(tiny(FOUR_STAGES))]
    assert labels == [
        ("evaluate", "base", "before training"),
        ("sft", "sft", "sft"),
        ("evaluate", "sft", "after sft"),
        ("rl", "rl", "round 1"),
        ("evaluate", "rl", "after round 1"),
        ("rl", "rl", "round 2"),
        ("evaluate", "rl", "after round 2"),
        ("sft", "sft_again", "sft_again"),
        ("evaluate", "sft_again", "after sft_again"),
        ("rl", "rl_again", "rl_again round 1"),
        ("evaluate", "rl_again", "after rl_again round 1"),
    ]


def test_positions_count_what_was_trained_and_not_evaluations() -> None:
    with_evaluations, without = schedule(tiny(FOUR_STAGES)), schedule(tiny({**FOUR_STAGES, "data": {"evaluation": []}}))
    done, is_evaluated = 0, False
    for items in (with_evaluations, without):
        done, is_evaluated = 0, False
        for index, item in enumerate(items):
            assert left_of(items, done, is_evaluated) == items[index:]
            done, is_evaluated = (done, True) if item.kind == "evaluate" else (done + 1, False)
        assert left_of(items, done, is_evaluated) == []
    for num_done in range(5):  # wherever a run is, the next item to train is the same
        ways = [(with_evaluations, True), (without, False), (without, True)]
        assert len({_next_trained(items, num_done, evaluated) for items, evaluated in ways}) == 1


def left_of(items: list[Item], num_done: int, is_evaluated: bool) -> list[Item]:
    return RunState(num_done=num_done, is_evaluated=is_evaluated).items_left(items)


def _next_trained(items: list[Item], num_done: int, is_evaluated: bool) -> str:
    left = left_of(items, num_done, is_evaluated)
    return next((i.label for i in left if i.kind != "evaluate"), "")
