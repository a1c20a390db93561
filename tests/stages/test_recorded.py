"""What was sampled reaches the update: generation ahead of it, by which weights, and kept sampling sets and experts."""

import functools
import threading

import pytest
import torch

from tests.scripted_engine import ScriptedEngine
from tests.stages.marks import MARKED, SOME_FLAT
from tests.stages.recorded import CUT, EXPERTS, GRPO, V32, run
from tests.stages.sessions import replacing, round_of, rows, run_all, session_of, train_round
from tests.stages.start import ONLY_RL, start
from tests.stages.tiny import tiny
from verizero.pipeline.errors import EngineError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.rollouts import AheadSource
from verizero.pipeline.stages.rl import rl_phases

pytestmark = pytest.mark.run  # whole runs

SIX = (GRPO, "rl.steps_per_round=6")


def ahead(most):
    return (f"rollout.max_staleness={most}",)


@functools.cache
def versions(*overrides):
    """For each step, the versions (of its first policy: 0) that sampled what it trained on."""
    _, calls = run(*overrides)
    trained = [arguments[0] for arguments, _ in calls["update"]]
    drawn = [[m.rollout.policy_version for g in groups for m in g.members] for groups in trained]
    return [[v - drawn[0][0] for v in sorted(set(one))] for one in drawn]


@pytest.mark.parametrize("most", [0, 2, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 3))])
def test_step_s_is_sampled_by_the_policy_of_step_s_minus_k_and_says_so(most):
    assert versions(*SIX, *ahead(most)) == [[max(0, step - most)] for step in range(6)]
    steps, calls = run(*SIX, *ahead(most))
    if most == 0:
        assert not [name for name in steps[0] if name.startswith(("staleness/", "groups/stale", "groups/in_flight"))]
        return
    ages = [min(step, most) for step in range(6)]
    assert [m["staleness/max"] for m in steps] == [m["staleness/mean"] for m in steps] == ages
    assert [m.get("rows/off_policy", 0.0) for m in steps] == [18.0 if age else 0.0 for age in ages]
    assert [m["groups/in_flight"] for m in steps] == [3.0 * min(most, 5 - step) for step in range(6)]
    assert all(m["groups/stale"] == 0 for m in steps)
    assert len(calls["publish"]) == 6


class Weights:
    """Remembers the weights of every version, and scores responses with them."""

    def __init__(self):
        self.kept = {}
        self.first = 0

    def update(self, session, plain, groups):
        model, version = session.workers.backend.model, session.state.policy_version
        self.kept[version] = {k: v.clone() for k, v in model.state_dict().items()}
        self.check(session, [m.rollout for g in groups for m in g.members])
        model.load_state_dict(self.kept[version])
        metrics = plain(groups)
        return metrics

    def scored(self, session, rollout, version):
        """[T] log-probs of the response's tokens by the policy of that version."""
        session.workers.backend.model.load_state_dict(self.kept[version])
        ids = torch.tensor([[*rollout.prompt_ids, *rollout.response_ids]])
        where = torch.arange(ids.shape[1])[None] >= len(rollout.prompt_ids)
        with torch.no_grad():
            found, _ = session.workers.backend.logprobs(ids, where, 1.0)
        return found[0, len(rollout.prompt_ids) :]

    def check(self, session, rollouts):
        for rollout in rollouts:
            wanted = self.scored(session, rollout, rollout.policy_version)
            assert torch.allclose(torch.tensor(rollout.logprobs), wanted, atol=1e-4)


def test_responses_are_of_the_weights_they_name_though_others_are_trained_meanwhile(tmp_path):
    watch = Weights()
    overrides = ["rl.select.keep=all", "rl.rounds=1", "data.evaluation=[]", "rl.optimizer.learning_rate=0.01"]
    begun = [start("sft.steps=60"), *ONLY_RL, *SIX, *ahead(3)]
    with open_run(tiny(overrides=[*begun, *overrides]), tmp_path, tmp_path, "auto", Progress()) as session:
        run_all(session, replacing(update=functools.partial(watch.update, session)))
    assert len(watch.kept) == 6


AHEAD = {"rollout": {"max_staleness": 1}, "rl": {"select": {"keep": "all"}}}


def in_its_thread(session, act):
    """Let the session's engine do that before it generates in the thread of generation."""
    engine = session.workers.rollouts.engine

    class Acts(ScriptedEngine):
        def generate(self, *arguments, **named):
            if threading.current_thread() is not threading.main_thread():
                act()
            return super().generate(*arguments, **named)

    session.workers.rollouts.generation.engine = Acts(engine.script, engine.eos_id)


