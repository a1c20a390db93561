"""What was recorded while sampling, replayed in training: against the engine's numbers and slow doubles."""

import dataclasses
import math

import pytest
import torch

from tests.models.families import VOCAB
from tests.train.batches import OPTIMIZER, frozen, parts_of, settings_of, watched
from tests.train.sampled import MAX, MODELS, forgetting, groups_of, model_of
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.rl.loss import policy_loss
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import collate, replay_of, rows_of
from verizero.pipeline.train.step import update

SAMPLINGS = {
    "top_p": Sampling(MAX, 1.0, 0.7, 0, max_kept=VOCAB),
    "top_k": Sampling(MAX, 1.0, 1.0, 4, max_kept=VOCAB),
    "both, cooler": Sampling(MAX, 0.8, 0.8, 6, max_kept=VOCAB),
    "bounded": Sampling(MAX, 1.3, 0.95, 0, max_kept=3),
}
EXPERTS = [name for name in MODELS if "moe" in name or name == "mixtral"]


def with_routing(sampling):
    return dataclasses.replace(sampling, keep_routing=True)


def difference(model, groups, temperature, rows=None):
    """|log-prob of the trainer - that of the engine| of every response token."""
    batch = collate(groups, 0)
    micro = batch if rows is None else rows_of(batch, rows)
    where = micro.response_mask > 0
    with torch.no_grad():
        ours, _ = Backend(model).logprobs(micro.input_ids, where, temperature, replay=replay_of(micro))
    return (ours - micro.rollout_logprobs).abs()[where]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", SAMPLINGS)
def test_logprobs_are_the_engines(name, how):
    sampling = with_routing(SAMPLINGS[how])
    model = model_of(name)
    groups = groups_of(model, sampling)
    for rows in (None, [0], [9, 2, 5]):
        assert difference(model, groups, sampling.temperature, rows).max() < 1e-5
    assert difference(model, forgetting(groups, kept=None), sampling.temperature).max() > 0.1


@pytest.mark.parametrize("name", EXPERTS)
def test_recorded_experts_are_those_of_a_forward_over_the_row_alone(name):
    model = model_of(name)
    for r in (m.rollout for g in groups_of(model, Sampling(MAX, keep_routing=True)) for m in g.members):
        ids = [*r.prompt_ids, *r.response_ids]
        found = torch.frombuffer(bytearray(r.routing.experts), dtype=torch.int16).long()
        found = found.view(len(ids) - 1, r.routing.layers, r.routing.top_k)
        logits = model(input_ids=torch.tensor([ids[:-1]]), use_cache=False, output_router_logits=True).router_logits
        assert len(logits) == r.routing.layers
        for layer, scores in enumerate(logits):
            for t, row in enumerate(scores.tolist()):
                order = sorted(range(len(row)), key=lambda e: -row[e])
                assert set(found[t, layer].tolist()) == set(order[: r.routing.top_k])


def select_answers(rollout):
    """The recorded sets, token by token; all tokens where none was recorded."""
    if rollout.kept is None:
        return [list(range(VOCAB)) for _ in rollout.response_ids]
    ids = torch.frombuffer(bytearray(rollout.kept.ids), dtype=torch.int32).tolist()
    out = []
    for size in rollout.kept.sizes:
        out.append(ids[:size] if size else list(range(VOCAB)))
        ids = ids[size:]
    return out


def slow_gradient(model, groups, temperature):
    """Of Dr. GRPO's loss on-policy, where the ratio is 1: each token's softmax over its own kept set, by loops."""
    total, rows = torch.zeros((), dtype=torch.float64), 0
    for group in groups:
        rewards = [float(m.reward or 0) for m in group.members]
        for m, reward in zip(group.members, rewards, strict=True):
            r, advantage = m.rollout, reward - sum(rewards) / len(rewards)
            logits = model(input_ids=torch.tensor([[*r.prompt_ids, *r.response_ids]]), use_cache=False).logits[0]
            for t, (token, allowed) in enumerate(zip(r.response_ids, select_answers(r), strict=True)):
                scores = [logits[len(r.prompt_ids) + t - 1, j] / temperature for j in allowed]
                logprob = scores[allowed.index(token)] - torch.stack(scores).logsumexp(0)
                total = total + advantage * logprob / MAX
            rows += 1
    return torch.cat([g.flatten() for g in torch.autograd.grad(-total / rows, list(model.parameters()))])


