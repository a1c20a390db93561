"""Environments in recipes, what they change and leave; and limits that count episodes."""

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.config.rl import max_group_tokens
from verizero.pipeline.plan.devices import DEVICES
from verizero.pipeline.plan.estimate import plan, plan_lines
from verizero.pipeline.plan.seconds import Lengths, Work, decoding
from verizero.pipeline.plan.shape import shape_of
from verizero.pipeline.run.algorithm import resolve_parts
from verizero.pipeline.run.build import build_tokenizer, context_of
from verizero.pipeline.run.choose_checkpoint import fingerprints
from verizero.pipeline.run.data import prepare_data
from verizero.pipeline.run.episodes import bind_environments
from verizero.pipeline.types import Prompt

NUMBERS = {"generator": {"name": "guess", "params": {"high": 6, "num_demonstrations": 20}}}


def games(environment=None, **changes):
    source = NUMBERS if environment is None else {**NUMBERS, "environment": environment}
    tree = {
        "data": {"train": [source], "evaluation": []},
        "stages": ["rl"],
        "sft": None,
        "rl": {"rounds": 1, "steps_per_round": 1, "prompts_per_step": 2, "group_size": 2, "select": {"keep": "all"}},
        "evaluation": {"before_training": False},
        "rollout": {"max_response_tokens": 8},
        **changes,
    }
    return tiny(tree)


def prints(config, folder):
    data = prepare_data(config, build_tokenizer(config), context_of(config), folder, folder)
    return [f.fingerprint for f in fingerprints(config, data, folder)]


def test_an_unknown_environment_and_a_place_are_refused_by_name():
    for choice, said in (
        ({"name": "gues"}, "no environment is called 'gues'"),
        ({"name": "guess", "place": "x"}, "place"),
    ):
        with pytest.raises(Exception, match=said):
            games(choice)


def test_other_parameters_and_limits_change_the_stages(tmp_path):
    plain = prints(games("guess"), tmp_path)
    assert prints(games({"name": "guess"}), tmp_path) == plain
    assert prints(games({"name": "guess", "params": {"tries": 3}}), tmp_path) != plain
    assert prints(games("guess", episodes={"max_tokens": 9}), tmp_path) != plain


def test_algorithms_hold_episodes_against_their_own_limit():
    norm = {"name": "dr_grpo"}
    one, episodes = (games("guess", rl={"algorithm": norm}, episodes={"max_tokens": n}) for n in (None, 20))
    assert [resolve_parts(c).norm_length for c in (one, episodes)] == [8, 20]


def test_a_budget_counts_whole_episodes():
    config = games("guess", episodes={"max_turns": 3})
    assert max_group_tokens(config, config.rl, greedy=True) == 3 * 24
    assert max_group_tokens(config, config.rl, greedy=True, are_played=False) == 3 * 8
    with pytest.raises(Exception, match=r"rl\.max_tokens=95 is less than one step may generate, 96"):
        games("guess", rl={"max_tokens": 95, "prompts_per_step": 2, "group_size": 2}, episodes={"max_turns": 3})


def test_a_rank_is_not_ended_before_an_episode():
    with pytest.raises(Exception, match=r"episodes\.wall_s=50 and launch\.phase_timeout_s=50: a rank that waits"):
        games("guess", episodes={"wall_s": 50}, launch={"kind": "torchrun", "phase_timeout_s": 50})
    games("guess", episodes={"wall_s": 49}, launch={"kind": "torchrun", "phase_timeout_s": 50})


def test_a_plan_counts_episodes_and_the_prefill_of_their_turns():
    config = games("guess", episodes={"max_turns": 4})
    lines = plan_lines(plan(config, 8, "h100"))
    assert "an episode of 4 turns and at most 32 sampled tokens (episodes.max_turns x rollout.max_resp" in lines[1]
    limited = plan_lines(plan(games("guess", episodes={"max_turns": 4, "max_tokens": 20}), 8, "h100"))
    assert "at most 20 sampled tokens (episodes.max_tokens)" in limited[1]
    assert "episode" not in "".join(plan_lines(plan(tiny(), 8, "h100")))
    config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"engine": "torch"})})
    shape, device = shape_of(config), DEVICES["h100"]
    once, again = (Work(config, shape, 1, device, Lengths(10, 16, 32, turns)) for turns in (1, 4))
    rate = device.rate(4) * again.share("forward").value
    more = sum(shape.forward_flops(4 * n, n) for n in (14, 18, 22)) / rate
    assert decoding(again) - decoding(once) == pytest.approx(more)


def test_a_word_of_a_command_may_be_longer_than_the_name_of_a_file(tmp_path):
    long = {"name": "agent", "params": {"command": ["python", "-c", "print(1)\n" * 600]}}
    config = games(long)
    ((key, choice),) = config.data.environments.items()
    assert choice.params["command"] == long["params"]["command"]
    bind_environments([Prompt("p", "q", "exact", 3, environment=key)], config.data.environments, tmp_path)
    assert prints(config, tmp_path)
