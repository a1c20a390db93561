"""Training on episodes: against a slow double of loops over turns, under any cut, and inert where nothing trains."""

import dataclasses
import math

import pytest
import torch

from tests.rl.test_turn_credit import stepped
from tests.train.batches import (
    MAX_RESPONSE,
    OPTIMIZER,
    backend_of,
    gradient_of,
    groups_of,
    parts_of,
    settings_of,
    stale,
    weights,
    with_rollouts,
)
from tests.train.episodes import END, episodes_of, wrapped
from verizero.pipeline.train.collate import collate, micros_at, row_costs
from verizero.pipeline.train.step import _policy_gradient, prepare, update

TOKEN = {"advantage": "group_norm", "ratio": "token", "surrogate": "clip"}
KL = {"kl_in": "loss", "kl_form": "k3", "kl_coef": 0.3}
AGGREGATES = {
    "token_mean": ("custom", {**TOKEN, **KL, "aggregate": "token_mean"}),
    "sequence_mean_token_mean": ("custom", {**TOKEN, **KL, "aggregate": "sequence_mean_token_mean"}),
    "sequence_mean_token_sum": ("custom", {**TOKEN, **KL, "aggregate": "sequence_mean_token_sum"}),
    "sequence_mean_token_sum_norm": ("custom", {**TOKEN, **KL, "aggregate": "sequence_mean_token_sum_norm"}),
    "sequence_mean": (
        "custom",
        {**TOKEN, "advantage": "group_mean", "ratio": "sequence_product", "surrogate": {"name": "squared", "tau": 0.5},
         "aggregate": "sequence_mean"},
    ),
    "gspo": ("gspo", {"clip_low": 0.2, "clip_high": 0.2, "allow": ["wide_sequence_clip"]}),
}  # fmt: skip


def solved(parts, groups, **changes):
    """Metrics and gradient of one optimiser step, all rows at once."""
    backend, settings = backend_of(), settings_of(parts, 10_000, **changes)
    prepared = prepare(backend, parts, groups, settings)
    micros = micros_at(prepared.batch, [range(len(prepared.batch.rewards))], row_costs(prepared.batch), 10_000)
    metrics = _policy_gradient(backend, parts, prepared, micros, settings, 0)
    return {**prepared.advantages.stats, **metrics}, gradient_of(backend)


def float32(x):
    """Advantages and the engine's log-probs are kept in float32."""
    return float(torch.tensor(x, dtype=torch.float32))


def advantages_of(group, divides):
    """The advantage of each episode among those of its group, which its rows do not multiply."""
    members = [(m.rollout, m.reward) for m in group.members if m.reward is not None]
    rewards = [reward for _, reward in members]
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) + 1e-6 if divides else 1.0
    return [(rollout, float32((reward - mean) / std)) for rollout, reward in members]


def double(backend, groups, how, version=3):
    """The loss, from transformers' own forward over every row alone and loops over turns and tokens."""
    zero = torch.zeros((), dtype=torch.float64)
    objectives = []  # by episode, then token
    for rollout, advantage in [pair for g in groups for pair in advantages_of(g, how != "sequence_mean")]:
        old_turns = [t.policy_version < version for row in rollout.episode.rows for t in row if t.trains]
        own = []
        for turns in rollout.episode.rows:
            ids = [i for t in turns for i in (*t.observed, *t.sampled)]
            now_all = (backend.model(input_ids=torch.tensor([ids])).logits[0] / 0.8).log_softmax(-1)
            with torch.no_grad():
                ref_all = (backend.reference.model(input_ids=torch.tensor([ids])).logits[0] / 0.8).log_softmax(-1)
            tokens = []
            place = 0
            for t in turns:
                place += len(t.observed)
                for token, logprob in zip(t.sampled, t.logprobs, strict=True):
                    now = now_all[place - 1, token]
                    old = zero + float32(logprob) if any(old_turns) else now.detach()
                    if t.trains:
                        tokens.append((now, old, ref_all[place - 1, token]))
                    place += 1
            drift = [now - old for now, old, _ in tokens]
            for d, (now, _, ref) in zip(drift, tokens, strict=True):
                if how == "sequence_mean":
                    own.append(-((advantage - 0.5 * sum(drift, zero)) ** 2))
                    continue
                ratio = (sum(drift, zero) / len(drift) if how == "gspo" else d).exp()
                value = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                own.append(value if how == "gspo" else value - 0.3 * ((ref - now).exp() - (ref - now) - 1))
        objectives.append(own)
    if how == "token_mean":
        return -sum(map(sum, objectives)) / sum(map(len, objectives))
    sums = [sum(own, zero) for own in objectives]
    if how.startswith("sequence_mean_token_sum"):
        return -sum(sums, zero) / len(sums) / (MAX_RESPONSE if how.endswith("norm") else 1)
    return -sum([s / len(own) for s, own in zip(sums, objectives, strict=True)], zero) / len(sums)