def test_generation_goes_on_while_the_update_runs(tmp_path):
    """Each would wait for the other for ever if they took turns."""
    updating, drawing = threading.Event(), threading.Event()

    def meet():
        drawing.set()
        assert updating.wait(60)

    with session_of(tmp_path, **AHEAD) as session:
        in_its_thread(session, meet)
        plain = rl_phases(session).update

        def update(groups):
            if session.state.rl_step == 0:
                updating.set()
                assert drawing.wait(60)
            return plain(groups)

        train_round(session, update=update)
        assert [r["metrics"]["staleness/max"] for r in rows(session)] == [0, 1, 1]


def test_what_fails_in_the_thread_ends_the_run(tmp_path):
    def fail():
        raise EngineError("the cable was cut")

    with session_of(tmp_path, **AHEAD) as session:
        in_its_thread(session, fail)
        with pytest.raises(EngineError, match="the cable was cut"):
            train_round(session)


def test_nothing_is_in_flight_after_the_last_round_nor_past_the_budget(tmp_path):
    each = 6 * 30
    changes = {"rl": {"max_tokens": 4 * 3 * each, "select": {"keep": "all"}}, "rollout": {"max_staleness": 2}}
    with session_of(tmp_path, **changes) as session:
        assert isinstance(session.workers.rollouts, AheadSource)
        for number in (1, 2):
            train_round(session, round_of(session, number))
            session.state.step = 0
        assert session.workers.rollouts.in_flight == []
        assert session.state.stage.num_tokens <= 4 * 3 * each


CARRIES = ("rl.select.keep=informative", "rl.prompts_per_step=2", "rl.select.max_refills=6", "sft.steps=120")


def test_groups_carried_over_are_off_policy_in_the_next_step():
    steps, _ = run("rl.algorithm={name: grpo, kl_coef: 0}", "rl.steps_per_round=8", SOME_FLAT, *CARRIES)
    carried = [m for m in steps if m["groups/carried_in"] > 0 and not m["update/skipped"]]
    assert carried, "no group was carried over: the recipe no longer shows it"
    for m in carried:
        assert m["rows/off_policy"] == 6 * min(2, m["groups/carried_in"])
        # their ratio is against what the engine said when it sampled them, so it is not 1 at the first update
        assert m["policy_kl/k3"] > 0
    fresh = [m for m in steps if m["groups/carried_in"] == 0 and not m["update/skipped"]]
    assert all("rows/off_policy" not in m and abs(m["policy_kl/k3"]) < 1e-9 for m in fresh)


def test_a_cut_that_is_kept_leaves_no_mismatch_and_one_that_is_not_does():
    kept, calls = run(V32, *CUT)
    lost, _ = run("rl.algorithm={name: deepseek_v32, keep_sampling: false, allow: [cut_sampling]}", *CUT)
    assert all(abs(m["mismatch/k3"]) < 1e-9 for m in kept)
    assert all(m["mismatch/k3"] > 1e-5 for m in lost)
    for m in kept:
        assert 1 <= m["sampling/kept_mean"] <= 12
        assert m["sampling/bounded"] == m["sampling/uncut"] == 0.0
    assert all("sampling/kept_mean" not in m for m in lost)
    for _, rollouts in calls["generate"]:
        for r in rollouts:
            assert r.kept is not None
            assert len(r.kept.sizes) == len(r.response_ids)
            assert max(r.kept.sizes) <= 12


def test_a_recorded_set_is_bounded_and_how_often_is_said_and_without_a_cut_nothing_is_recorded():
    steps, calls = run(V32, "rollout.top_p=0.99", "rollout.max_kept=2")
    assert all(max(r.kept.sizes) <= 2 for _, rollouts in calls["generate"] for r in rollouts)
    assert all(m["sampling/bounded"] > 0.05 and abs(m["mismatch/k3"]) < 1e-9 for m in steps)
    steps, calls = run(V32)
    assert all(r.kept is None and r.routing is None for _, rollouts in calls["generate"] for r in rollouts)
    assert all("sampling/kept_mean" not in m and "routing/changed" not in m for m in steps)


def test_experts_are_replayed_through_the_loop():
    steps, calls = run(V32, *EXPERTS, *CUT, MARKED, "rl.algorithm.num_minibatches=3", "rl.optimizer.learning_rate=0.05")
    plain, _ = run("rl.algorithm={name: deepseek_v32, keep_routing: false}", *EXPERTS, *CUT)
    for _, rollouts in calls["generate"]:
        for r in rollouts:
            assert (r.routing.layers, r.routing.top_k) == (2, 2)
            assert len(r.routing.experts) == 2 * 4 * (len(r.prompt_ids) + len(r.response_ids) - 1)
    # the first of three updates on a batch changes no choice, the others, of weights that moved, some
    assert any(m["routing/changed"] > 0 for m in steps)
    assert all("routing/changed" not in m for m in plain)