def trained(name, groups, tokens, algorithm="dr_grpo", **params):
    """Metrics and gradient of one update of a float64 policy, in micro-batches of at most `tokens`."""
    backend = Backend(model_of(name, torch.float64))
    backend.start(OPTIMIZER, 10)
    backend.reference = frozen(model_of(name, torch.float64, seed=5))
    parts = load_algorithm(algorithm, params)[1].resolve(MAX)
    settings = settings_of(parts, tokens, max_response_tokens=MAX)
    metrics, (gradient,) = watched(backend, lambda: update(backend, parts, groups, settings))
    return metrics, gradient


@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe"])
def test_an_update_is_the_slow_loops(name):
    model = model_of(name, torch.float64)
    groups = groups_of(model, dataclasses.replace(SAMPLINGS["both, cooler"], keep_routing=True))
    wanted = slow_gradient(model, groups, 0.8)
    metrics, found = trained(name, groups, 60)
    assert metrics["policy_kl/k3"] == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert float(wanted.abs().max()) > 1e-3


def test_old_and_reference_logprobs_are_over_the_kept_set_too(monkeypatch):
    """Of a policy that is its own reference: at the first of several updates all three are the same."""
    seen = []

    def watched(parts, inputs, totals):
        seen.append(inputs)
        return policy_loss(parts, inputs, totals)

    monkeypatch.setattr("verizero.pipeline.train.step.policy_loss", watched)
    groups = groups_of(model_of("qwen2", torch.float64), SAMPLINGS["both, cooler"])
    backend = Backend(model_of("qwen2", torch.float64))
    backend.start(OPTIMIZER, 10)
    backend.refresh_reference()
    parts = parts_of("grpo", kl_coef=0.5, num_epochs=2)
    update(backend, parts, groups, settings_of(parts, 10_000, max_response_tokens=MAX))
    first, second = seen
    for other in (first.old_logprobs, first.ref_logprobs, first.rollout_logprobs):
        torch.testing.assert_close(other.double(), first.logprobs.detach(), rtol=0, atol=1e-5)
    assert float(first.entropy.detach().max()) <= math.log(6) + 1e-9
    assert (second.old_logprobs - second.logprobs).abs().max() > 1e-6


@pytest.mark.run
def test_on_policy_in_one_precision_nothing_is_rerouted_and_metrics_say_so():
    groups = groups_of(model_of("qwen3_moe", torch.float64), Sampling(MAX, 0.8, keep_routing=True))
    metrics, _ = trained("qwen3_moe", groups, 80)
    assert metrics["routing/changed"] == 0.0
    plain, _ = trained("qwen3_moe", forgetting(groups, routing=None), 80)
    assert "routing/changed" not in plain
    assert metrics["loss/total"] == pytest.approx(plain["loss/total"], abs=1e-9)
    other, _ = trained("qwen3_moe", groups_of(model_of("qwen3_moe", seed=9), Sampling(MAX, keep_routing=True)), 80)
    assert other["routing/changed"] > 0.3


def test_the_reference_routes_by_itself():
    model, other = model_of("qwen3_moe"), model_of("qwen3_moe", seed=4)
    backend = Backend(model)
    backend.reference = frozen(other)
    groups = groups_of(model, Sampling(MAX, keep_routing=True))
    batch = collate(groups, 0)
    where = batch.response_mask > 0
    with torch.no_grad():
        found, _ = backend.logprobs(batch.input_ids, where, 1.0, "reference", replay=replay_of(batch))
        wanted, _ = Backend(other).logprobs(batch.input_ids, where, 1.0)
    assert torch.equal(found, wanted)


def test_rows_without_records_stay_whole_beside_rows_with_them():
    model = model_of("qwen2")
    cut, whole = groups_of(model, SAMPLINGS["top_p"]), groups_of(model, Sampling(MAX))
    groups = [cut[0], whole[1], cut[2], whole[3]]
    assert difference(model, groups, 1.0).max() < 1e-5
    assert difference(model, groups, 1.0, rows=[3, 1]).max() < 1e-5


def test_records_that_do_not_fit_are_refused():
    experts = groups_of(model_of("qwen3_moe"), Sampling(MAX, keep_routing=True))
    with pytest.raises(DataError, match="routed through"):
        collate([experts[0], *groups_of(model_of("qwen2"), Sampling(MAX))[1:]], 0)
    with pytest.raises(ConfigError, match=r"of 2 layers with 2 experts a token, the policy has 2 routers with \[3\]"):
        difference(model_of("mixtral"), experts, 1.0)
