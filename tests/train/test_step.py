"""The update: the same under any cut into micro-batches, and for GRPO the same as the formula says."""

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
from verizero.pipeline.errors import ConfigError, NonFiniteError
from verizero.pipeline.registry import names
from verizero.pipeline.rl.shaping import length_penalty
from verizero.pipeline.train.minibatches import minibatches
from verizero.pipeline.train.prepare import Controllers
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.types import Group

PLAIN = OptimizerConfig(learning_rate=1e-3, max_grad_norm=None, betas=(0.0, 0.0), eps=1.0)


def trains_here(name: str) -> bool:
    """Rewards and log-probs are all that it needs."""
    try:
        parts = parts_of(name)
    except ConfigError:  # one that has to be told its parts
        return False
    return not (parts.needs_critic or parts.needs_components)


ALGORITHMS = [name for name in names("algorithms") if trains_here(name)]


def gradient_of(backend: TorchBackend) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in backend.model.named_parameters() if p.grad is not None}


def run(name: str, tokens: int, groups: list[Group], **params: Any) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    parts = parts_of(name, **params)
    backend = backend_of()
    metrics = update(backend, parts, groups, settings_of(parts, tokens))
    return metrics, weights(backend)


def test_the_usual_algorithms_are_among_those_tested() -> None:
    usual = {
        "grpo",
        "dapo",
        "gspo",
        "dr_grpo",
        "cispo",
        "kimi_k2",
        "reinforce_pp",
        "rloo",
        "remax",
        "clip_cov",
        "r1_zero",
    }
    assert usual <= set(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_change_nothing(name: str) -> None:
    """Row by row, in pieces, and the whole batch at once; two epochs of two minibatches where old log-probs matter."""
    groups = stale(groups_of(3, 3), 2, 1, version=2)
    params = {"num_epochs": 2, "num_minibatches": 2, "mismatch_level": "token"} if name == "grpo" else {}
    whole, wanted = run(name, 10_000, groups, **params)
    assert finite(whole)
    assert distance(wanted, weights(backend_of())) > 1e-6
    for tokens in (1, 40):
        metrics, found = run(name, tokens, groups, **params)
        assert distance(found, wanted) < 1e-6
        assert metrics.keys() == whole.keys()
        for key, value in metrics.items():
            assert value == pytest.approx(whole[key], rel=1e-5, abs=1e-6), key


def double_of_grpo(
    backend: TorchBackend, groups: list[Group], temperature: float, clip: float, kl_coef: float, version: int
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
                other = backend.reference(input_ids=ids, use_cache=False).logits[0] / temperature
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


def test_old_logprobs_of_a_stale_row_are_the_engines() -> None:
    """Their ratio is off 1 at the first update; that of the rows just sampled is exactly 1."""
    parts = parts_of("grpo", kl_coef=0.0)
    fresh = update(backend_of(), parts, groups_of(), settings_of(parts))
    mixed = update(backend_of(), parts, stale(groups_of(), 0, 0, version=2), settings_of(parts))
    assert fresh["policy_kl/k3"] == pytest.approx(0.0, abs=1e-12)
    assert mixed["policy_kl/k3"] > 1e-3


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


@pytest.mark.integration
def test_minibatches_hang_on_seed_and_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    parts = parts_of("grpo", num_minibatches=3)
    for seed, step in ((5, 2), (5, 2), (6, 2), (5, 3)):
        update(backend_of(), parts, groups_of(num=6), settings_of(parts, seed=seed, step=step))
    cuts = [str(seen[i : i + 3]) for i in range(0, 12, 3)]
    assert cuts[0] == cuts[1]
    assert len(set(cuts)) == 3


def test_max_kl_stops_the_batch() -> None:
    """After the update that moved too far, and no sooner."""
    parts = parts_of("grpo", num_epochs=6, max_kl=1e-4)
    fast = OptimizerConfig(learning_rate=3e-2)
    backend = backend_of(optimizer=fast)
    metrics = update(backend, parts, groups_of(), settings_of(parts))
    assert backend.num_updates == metrics["updates"] == 2


def frozen(backend: TorchBackend) -> dict[str, Any]:
    assert backend.optimizer is not None
    state = backend.optimizer.state_dict()["state"]
    return {
        "weights": weights(backend),
        "adam": {(i, k): v.clone() for i, s in state.items() for k, v in s.items()},
        "updates": backend.num_updates,
    }


def poison(backend: TorchBackend, where: str) -> None:
    """Make the loss, or only the gradient, of the next update not finite."""
    if where == "loss":
        backend.reference.lm_head.weight[3, 0] = float("nan")
    else:
        handle: list[Any] = []

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            handle[0].remove()
            return gradient * float("inf" if where == "gradient inf" else "nan")

        handle.append(backend.model.model.norm.weight.register_hook(spoil))


@pytest.mark.parametrize("where", ["loss", "gradient nan", "gradient inf"])
def test_a_step_that_is_not_finite_is_refused_and_changes_nothing(where: str) -> None:
    parts = parts_of("grpo", kl_target=0.1, kl_horizon=100, allow=["adaptive_kl_in_loss"])
    backend, twin = backend_of(), backend_of()
    settings = settings_of(parts)
    for b in (backend, twin):
        update(b, parts, groups_of(seed=1), settings_of(parts))  # so that the optimiser has a state
    before, coef = frozen(backend), settings.controllers.kl.coef
    good = weights(backend)
    reference = backend.reference.lm_head.weight.clone()
    poison(backend, where)
    with pytest.raises(NonFiniteError, match="refused"):
        update(backend, parts, groups_of(), settings)
    after = frozen(backend)
    assert all(torch.equal(v, after["weights"][k]) for k, v in good.items())
    assert before["adam"].keys() == after["adam"].keys()
    assert all(torch.equal(v, after["adam"][k]) for k, v in before["adam"].items())
    assert after["updates"] == before["updates"]
    assert settings.controllers.kl.coef == coef
    assert gradient_of(backend) == {}
    backend.reference.lm_head.weight.copy_(reference)
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
    added = [length_penalty(bent.shaping, len(m.rollout.response_ids), MAX_RESPONSE) for m in rows]
    assert any(added)
    one = update(backend_of(), plain, groups, settings_of(plain))
    two = update(backend_of(), bent, groups, settings_of(bent))
    mean = sum(m.reward or 0.0 for m in rows) / len(rows)
    assert one["reward/mean"] == pytest.approx(mean, abs=1e-6)
    assert two["reward/mean"] == pytest.approx(mean + sum(added) / len(rows), abs=1e-6)
    assert one["loss/total"] != two["loss/total"]


def test_the_likelihood_of_right_answers_hangs_on_no_micro_batch_and_on_no_penalty() -> None:
    """A penalty of 5 takes every reward below 0, and right answers are still those that the verifiers gave one."""
    plain, penalty = {"nll_coef": 0.5}, {"token_budget": 1, "token_budget_penalty": 5.0}
    found = [run("dr_grpo", tokens, groups_of(), **plain) for tokens in (15, 1000)]
    assert found[0][0]["loss/nll"] == pytest.approx(found[1][0]["loss/nll"], rel=1e-10)
    # Prompts are shared, so other rows are computed together, and the policy's norms are in float32.
    assert distance(found[0][1], found[1][1]) < 1e-7
    punished, _ = run("dr_grpo", 1000, groups_of(), **plain, **penalty)
    assert punished["loss/nll"] == found[1][0]["loss/nll"] > 0


def test_an_adaptive_kl_moves_and_is_saved() -> None:
    parts = parts_of("grpo", kl_coef=0.1, kl_target=1e-6, kl_horizon=100, allow=["adaptive_kl_in_loss"])
    settings = settings_of(parts)
    metrics = update(backend_of(), parts, groups_of(), settings)
    assert metrics["kl/coef"] == 0.1  # what this update used
    error = max(-0.2, min(0.2, metrics["kl/k1"] / 1e-6 - 1))
    assert settings.controllers.kl.coef == pytest.approx(0.1 * (1 + error * metrics["rows"] / 100))
    assert settings.controllers.kl.coef != 0.1
    again = Controllers(parts)
    again.load_state_dict(settings.controllers.state_dict())
    assert again.kl.coef == settings.controllers.kl.coef
    after = update(backend_of(), parts, groups_of(), settings_of(parts, controllers=again))
    assert after["kl/coef"] == settings.controllers.kl.coef
    assert again.kl.coef != settings.controllers.kl.coef


def test_an_adaptive_kl_of_the_reward_follows_the_batch_as_it_was_sampled() -> None:
    """Several updates move the policy and with it kl/k1; the coefficient adapts to the KL that was in the rewards."""
    parts = parts_of("reinforce_pp", kl_coef=0.1, kl_target=0.055, kl_horizon=100, num_minibatches=4)
    settings = settings_of(parts)
    metrics = update(backend_of(1), parts, groups_of(), settings)
    error = metrics["reward/kl_per_token"] / 0.055 - 1
    assert metrics["kl/k1"] != pytest.approx(metrics["reward/kl_per_token"], rel=1e-6)
    expected = 0.1 * (1 + max(-0.2, min(0.2, error)) * metrics["rows"] / 100)
    assert settings.controllers.kl.coef == pytest.approx(expected, rel=1e-12)
    assert abs(error) < 0.2, "a clipped error would be the same for both"


def test_an_adaptive_entropy_bonus_moves_and_is_saved() -> None:
    parts = parts_of("grpo", entropy_coef=0.01, entropy_target=50.0, entropy_step=0.02, entropy_max=0.02)
    settings = settings_of(parts)
    update(backend_of(), parts, groups_of(), settings)
    assert settings.controllers.entropy.coef == pytest.approx(0.02)
    again = Controllers(parts)
    again.load_state_dict(settings.controllers.state_dict())
    assert again.entropy.coef == settings.controllers.entropy.coef


@pytest.mark.integration
def test_an_entropy_bonus_raises_the_entropy() -> None:
    entropies = {}
    for coef in (-0.5, 0.0, 0.5):
        parts, backend = parts_of("grpo", kl_coef=0.0, entropy_coef=coef), backend_of()
        entropies[coef] = [update(backend, parts, groups_of(), settings_of(parts))["entropy"] for _ in range(8)]
    first = {round(seen[0], 9) for seen in entropies.values()}
    last = [seen[-1] for seen in entropies.values()]
    assert len(first) == 1
    assert last == sorted(last)
    assert last[2] > entropies[0.5][0]
    assert last[0] < entropies[-0.5][0]


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
