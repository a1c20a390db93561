"""Groups of random responses, and tiny policies in float64 to train on them."""

import dataclasses
import math
import random

import torch

from tests.models.families import VOCAB, build
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.models.scalar_head import score_of
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.preference import PreferenceRow
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.step import Settings
from verizero.pipeline.train.torch_trained import TorchTrained
from verizero.pipeline.train.trained import REFERENCE
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

MAX_RESPONSE = 9
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, max_grad_norm=0.5)


def policy(seed=0, dtype=torch.float64, layers=1):
    """A tiny decoder; by default of one layer, which is all that most of what an update does can tell apart."""
    sizes = {"num_key_value_heads": 1, "num_attention_heads": 2, "hidden_size": 16, "num_hidden_layers": layers}
    return build("qwen2", sizes, seed, dtype)


def two_layers(seed=0, dtype=torch.float32):
    """The decoder with two layers, for what treats each layer by itself: divides, names or exchanges its weights."""
    return policy(seed, dtype, layers=2)


def member(rng, group, sample, reward, version=3):
    """A response of 1 to 9 tokens to a prompt of a length of its group's own."""
    prompt = tuple(random.Random(group).choices(range(2, VOCAB), k=1 + group % 4))
    response = tuple(rng.choices(range(2, VOCAB), k=rng.randint(1, MAX_RESPONSE)))
    logprobs = tuple(-rng.uniform(0.5, 4.0) for _ in response)
    finish = "length" if len(response) == MAX_RESPONSE else "stop"
    rollout = Rollout(f"p{group}", sample, prompt, response, logprobs, "", finish, version)
    if reward is None:
        return ScoredRollout(rollout, Verdict("sandbox_error"), None)
    return ScoredRollout(rollout, Verdict("graded", min(1.0, max(0.0, reward))), reward)


def groups_of(num=4, size=4, seed=0, *, lost=True, version=3):
    """`num` groups of rewards that differ; with `lost` one member of the second has no reward."""
    rng = random.Random(seed)
    out = []
    for g in range(num):
        rewards = [rng.choice([0.0, 0.25, 1.0]) for _ in range(size)]
        rewards[0], rewards[1] = 1.0, 0.0
        if lost and g == 1:
            rewards[-1] = None
        members = tuple(member(rng, g, i, r, version) for i, r in enumerate(rewards))
        out.append(Group(Prompt(f"p{g}", "?", "exact", "x"), members, greedy_reward=float(g % 2)))
    return out


def longer(groups, tokens=20):
    """The groups with prompts of so many tokens more, so that most tokens are those of prompts."""

    def asked(rollout):
        first = tuple(random.Random(rollout.prompt_id).choices(range(2, VOCAB), k=tokens))
        return dataclasses.replace(rollout, prompt_ids=first + rollout.prompt_ids)

    return with_rollouts(groups, asked)


def with_rollouts(groups, change):
    """The groups with every rollout changed."""

    def changed(m):
        return dataclasses.replace(m, rollout=change(m.rollout))

    return [dataclasses.replace(g, members=tuple(map(changed, g.members))) for g in groups]


def pairs_of(groups):
    """The first two responses of each group as a pair."""
    rollouts = ([m.rollout for m in group.members[:2]] for group in groups)
    return [PreferenceRow(*map(tuple, (a.prompt_ids, a.response_ids, b.response_ids))) for a, b in rollouts]


def watched(own, act):
    """What `act` returns, and the gradient of each optimiser step of the backend or reward model."""
    gradients = list[torch.Tensor]()

    def watch(trained):
        plain = trained.step

        def step():
            parameters = [p for group in trained.optimizer.param_groups for p in group["params"]]
            gradients.append(torch.cat([p.grad.flatten().double().clone() for p in parameters if p.grad is not None]))
            return plain()

        trained.step = step

    for trained in trained_of(own):
        watch(trained)
    return act(), gradients


def trained_of(own):
    if not isinstance(own, Backend):
        return [own.trained]
    return [own.policy, *([own.critic.trained] if own.critic is not None else [])]


def frozen(model):
    """The model as a reference."""
    return TorchTrained(model.requires_grad_(False), REFERENCE, ALONE)


def head_of(critic):
    """The head of a critic, on a backbone of its own or of the policy."""
    return critic.trained.model if critic.is_shared else score_of(critic.trained.model)


def stale(groups, group, sample, version):
    """The groups with one response sampled by another version."""
    members = list(groups[group].members)
    rollout = dataclasses.replace(members[sample].rollout, policy_version=version)
    members[sample] = dataclasses.replace(members[sample], rollout=rollout)
    return [dataclasses.replace(g, members=tuple(members)) if i == group else g for i, g in enumerate(groups)]


def parts_of(name, **params):
    """The parts of the algorithm, for responses of MAX_RESPONSE."""
    return load_algorithm(name, params)[1].resolve(MAX_RESPONSE)


def settings_of(parts, micro_batch_tokens=40, **changes):
    """Settings of an update of policy version 3."""
    plain = {
        "pad_id": 0,
        "temperature": 0.8,
        "micro_batch_tokens": micro_batch_tokens,
        "policy_version": 3,
        "max_response_tokens": MAX_RESPONSE,
        "seed": 5,
        "step": 2,
    }
    return Settings(**{**plain, **changes})


def backend_of(seed=0, optimizer=OPTIMIZER, dtype=torch.float64):
    """A backend whose reference is another policy than the one that trains.

    Rows are padded: in a tree the norms of this policy, which are in float32, round otherwise.
    """
    backend = Backend(policy(seed, dtype), config=TrainConfig(packing="off"))
    backend.start(optimizer, 10)
    backend.reference = frozen(policy(seed + 100, dtype))
    return backend


def weights(backend):
    """A copy of the policy's weights."""
    return {k: v.detach().clone() for k, v in backend.model.state_dict().items()}


def gradient_of(backend):
    """The policy's gradient in one vector."""
    return torch.cat([p.grad.flatten() for p in backend.model.parameters() if p.grad is not None])


def distance(a, b):
    """Greatest difference between two sets of weights."""
    return max(float((a[k] - b[k]).abs().max()) for k in b)


def without_tree(metrics):
    """All metrics but those by which padded rows differ from a tree."""
    return {name: value for name, value in metrics.items() if not name.startswith("tree/")}


def finite(metrics):
    """All metrics are numbers."""
    return all(math.isfinite(v) for v in metrics.values())
