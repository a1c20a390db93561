"""The critic: its values against transformers' own forward, its update against the formula, its checkpoint."""

import pytest
import torch

from tests.oracles import advantages as oracle
from tests.train.batches import (
    OPTIMIZER,
    backend_of,
    distance,
    groups_of,
    head_of,
    parts_of,
    settings_of,
    watched,
    weights,
)
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.step import update


def with_critic(shared):
    """A backend whose critic has a head that is not zero, so that values differ."""
    backend = backend_of()
    backend.start_critic(shared, OPTIMIZER, 10)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in head_of(backend.critic).parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return backend


def critic_weights(backend):
    return {k: v.detach().clone() for k, v in backend.critic.trained.model.state_dict().items()}


def slow_values(backend, groups):
    """V before each response token and after the last, row by row without padding, through transformers' forward."""
    critic = backend.critic
    out = []
    for m in (m for g in groups for m in g.members if m.reward is not None):
        ids = torch.tensor([[*m.rollout.prompt_ids, *m.rollout.response_ids]])
        if not critic.is_shared:
            of_states = critic.trained.model(input_ids=ids).logits[0, :, 0]
        else:
            hidden = backend.model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
            of_states = hidden @ critic.trained.model.weight[0] + critic.trained.model.bias[0]
        out.append(list(of_states[len(m.rollout.prompt_ids) - 1 :]))
    return out


@pytest.mark.parametrize("shared", [False, True])
def test_a_new_critic_says_zero_and_its_backbone_is_the_policys(shared):
    backend = backend_of()
    before = torch.get_rng_state()
    backend.start_critic(shared, OPTIMIZER, 10)
    assert torch.equal(before, torch.get_rng_state()), "making a critic draws no number of anybody else's"
    critic = backend.critic
    assert all(float(v.detach().abs()) == 0 for row in slow_values(backend, groups_of()) for v in row)
    if not shared:
        ours, theirs = critic.trained.model.base_model.state_dict(), backend.model.base_model.state_dict()
        assert distance(ours, theirs) == 0
        assert not {p.data_ptr() for p in ours.values()} & {p.data_ptr() for p in theirs.values()}


def slow_value_loss(backend, groups, lam, clip):
    """The mean over tokens of 0.5 (V - return)^2; V has not moved yet, so the clip changes nothing."""
    rows = slow_values(backend, groups)
    rewards = [m.reward for g in groups for m in g.members if m.reward is not None]
    assert clip is None or clip > 0
    loss, num = torch.zeros((), dtype=torch.float64), 0
    for row, reward in zip(rows, rewards, strict=True):
        values = [float(v.detach()) for v in row[:-1]]
        _, returns = oracle.gae([0.0] * (len(values) - 1) + [reward], values, 0.0, 1.0, lam)
        for v, wanted in zip(row[:-1], returns, strict=True):
            loss, num = loss + 0.5 * (v - wanted) ** 2, num + 1
    return loss / num


def gradients(backend, groups, **params):
    """Metrics of an update by PPO, and the gradients of the policy and of the critic."""
    parts = parts_of("ppo", kl_coef=0.0, num_minibatches=1, **params)
    metrics, (policy, critic) = watched(backend, lambda: update(backend, parts, groups, settings_of(parts)))
    return metrics, policy, critic


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("lam_critic", [None, 1.0, 0.5])
def test_an_update_of_the_critic_is_the_formulas(lam_critic, clip):
    backend, groups = with_critic(False), groups_of()
    loss = slow_value_loss(backend, groups, 0.9 if lam_critic is None else lam_critic, clip)
    wanted = torch.autograd.grad(0.5 * loss, list(backend.critic.trained.model.parameters()))
    numbers = {"value_clip": clip, "value_loss_coef": 0.5, "lam": 0.9, "lam_critic": lam_critic}
    metrics, _, found = gradients(backend, groups, **numbers)
    assert metrics["critic/loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    torch.testing.assert_close(found, torch.cat([g.flatten() for g in wanted]), rtol=1e-6, atol=1e-7)
    assert float(found.abs().max()) > 1e-3


def test_the_gradient_of_a_shared_critic_reaches_the_policys_backbone():
    """The policy's gradient is that of its own loss plus the critic's: compared with autograd of both."""
    groups, both = groups_of(), with_critic(True)
    loss = slow_value_loss(both, groups, 0.95, None)
    extra = torch.autograd.grad(loss, list(both.model.parameters()), materialize_grads=True, allow_unused=True)
    extra = torch.cat([g.flatten() for g in extra])
    assert float(extra.abs().max()) > 1e-3
    _, alone, _ = gradients(with_critic(False), groups, value_clip=None)
    _, found, _ = gradients(both, groups, value_clip=None, critic_shared=True)
    torch.testing.assert_close(found, alone + extra, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shared", [False, True])
def test_only_the_critic_learns_in_its_warm_up(shared):
    parts = parts_of("ppo", critic_warmup_steps=2, critic_shared=shared)
    backend = with_critic(shared)
    policy, optimizer = weights(backend), backend.num_updates
    for step in (0, 1):
        before = critic_weights(backend)
        metrics = update(backend, parts, groups_of(), settings_of(parts, step=10 + step, step_in_stage=step))
        assert metrics["critic/warming_up"] == 1.0
        assert distance(weights(backend), policy) == 0
        assert backend.num_updates == optimizer
        assert distance(critic_weights(backend), before) > 0
        assert all(p.grad is None for p in backend.model.parameters())
    metrics = update(backend, parts, groups_of(), settings_of(parts, step=12, step_in_stage=2))
    assert metrics["critic/warming_up"] == 0.0
    assert distance(weights(backend), policy) > 0


def test_the_saved_critic_is_a_token_classifier_of_one_label(tmp_path):
    import transformers

    backend = with_critic(False)
    backend.save(tmp_path, lambda model, folder: model.save_pretrained(folder))
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "critic", dtype=torch.float64)
    ids = torch.tensor([[3, 5, 7, 9]])
    where = torch.tensor([[False, True, True, True]])
    torch.testing.assert_close(model.eval()(ids).logits[0, :3, 0], backend.critic.values(ids, where)[0, 1:])


@pytest.mark.run
def test_an_architecture_without_a_token_classifier_is_refused_with_the_way_out():
    import transformers

    config = transformers.AutoConfig.for_model(
        "cohere", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    backend = Backend(transformers.AutoModelForCausalLM.from_config(config))
    with pytest.raises(ConfigError, match="critic_shared: true"):
        backend.start_critic(False, OPTIMIZER, 1)
    backend.start_critic(True, OPTIMIZER, 1)
    assert backend.critic.trained.model.in_features == 16


def test_an_algorithm_with_a_critic_does_not_train_without_one():
    parts = parts_of("ppo")
    with pytest.raises(RunError, match="start_critic"):
        update(backend_of(), parts, groups_of(), settings_of(parts))
