"""The update: by whole groups, refused whole; and rows of an older policy."""

import dataclasses

import pytest
import torch

from tests.train.batches import (
    OPTIMIZER,
    backend_of,
    distance,
    finite,
    groups_of,
    parts_of,
    settings_of,
    weights,
)
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.train.collate import minibatches
from verizero.pipeline.train.step import update


def watch(monkeypatch):
    """The rows of each optimiser step, as the update takes them."""
    seen = []

    def watched(*args):
        for rows in minibatches(*args):
            seen.append(list(rows))
            yield rows

    monkeypatch.setattr("verizero.pipeline.train.step.minibatches", watched)
    return seen


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (1, 3), (3, 2), (2, 9)])
def test_each_epoch_visits_whole_groups_once(epochs, minibatches, monkeypatch):
    groups = groups_of(num=6)
    seen = watch(monkeypatch)
    parts = parts_of("grpo", num_epochs=epochs, num_minibatches=minibatches)
    backend = backend_of()
    metrics = update(backend, parts, groups, settings_of(parts))
    steps = min(minibatches, 6)
    assert len(seen) == metrics["updates"] == backend.num_updates == epochs * steps
    group_of = [g for g, group in enumerate(groups) for m in group.members if m.reward is not None]
    for epoch in range(epochs):
        mine = seen[epoch * steps : (epoch + 1) * steps]
        assert sorted(row for rows in mine for row in rows) == list(range(len(group_of)))
        for rows in mine:
            for g in {group_of[row] for row in rows}:
                assert {i for i, x in enumerate(group_of) if x == g} <= set(rows)
        sizes = [len({group_of[row] for row in rows}) for rows in mine]
        assert max(sizes) - min(sizes) <= 1
    if epochs > 1 and steps > 1:
        assert seen[:steps] != seen[steps : 2 * steps]  # reshuffled


@pytest.mark.run
def test_minibatches_hang_on_seed_and_step_only(monkeypatch):
    seen = watch(monkeypatch)
    parts = parts_of("grpo", num_minibatches=3)
    for seed, step in ((5, 2), (5, 2), (6, 2), (5, 3)):
        update(backend_of(), parts, groups_of(num=6), settings_of(parts, seed=seed, step=step))
    cuts = [str(seen[i : i + 3]) for i in range(0, 12, 3)]
    assert cuts[0] == cuts[1]
    assert len(set(cuts)) == 3


def poison(backend):
    """Let one gradient of the next update be no number."""

    def spoil(gradient):
        handle.remove()
        return gradient * float("nan")

    handle = backend.model.model.norm.weight.register_hook(spoil)


def test_after_a_step_that_is_not_finite_training_continues_as_if_nothing_had_been():
    """With the moments, too, that the optimiser had: `test_cuts.py` has what is refused, for every objective."""
    parts = parts_of("grpo", kl_coef=0.1)
    backend, twin = backend_of(), backend_of()
    for b in (backend, twin):
        update(b, parts, groups_of(seed=1), settings_of(parts))
    poison(backend)
    with pytest.raises(NonFiniteError, match="refused"):
        update(backend, parts, groups_of(), settings_of(parts))
    assert backend.num_updates == twin.num_updates
    for b in (backend, twin):
        update(b, parts, groups_of(seed=2), settings_of(parts))
    assert all(torch.equal(v, weights(twin)[k]) for k, v in weights(backend).items())


def test_a_later_update_that_is_not_finite_ends_the_batch_and_keeps_the_earlier_ones():
    """One minibatch was taken: the policy has moved, so its version must count, and the refusal is reported."""
    parts, backend = parts_of("grpo", num_minibatches=3), backend_of()
    step = backend.step

    def stepped():
        metrics = step()
        poison(backend)
        return metrics

    backend.step = stepped
    metrics = update(backend, parts, groups_of(num=6), settings_of(parts))
    assert (metrics["updates"], metrics["updates/refused"]) == (1.0, 1.0)
    assert backend.num_updates == 1
    assert all(p.grad is None for p in backend.model.parameters())
    assert finite(metrics)
    assert distance(weights(backend), weights(backend_of())) > 1e-6


def test_the_reference_is_measured_where_asked_for_and_changes_nothing():
    parts = parts_of("dr_grpo")
    plain, measured = backend_of(), backend_of()
    one = update(plain, parts, groups_of(), settings_of(parts))
    two = update(measured, parts, groups_of(), settings_of(parts, with_reference=True))
    assert "kl/k3" not in one
    assert two["kl/k3"] > 0
    assert distance(weights(plain), weights(measured)) == 0


def test_a_batch_in_which_every_response_is_masked_updates_nothing_and_says_so():
    """All truncated, and truncated ones train nothing: no division by zero."""
    parts = parts_of("dapo", overlong_filter=True)
    rows = groups_of(num=40, lost=False)
    members = [m for g in rows for m in g.members if m.rollout.finish_reason == "length"][:4]
    assert len(members) == 4
    first = rows[0]
    scored = tuple(dataclasses.replace(m, reward=float(i % 2)) for i, m in enumerate(members))
    backend = backend_of(optimizer=OPTIMIZER.model_copy(update={"weight_decay": 0.0}))
    before = weights(backend)
    metrics = update(backend, parts, [dataclasses.replace(first, members=scored)], settings_of(parts))
    assert finite(metrics)
    assert metrics["tokens/trained"] == 0
    assert distance(before, weights(backend)) == 0


ICEPOP = {"mismatch_level": "token", "mismatch_action": "mask", "mismatch_floor": 0.8, "mismatch_cap": 1.25}


@pytest.mark.parametrize("objective", ["bypass", "decoupled"])
def test_the_engines_error_is_measured_on_fresh_rows_and_never_0_on_stale_ones(objective):
    parts = parts_of("dapo", mismatch_stale=objective, **ICEPOP)
    fresh, late = (
        update(backend_of(), parts, groups_of(), settings_of(parts, policy_version=version)) for version in (3, 4)
    )
    assert fresh["mismatch/abs"] > 0.1
    assert (fresh["mismatch/stale"], late["mismatch/stale"]) == (0.0, 1.0)
    assert late["mismatch/stale_abs"] == pytest.approx(fresh["mismatch/abs"], rel=1e-12)
    # No row is fresh, so the engine's error alone cannot be told: its metrics are absent, not 0.
    assert not {"mismatch/abs", "mismatch/k3", "mismatch/p99"} & late.keys()
    assert "mismatch/stale_abs" not in fresh
    # With `bypass` the ratio of a stale row is to the engine's log-probs, and their weights are 1.
    assert (late["ratio/p99"] > 1.5) == (objective == "bypass")
    assert late["masked/mismatch"] == (0.0 if objective == "bypass" else fresh["masked/mismatch"])