@pytest.mark.parametrize("kind", ["fresh", "stale", "single responses, some stale"])
@pytest.mark.parametrize("how", AGGREGATES)
def test_loss_and_gradient_are_the_slow_loops(how, kind):
    groups = episodes_of(versions=(2, 3) if kind == "stale" else (3,))
    if "single" in kind:
        groups = wrapped(stale(stale(groups_of(), 0, 2, version=1), 3, 0, version=2))
    name, params = AGGREGATES[how]
    parts, theirs = parts_of(name, **params), backend_of()
    loss = double(theirs, groups, how)
    theirs.backward(loss)
    metrics, gradient = solved(parts, groups)
    # One value per response takes the mean of its advantages, which is rounded to float32.
    rough = how == "sequence_mean"
    assert metrics["loss/total"] == pytest.approx(loss.item(), rel=1e-7 if rough else 1e-10)
    torch.testing.assert_close(gradient, gradient_of(theirs), rtol=1e-6, atol=1e-8 if rough else 1e-11)
    assert float(gradient.abs().max()) > 1e-3
    num = sum(m.reward is not None for g in groups for m in g.members)
    assert metrics["sequences/trained"] == num > 10
    tokens = sum(m.rollout.num_sampled for g in groups for m in g.members if m.reward is not None)
    assert metrics["tokens/trained"] == tokens
    assert metrics["response/length_mean"] == pytest.approx(tokens / num, rel=1e-12)


CUTS = {
    **AGGREGATES,
    "overlong": ("dapo", {"overlong_filter": True, "overlong_buffer": 0.9, "entropy_coef": 0.1}),
    "turns": ("grpo", {"credit": "turns", "credit_gamma": 0.9}),
    "process": ("grpo_process", {"credit_outcome": 0.5}),
    "steps": ("grpo_process", {}),
    "kl in reward": ("reinforce_pp", {"kl_in": "reward", "kl_coef": 0.1}),
    "weights": ("grpo", {"mismatch_level": "token", "mismatch_reject": {"token_k2": 1.0}}),
    "optimal": ("opo", {}),
}


def cut_groups(name=""):
    """Stale and fresh episodes, some of them cut at the limit of length; for "steps" responses with steps."""
    if name == "steps":
        return stepped(3)
    groups = episodes_of(num=4, seed=3, versions=(2, 3))
    first = groups[0].members[0]
    episode = first.rollout.episode
    ended = dataclasses.replace(first.rollout, episode=dataclasses.replace(episode, ending="tokens"))
    members = (dataclasses.replace(first, rollout=ended), *groups[0].members[1:])
    return [dataclasses.replace(groups[0], members=members), *groups[1:]]


@pytest.mark.parametrize("name", ["grpo", "ppo", "otb"])
def test_an_episode_of_one_turn_is_a_single_response_byte_for_byte(name):
    def trained(groups):
        parts, backend = parts_of(name), backend_of()
        if parts.critic is not None:
            backend.start_critic(True, OPTIMIZER, 10)
        return update(backend, parts, groups, settings_of(parts)), list(weights(backend).values())

    assert collate(wrapped(groups_of()), 0).episode_ids is None
    (metrics, after), (found, moved) = trained(groups_of()), trained(wrapped(groups_of()))
    assert found == metrics
    assert all(torch.equal(a, b) for a, b in zip(after, moved, strict=True))


def test_a_minibatch_holds_whole_episodes_and_metrics_count_them():
    parts = parts_of("grpo", num_minibatches=3)
    groups = episodes_of(versions=(2, 3))
    members = [m.rollout.episode for g in groups for m in g.members if m.reward is not None]
    metrics = update(backend_of(), parts, groups, settings_of(parts))
    assert metrics["rows"] == len(members) == 11
    assert metrics["updates"] == 3
    assert metrics["sequences/trained"] == pytest.approx(11 / 3)  # the mean over minibatches
    assert metrics["episodes/forked"] == sum(len(e.rows) > 1 for e in members if e is not None) > 0
    late = [min(t.policy_version for row in e.rows for t in row if t.trains) < 3 for e in members if e is not None]
    assert metrics["rows/off_policy"] == sum(late)
    assert 0 < sum(late) < 11
    assert "episodes/forked" not in update(backend_of(), parts, groups_of(), settings_of(parts))


def test_length_penalties_are_of_the_whole_episode():
    """Neither the length of a row nor that of one turn, nor what was observed, counts."""
    groups = episodes_of()
    parts = parts_of("grpo", overlong_buffer=1.0)
    settings = settings_of(parts, max_response_tokens=12)
    batch = prepare(backend_of(), parts, groups, settings).batch
    members = [m for g in groups for m in g.members if m.reward is not None]
    for row, e in enumerate(batch.episode_ids.tolist()):
        num = members[e].rollout.num_sampled
        penalty = max(-1.0, -num / 12)
        assert float(batch.rewards[row]) == pytest.approx((members[e].reward or 0.0) + penalty, rel=1e-6)
    assert END in batch.input_ids


def test_components_of_rewards_are_those_of_the_episode():
    """As for single responses of the same groups: GDPO's advantages do not depend on tokens."""
    groups = episodes_of(num=4)
    alone = with_rollouts(groups, lambda rollout: dataclasses.replace(rollout, episode=None))
    parts = parts_of("gdpo")
    found = prepare(backend_of(), parts, groups, settings_of(parts))
    wanted = prepare(backend_of(), parts, alone, settings_of(parts)).advantages.advantages
    for row, e in enumerate(found.batch.episode_ids.tolist()):
        values = set(found.advantages.advantages[row][found.batch.response_mask[row] > 0].tolist())
        assert values == {float(wanted[e][wanted[e] != 0][0])}
