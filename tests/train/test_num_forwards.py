"""The number of forwards of an update: those that a term or a metric of the recipe reads, and no other."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from tests.train.batches import OPTIMIZER, frozen, groups_of, parts_of, policy, settings_of, stale
from verizero.pipeline.train import step
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.step import update

TOKENS = 40
DECOUPLED = {"mismatch_stale": "decoupled", "mismatch_level": "token"}


class Counting(Backend):
    """A backend that counts its forwards by the model and by whether a gradient is wanted."""

    forwards: Counter[str]

    def logprobs(self, *args, **named):
        which = args[3] if len(args) > 3 else named.get("which", "policy")
        self.forwards[f"{which}, {'training' if torch.is_grad_enabled() else 'before'}"] += 1
        return super().logprobs(*args, **named)


def begun(parts):
    backend = Counting(policy())
    backend.forwards = Counter()
    backend.start(OPTIMIZER, 10)
    backend.reference = frozen(policy(100))
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
        critic = backend.critic
        plain = critic.values

        def values(*args):
            backend.forwards[f"critic, {'training' if torch.is_grad_enabled() else 'before'}"] += 1
            out = plain(*args)
            return out

        critic.values = values
    return backend


def counted(name, version=3, **params):
    """Forwards per micro-batch of the whole batch, and the number of those."""
    parts = parts_of(name, **params)
    backend, groups = begun(parts), groups_of(4, 4, lost=False, version=version)
    update(backend, parts, groups, settings_of(parts, TOKENS))
    batch = step.prepare(begun(parts), parts, groups, settings_of(parts, TOKENS)).batch
    num = len(step.micros_of(batch, list(range(16)), TOKENS))
    return {which: times / num for which, times in backend.forwards.items()}, num


@pytest.mark.parametrize(
    ("name", "params", "wanted"),
    [
        ("grpo", {"kl_coef": 0.0}, {"policy, training": 1}),
        ("grpo", {"kl_coef": 0.05}, {"policy, training": 1, "reference, before": 1}),
        ("dapo", {"num_minibatches": 1}, {"policy, training": 1}),
        # Of stale rows too: with one update the first forward is the policy before it.
        ("grpo", {"version": 2, "kl_coef": 0.0} | DECOUPLED, {"policy, training": 1}),
        # The first update computes what later ones compare to.
        ("grpo", {"kl_coef": 0.0, "num_epochs": 2}, {"policy, training": 2}),
        (
            "ppo",
            {"num_epochs": 2, "num_minibatches": 1, "kl_coef": 0.0},
            {"policy, training": 2, "critic, before": 1, "critic, training": 2},
        ),
        (
            "ppo",
            {"num_epochs": 1, "num_minibatches": 1, "kl_coef": 0.0},
            {"policy, training": 1, "critic, before": 1, "critic, training": 1},
        ),
        # KL in the reward is of the batch before any update.
        (
            "ppo",
            {"num_epochs": 1, "num_minibatches": 1, "kl_coef": 0.1},
            {"policy, training": 1, "policy, before": 1, "reference, before": 1}
            | {"critic, before": 1, "critic, training": 1},
        ),
    ],
)  # fmt: skip
def test_each_forward_is_read(name, params, wanted):
    found, num = counted(name, **params)
    assert found == wanted
    params.pop("version", None)
    assert ("policy, before" in found) == parts_of(name, **params).has_old_forward
    assert num > 2


def test_the_first_update_keeps_what_a_pass_before_it_computes(monkeypatch):
    """Two epochs, with rows of an older policy: the same metrics and weights, bit for bit."""
    parts = parts_of("grpo", kl_coef=0.05, num_epochs=2)
    plain, ends = step.BatchStart.of, []

    def whole(backend, parts, batch, settings):
        start = plain(backend, parts, batch, settings)
        assert start.first_step is not None
        old, _ = step._logprobs_of(backend, batch, "policy", settings)
        return replace(start, old_logprobs=old, first_step=None)

    for early in (False, True):
        if early:
            monkeypatch.setattr(step.BatchStart, "of", whole)
        backend = begun(parts)
        metrics = update(backend, parts, stale(groups_of(), 2, 1, 2), settings_of(parts, TOKENS))
        assert metrics["updates"] == 2
        ends.append((metrics, {k: v.clone() for k, v in backend.model.state_dict().items()}))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(ends[0][1][k], ends[1][1][k]) for k in ends[0][1])
