"""The update: for GRPO what the formula says, by whole groups, refused whole; and rows of an older policy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from tests.train.batches import (
    MAX_RESPONSE,
    OPTIMIZER,
    backend_of,
    distance,
    finite,
    groups_of,
    parts_of,
    settings_of,
    stale,
    weights,
)
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import minibatches
from verizero.pipeline.train.step import update
from verizero.pipeline.types import Group

PLAIN = OptimizerConfig(learning_rate=1e-3, max_grad_norm=None, betas=(0.0, 0.0), eps=1.0)


def gradient_of(backend: Backend) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in backend.model.named_parameters() if p.grad is not None}


def double_of_grpo(
    backend: Backend, groups: list[Group], temperature: float, clip: float, kl_coef: float, version: int
) -> torch.Tensor:
    """GRPO's loss, response by response, from transformers' own forward and the formula of arXiv:2402.03300."""
    total, num = torch.zeros((), dtype=torch.float64), 0
    for group in groups:
        members = [m for m in group.members if m.reward is not None]
        rewards = [float(m.reward) for m in members if m.reward is not None]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        for m, reward in zip(members, rewards, strict=True):
            advantage = (reward - mean) / (std + 1e-6)
            r = m.rollout
            ids = torch.tensor([[*r.prompt_ids, *r.response_ids]])
            terms = []
            logits = backend.model(input_ids=ids, use_cache=False).logits[0] / temperature
            with torch.no_grad():
                other = backend.reference.model(input_ids=ids, use_cache=False).logits[0] / temperature
            for t, token in enumerate(r.response_ids):
                at = len(r.prompt_ids) + t - 1
                now = logits[at].log_softmax(-1)[token]
                ref = other[at].log_softmax(-1)[token]
                old = now.detach() if r.policy_version >= version else torch.tensor(r.logprobs[t]).double()
                ratio = (now - old).exp()
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
                terms.append(surrogate - kl_coef * ((ref - now).exp() - (ref - now) - 1))
            total = total + torch.stack(terms).mean()
            num += 1
    return -total / num


@pytest.mark.parametrize("off_policy", [False, True])
def test_grpo_is_what_its_paper_says(off_policy: bool) -> None:
    """Loss, gradient norm, and the weights after a step whose size is the gradient's (betas 0, eps 1)."""
    groups = groups_of()
    if off_policy:
        groups = stale(stale(groups, 0, 2, version=1), 3, 0, version=2)
    parts = parts_of("grpo", kl_coef=0.1)
    ours, theirs = backend_of(optimizer=PLAIN), backend_of(optimizer=PLAIN)
    loss = double_of_grpo(theirs, groups, 0.8, 0.2, 0.1, version=3)
    theirs.backward(loss)
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradient_of(theirs).values()))
    theirs.step()
    metrics = update(ours, parts, groups, settings_of(parts))
    assert metrics["loss/total"] == pytest.approx(loss.item(), abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert distance(weights(ours), weights(theirs)) < 1e-8
    assert distance(weights(ours), weights(backend_of())) > 1e-5
    assert metrics.get("rows/off_policy", 0.0) == (2.0 if off_policy else 0.0)


def watch(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rows of each optimiser step, as the update takes them."""
    seen: list[list[int]] = []

    def watched(*args: Any) -> Any:
        for rows in minibatches(*args):
            seen.append(list(rows))
            yield rows

    monkeypatch.setattr("verizero.pipeline.train.step.minibatches", watched)
    return seen


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (1, 3), (3, 2), (2, 9)])
def test_each_epoch_visits_whole_groups_once(epochs: int, minibatches: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_minibatches_hang_on_seed_and_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    parts = parts_of("grpo", num_minibatches=3)
    for seed, step in ((5, 2), (5, 2), (6, 2), (5, 3)):
        update(backend_of(), parts, groups_of(num=6), settings_of(parts, seed=seed, step=step))
    cuts = [str(seen[i : i + 3]) for i in range(0, 12, 3)]
    assert cuts[0] == cuts[1]
    assert len(set(cuts)) == 3


def frozen(backend: Backend) -> dict[str, Any]:
    assert backend.policy.optimizer is not None
    state = backend.policy.optimizer.state_dict()["state"]
    return {
        "weights": weights(backend),
        "adam": {(i, k): v.clone() for i, s in state.items() for k, v in s.items()},
        "updates": backend.num_updates,
    }


def poison(backend: Backend, where: str) -> None:
    """Make the loss, or only the gradient, of the next update not finite."""
    if where == "loss":
        backend.reference.model.lm_head.weight[3, 0] = float("nan")
    else:
        handle: list[Any] = []

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            handle[0].remove()
            return gradient * float("inf" if where == "gradient inf" else "nan")

        handle.append(backend.model.model.norm.weight.register_hook(spoil))


@pytest.mark.parametrize("where", ["loss", "gradient nan", "gradient inf"])
def test_a_step_that_is_not_finite_is_refused_and_changes_nothing(where: str) -> None:
    parts = parts_of("grpo", kl_coef=0.1)
    backend, twin = backend_of(), backend_of()
    settings = settings_of(parts)
    for b in (backend, twin):
        update(b, parts, groups_of(seed=1), settings_of(parts))  # so that the optimiser has a state
    before = frozen(backend)
    good = weights(backend)
    reference = backend.reference.model.lm_head.weight.clone()
    poison(backend, where)
    with pytest.raises(NonFiniteError, match="refused"):
        update(backend, parts, groups_of(), settings)
    after = frozen(backend)
    assert all(torch.equal(v, after["weights"][k]) for k, v in good.items())
    assert before["adam"].keys() == after["adam"].keys()
    assert all(torch.equal(v, after["adam"][k]) for k, v in before["adam"].items())
    assert after["updates"] == before["updates"]
    assert gradient_of(backend) == {}
    backend.reference.model.lm_head.weight.copy_(reference)
    for b in (backend, twin):  # and training continues as if nothing had been
        update(b, parts, groups_of(seed=2), settings_of(parts))
    assert all(torch.equal(v, weights(twin)[k]) for k, v in weights(backend).items())


def test_a_later_update_that_is_not_finite_ends_the_batch_and_keeps_the_earlier_ones() -> None:
    """One minibatch was taken: the policy has moved, so its version must count, and the refusal is reported."""
    parts, backend = parts_of("grpo", num_minibatches=3), backend_of()
    step = backend.step

    def stepped() -> dict[str, float]:
        metrics = step()
        poison(backend, "gradient nan")
        return metrics

    backend.step = stepped  # type: ignore[method-assign]
    metrics = update(backend, parts, groups_of(num=6), settings_of(parts))
    assert (metrics["updates"], metrics["updates/refused"]) == (1.0, 1.0)
    assert backend.num_updates == 1
    assert gradient_of(backend) == {}
    assert finite(metrics)
    assert distance(weights(backend), weights(backend_of())) > 1e-6


def test_length_penalties_enter_the_rewards() -> None:
    groups = groups_of()
    plain = parts_of("dapo", overlong_buffer=None)
    bent = parts_of("dapo", overlong_buffer=0.5)
    rows = [m for g in groups for m in g.members if m.reward is not None]
    added = [bent.params.length_penalty(len(m.rollout.response_ids), MAX_RESPONSE) for m in rows]
    assert any(added)
    one = update(backend_of(), plain, groups, settings_of(plain))
    two = update(backend_of(), bent, groups, settings_of(bent))
    mean = sum(m.reward or 0.0 for m in rows) / len(rows)
    assert one["reward/mean"] == pytest.approx(mean, abs=1e-6)
    assert two["reward/mean"] == pytest.approx(mean + sum(added) / len(rows), abs=1e-6)
    assert one["loss/total"] != two["loss/total"]


def test_the_reference_is_measured_where_asked_for_and_changes_nothing() -> None:
    parts = parts_of("dr_grpo")
    plain, measured = backend_of(), backend_of()
    one = update(plain, parts, groups_of(), settings_of(parts))
    two = update(measured, parts, groups_of(), settings_of(parts, with_reference=True))
    assert "kl/k3" not in one
    assert two["kl/k3"] > 0
    assert distance(weights(plain), weights(measured)) == 0


def test_a_batch_in_which_every_response_is_masked_updates_nothing_and_says_so() -> None:
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


def trained(
    name: str, groups: list[Group], version: int = 3, tokens: int = 40, **params: Any
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics and weights after an update of the policy at `version`, on rows of version 3."""
    parts, backend = parts_of(name, **params), backend_of()
    metrics = update(backend, parts, groups, settings_of(parts, tokens, policy_version=version))
    return metrics, weights(backend)


@pytest.mark.parametrize("objective", ["bypass", "decoupled"])
def test_the_engines_error_is_measured_on_fresh_rows_and_never_0_on_stale_ones(objective: str) -> None:
    fresh, _ = trained("dapo", groups_of(), **ICEPOP)
    late, _ = trained("dapo", groups_of(), version=4, mismatch_stale=objective, **ICEPOP)
    assert fresh["mismatch/abs"] > 0.1
    assert (fresh["mismatch/stale"], late["mismatch/stale"]) == (0.0, 1.0)
    assert late["mismatch/stale_abs"] == pytest.approx(fresh["mismatch/abs"], rel=1e-12)
    # No row is fresh, so the engine's error alone cannot be told: its metrics are absent, not 0.
    assert not {"mismatch/abs", "mismatch/k3", "mismatch/p99"} & late.keys()
    assert "mismatch/stale_abs" not in fresh


def test_decoupled_a_stale_row_is_corrected_as_a_fresh_one_is() -> None:
    """The ratio of the first update is 1 there, and the weight is the trainer's policy against what sampled."""
    fresh, wanted = trained("dapo", groups_of(), **ICEPOP)
    late, got = trained("dapo", groups_of(), version=4, mismatch_stale="decoupled", **ICEPOP)
    assert late["masked/mismatch"] == fresh["masked/mismatch"] > 0
    assert distance(wanted, got) == 0.0
    bypassed, other = trained("dapo", groups_of(), version=4, mismatch_stale="bypass", **ICEPOP)
    assert bypassed["masked/mismatch"] == 0.0
    assert bypassed["ratio/p99"] > 1.5
    assert distance(wanted, other) > 1e-6


def test_gspo_one_update_late_clips_tokens_only_without_the_decoupled_ratio() -> None:
    params: dict[str, Any] = {"mismatch_level": "token"}
    clipped = {}
    for objective in ("bypass", "decoupled"):
        metrics, _ = trained("gspo", groups_of(), version=4, mismatch_stale=objective, **params)
        clipped[objective] = metrics["clip_fraction/low"] + metrics["clip_fraction/high"]
    assert clipped["bypass"] > 0.1
    assert clipped["decoupled"] == 0.0


@pytest.mark.parametrize(
    "params",
    [
        {"mismatch_reject": {"max_k2": 0.5}},
        {"mismatch_reject": {"token_k1": 0.5}, "num_minibatches": 2},
        {"mismatch_reject": {"sum_k1": 1.0}, "mismatch_level": "token"},
        {"mismatch_reject": {"max_k2": 0.5}, "mismatch_level": "geometric"},
    ],
)
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_what_drops_tokens_judges_stale_rows_whatever_their_ratio(name: str, params: dict[str, Any]) -> None:
    dropped = {
        objective: trained(name, groups_of(), version=4, mismatch_stale=objective, **params)[0]["masked/rejected"]
        for objective in ("bypass", "decoupled")
    }
    assert dropped["bypass"] == pytest.approx(dropped["decoupled"], abs=0.05)
    assert dropped["bypass"] > 0.1
    if "num_minibatches" not in params:
        assert dropped["bypass"] == dropped["decoupled"]


def test_a_batch_of_one_update_needs_no_forward_of_its_own() -> None:
    parts, backend = parts_of("grpo", kl_coef=0.0, mismatch_stale="decoupled", mismatch_level="token"), backend_of()
    forward, count = backend.logprobs, []
    backend.logprobs = lambda *a, **k: (count.append(1), forward(*a, **k))[1]  # type: ignore[method-assign,misc]
    update(backend, parts, groups_of(), settings_of(parts, 10_000, policy_version=4))
    assert len(count) == 1
