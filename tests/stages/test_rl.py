"""The phases of a step: greedy baselines, several rewards, demonstrations, entropy and temperature."""

import math
from dataclasses import replace

import pytest

from tests.loop.scripted import group_of, loop_of
from tests.scripted_engine import ScriptedEngine
from tests.stages.sessions import rows, session_of, train_round
from verizero.pipeline.rl.parts import PolicyParams
from verizero.pipeline.stages.rl import rl_phases, select_groups, with_baseline

SIZE = 6
"""Responses of a group of the tiny recipe."""
NO_KL = {"kl_coef": 0, "allow": []}
"""The tiny recipe's own algorithm without its KL."""
TWO = {
    "components": [{"verifier": {"name": "length", "params": {"max_length": 30, "buffer": 25}}, "weight": 0.25}],
    "truncated": None,
}
"""Rewards of the row's verifier and of the response's length."""


def algorithm(name, **params):
    """A section of RL with this algorithm, which trains on every group."""
    return {"algorithm": {"name": name, **params}, "select": {"keep": "all"}}


def varied(session):
    """The session, whose answers are of several lengths: right ones behind spaces, by their seed."""
    engine = session.workers.rollouts.engine
    script, (space,) = engine.script, session.run.data.renderer.text_ids(" ")[:1]
    session.workers.rollouts.generation.engine = ScriptedEngine(
        lambda prompt_ids, seed: (*([space] * (seed % 7)), *script(prompt_ids, seed)), engine.eos_id
    )
    return session


class TestGreedyBaseline:
    @pytest.fixture(scope="class")
    def session(self, tmp_path_factory):
        with session_of(tmp_path_factory.mktemp("remax"), rl=algorithm("remax")) as session:
            yield session

    def test_each_prompt_has_one_greedy_response_more_whose_tokens_are_counted(self, session):
        prompts = session.run.data.train[:3]
        before = session.state.stage.num_tokens
        rollouts = rl_phases(session).generate(prompts, 0).rollouts
        assert [r.prompt_id for r in rollouts[-3:]] == [p.id for p in prompts]
        assert len(rollouts) == 3 * (SIZE + 1)
        assert session.state.stage.num_tokens - before == sum(len(r.response_ids) for r in rollouts)

    def test_the_baseline_is_the_greedy_responses_own_reward(self, session):
        prompts, phases = session.run.data.train[:12], rl_phases(session)
        generated = phases.generate(prompts, 0)
        groups, tally = phases.verify(prompts, generated)
        assert tally.total == len(generated.rollouts)
        for prompt, greedy, group in zip(prompts, generated.rollouts[-12:], groups, strict=True):
            right = greedy.finish_reason == "stop" and greedy.text.endswith(f"\\boxed{{{prompt.reference}}}")
            assert group.greedy_reward == float(right)
            assert len(group.members) == SIZE
        assert {g.greedy_reward for g in groups} == {0.0, 1.0}

    def test_greedy_responses_do_not_disturb_the_sampled_ones(self, session, tmp_path):
        prompts = session.run.data.train[:3]
        with session_of(tmp_path, rl=algorithm("reinforce")) as plain:
            without = rl_phases(plain).generate(prompts, 0).rollouts
        assert rl_phases(session).generate(prompts, 0).rollouts[: -len(prompts)] == without

    def test_length_counts_against_the_baseline_as_against_the_others(self):
        params = PolicyParams(overlong_buffer=0.5, overlong_factor=2.0)
        (group,) = with_baseline([group_of(0, [1.0, 1.0])], [group_of(0, [1.0], length=9)], params, 10)
        assert group.greedy_reward == 1.0 + params.length_penalty(9, 10) < 1.0 - 0.25

    def test_a_prompt_whose_baseline_was_not_graded_does_not_train(self):
        loop = loop_of(rl=algorithm("remax"))
        lost, good = (replace(group_of(0, [0.0, 1.0]), greedy_reward=g) for g in (None, 0.0))
        kept, counts = select_groups(loop.setup, loop.recorder, [lost, good])
        assert kept == [good]
        assert (counts["kept"], counts["infrastructure"]) == (1, 1)


class TestComponents:
    def test_gdpo_weighs_them_as_the_recipe_does(self):
        parts = loop_of(rl=algorithm("gdpo"), scoring=TWO).setup.algorithm
        assert parts.advantage.options["weights"] == (1.0, 0.25)

    def test_another_algorithm_takes_the_sum(self, tmp_path):
        batches = []
        with session_of(tmp_path, rl=algorithm("grpo", **NO_KL), scoring=TWO) as session:
            update = rl_phases(varied(session)).update

            def watched(groups):
                batches.append([m for g in groups for m in g.members])
                return update(groups)

            train_round(session, update=watched)
            metrics = [r["metrics"] for r in rows(session)]
        for members, m in zip(batches, metrics, strict=True):
            for member in members:
                short = min(1.0, max(0.0, 1 - (len(member.rollout.text) - 5) / 25))
                assert member.components == (member.verdict.score, pytest.approx(short))
                assert member.reward == pytest.approx(member.verdict.score + 0.25 * short)
            assert m["reward/mean"] == pytest.approx(sum(x.reward for x in members) / len(members), rel=1e-5)
            assert m["reward/component/1"] > 0

    def test_evaluation_asks_the_rows_own_verifier_alone(self, tmp_path):
        with session_of(tmp_path, rl=algorithm("gdpo"), scoring=TWO) as session:
            prompts = {p.id: p for p in session.run.data.train[:1]}
            rollouts = rl_phases(session).generate(list(prompts.values()), 0).rollouts[:1]
            scorer = session.workers.graders.scorer
            (plain,), _ = scorer.score(prompts, rollouts)
            (summed,), _ = scorer.score(prompts, rollouts, with_components=True)
        assert plain.components == ()
        assert summed.components[0] == plain.reward
        assert len(summed.components) == 2


@pytest.mark.run
def test_demonstrations_join_each_update_of_a_run_without_sft_too(tmp_path):
    with session_of(tmp_path, rl={**algorithm("reinforce", ptx_coef=0.5), "ptx_batch_size": 5}) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
    # five demonstrations of sums of one digit; an untrained model finds each of its 56 tokens alike
    assert all(5 * 8 < m["ptx/tokens"] < 5 * 50 for m in metrics)
    assert metrics[0]["loss/ptx"] == pytest.approx(0.5 * math.log(56), rel=0.05)
    assert len({m["loss/ptx"] for m in metrics}) == len(metrics)
