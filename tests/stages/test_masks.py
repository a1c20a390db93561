"""Kept sampling sets and kept experts through the loop: recipes, metrics, carried groups, checkpoints, refusals."""

from __future__ import annotations

import pytest

from tests.stages.marks import MARKED
from tests.stages.recorded import CUT, EXPERTS, V32, run


@pytest.mark.run
def test_a_cut_that_is_kept_leaves_no_mismatch_and_one_that_is_not_does() -> None:
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


@pytest.mark.run
def test_a_recorded_set_is_bounded_and_how_often_is_said_and_without_a_cut_nothing_is_recorded() -> None:
    steps, calls = run(V32, "rollout.top_p=0.99", "rollout.max_kept=2")
    assert all(max(r.kept.sizes) <= 2 for _, rollouts in calls["generate"] for r in rollouts)
    assert all(m["sampling/bounded"] > 0.05 and abs(m["mismatch/k3"]) < 1e-9 for m in steps)
    steps, calls = run(V32)
    assert all(r.kept is None and r.routing is None for _, rollouts in calls["generate"] for r in rollouts)
    assert all("sampling/kept_mean" not in m and "routing/changed" not in m for m in steps)


@pytest.mark.run
def test_experts_are_replayed_through_the_loop() -> None:
    steps, calls = run(V32, *EXPERTS, *CUT, MARKED, "rl.algorithm.num_minibatches=3", "rl.optimizer.learning_rate=0.05")
    plain, _ = run("rl.algorithm={name: deepseek_v32, keep_routing: false}", *EXPERTS, *CUT)
    for _, rollouts in calls["generate"]:
        for r in rollouts:
            assert (r.routing.layers, r.routing.top_k) == (2, 2)
            assert len(r.routing.experts) == 2 * 4 * (len(r.prompt_ids) + len(r.response_ids) - 1)
    # the first of three updates on a batch changes no choice, the others, of weights that moved, some
    assert any(m["routing/changed"] > 0 for m in steps)
    assert all("routing/changed" not in m for m in plain)
