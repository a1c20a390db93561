"""Every objective, in tables: however rows are cut, packed and computed once, it is that of each row alone, padded;
what does not train is inert, and what is not finite is refused.
"""

import math
import re
from array import array
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from tests.models.families import tiny, with_exact_norms
from tests.oracles.varlen import varlen_attn
from tests.train import sampled, test_episodes, test_preference, test_reward_model, test_texts
from tests.train.batches import (
    OPTIMIZER,
    finite,
    groups_of,
    longer,
    parts_of,
    policy,
    settings_of,
    stale,
    trained_of,
    watched,
    without_tree,
)
from tests.train.episodes import episodes_of, forked
from tests.train.test_distillation import OBJECTIVES, rows_of, settings, term_of
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.models import runs, varlen
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.runs import packed_width
from verizero.pipeline.preferences.base import load_preference
from verizero.pipeline.registry import names
from verizero.pipeline.train import step, trees
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import collate
from verizero.pipeline.train.critic import Critic
from verizero.pipeline.train.distillation import ModelTeacher, distill_update
from verizero.pipeline.train.preference import preference_update
from verizero.pipeline.train.step import update
from verizero.pipeline.train.texts import Row, text_gradient

ALONE = ("off", 1)
LAYOUTS = [("off", 40), ("off", 10_000), ("on", 60), ("auto", 10_000)]
CUT_TREE = ("auto", 60)


def rl(algorithm, groups=forked, **params):
    """An update; "lora" trains adapters, and "term" gives a term of distillation."""

    def solved(packing, tokens):
        own = {k: v for k, v in params.items() if k not in ("lora", "term")}
        parts, model = parts_of(algorithm, **own), with_exact_norms(policy())
        adapted = Adapted(model, 2, 4.0, (), 7) if params.get("lora") else None
        backend = Backend(model, TrainConfig(packing=packing, micro_batch_tokens=tokens), adapted=adapted)
        backend.start(OPTIMIZER, 10)
        backend.refresh_reference()
        if parts.critic is not None:
            backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
        term = params["term"](groups(), tokens) if "term" in params else None
        how = settings_of(parts, tokens, step=60, distillation=term)
        return watched(backend, lambda: update(backend, parts, groups(), how))

    return solved


def experts():
    return with_exact_norms(sampled.model_of("qwen3_moe", torch.float64))


@cache
def recorded():
    """Responses with kept sets and routes; a prompt's first token has other experts in one row."""
    how = sampled.Sampling(sampled.MAX, 0.8, 0.8, 6, max_kept=9, keep_routing=True)
    first, *others = sampled.groups_of(experts(), how)
    return [rerouted(first), *others]


def rerouted(group):
    first, *others = group.members
    routing = first.rollout.routing
    chosen = array("h", routing.experts)
    for i in range(routing.layers * routing.top_k):
        chosen[i] = (chosen[i] + 1) % 6
    rollout = replace(first.rollout, routing=replace(routing, experts=chosen.tobytes()))
    return replace(group, members=(replace(first, rollout=rollout), *others))


def of_experts(packing, tokens):
    backend, parts = Backend(experts(), TrainConfig(packing=packing)), parts_of("deepseek_v32", num_minibatches=2)
    backend.start(OPTIMIZER, 10)
    backend.refresh_reference()
    return watched(backend, lambda: update(backend, parts, recorded(), settings_of(parts, tokens)))


def pairs(name, params):
    def solved(packing, tokens):
        backend = test_preference.backend_of(packing=packing)
        rows = test_preference.rows_of(labels=test_preference.is_of_labels(name))
        batch = test_preference.batch_of(test_preference.with_shared_prompts(rows))
        loss, at = load_preference(name, params), test_preference.settings(tokens)
        return watched(backend, lambda: preference_update(backend, *loss, batch, at))

    return solved


def distil(objective):
    def solved(packing, tokens):
        backend = Backend(with_exact_norms(policy()), TrainConfig(packing=packing))
        backend.start(OPTIMIZER, 10)
        teachers = {name: ModelTeacher(with_exact_norms(policy(seed))) for name, seed in (("a", 50), ("b", 60))}
        return watched(backend, lambda: distill_update(backend, teachers, rows_of(), objective, settings(tokens)))

    return solved


def texts(packing, tokens):
    """Some begin alike, so that they are a tree."""
    backend, rows = Backend(with_exact_norms(policy()), TrainConfig(packing=packing)), test_texts.texts(count=12)
    backend.start(OPTIMIZER, 10)
    prompt = max((row.ids for row in rows), key=len)[:12]
    rows += [Row((*prompt, *row.ids), row.spans) for row in rows[:6]]
    return watched(backend, lambda: text_gradient(backend, rows, 1.0, 0, tokens) | backend.step())


def reward_model(batch):
    def solved(packing, tokens):
        backend = Backend(
            tiny("qwen2 tied", dtype=torch.float64), TrainConfig(packing=packing, micro_batch_tokens=tokens)
        )
        model = backend.reward_model(OPTIMIZER, 10)
        with_exact_norms(model.model)  # a copy of the policy's blocks
        torch.manual_seed(1)
        torch.nn.init.normal_(model.model.score.weight)
        return watched(model, lambda: model.update(batch))

    return solved


EPOCHS = {"num_epochs": 2, "num_minibatches": 2}
OLD = {"mismatch_stale": "decoupled", "num_minibatches": 2}


def some_stale():
    return stale(stale(longer(groups_of(4)), 2, 1, version=2), 0, 0, version=1)


FEW = {
    "single responses": rl("grpo", some_stale, kl_coef=0.05, mismatch_level="token", **EPOCHS),
    "short prompts": rl("gspo", lambda: groups_of(4), num_minibatches=2),
    "LoRA": rl("grpo", lambda: longer(groups_of(3)), kl_coef=0.05, lora=True),
    "critic": rl("ppo", lambda: longer(groups_of(3)), **EPOCHS),
    "records": of_experts,
    "a term": rl("grpo", lambda: longer(groups_of(3)), kl_coef=0.1, term=term_of, **EPOCHS),
    "shared critic": rl("ppo", critic_shared=True, kl_coef=0.1),
    "episodes": rl("grpo", lambda: episodes_of(3, 4), num_minibatches=2),
    "pairs": pairs("dpo", {}),
    "texts": texts,
    "distillation": distil(OBJECTIVES[0]),
    "a reward model of pairs": reward_model(test_reward_model.pairs()),
}
MANY = {
    **{name: rl(name) for name in names("algorithms") if name not in ("custom", "pass_at_k", "flash_reinforce")},
    "pass_at_k": rl("pass_at_k", k=2),
    "flash_reinforce": rl("flash_reinforce", mismatch_reject={"mean_binary_kl": 9.0}),
    **{
        f"{name} of episodes": rl(algorithm, partial(test_episodes.cut_groups, name), **params)
        for name, (algorithm, params) in test_episodes.CUTS.items()
    },
    "decoupled": rl("grpo", some_stale, mismatch_level="token", **OLD),
    "rejected": rl("grpo", some_stale, mismatch_stale="bypass", mismatch_reject={"mean_k1": 0.5}),
    **{
        f"pairs, {name} {params or ''}": pairs(name, params) for name, params in test_preference.LOSSES if name != "dpo"
    },
    **{f"distillation, {objective}": distil(objective) for objective in OBJECTIVES[1:]},
    "a reward model of answers": reward_model(test_reward_model.answers()),
    "a reward model of steps": reward_model(test_reward_model.steps()),
}


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """Runs are shared however short they are."""
    monkeypatch.setattr(trees, "MIN_SAVED_TOKENS", 1)


@cache
def alone(name):
    return {**FEW, **MANY}[name](*ALONE)


def spoil(patch):
    """Log-probs, entropies and values are no number where no objective of RL trains."""

    def spoiled(values, where):
        return None if values is None else torch.where(where, values, torch.full_like(values, math.nan))

    def logprobs(self, ids, where, *more, plain=Backend.logprobs, **named):
        own, entropy = plain(self, ids, where, *more, **named)
        return spoiled(own, where), spoiled(entropy, where)

    def values(self, ids, where, *more, plain=Critic.values):
        return spoiled(plain(self, ids, where, *more), where)

    def collated(*arguments):
        batch = collate(*arguments)
        return replace(batch, rollout_logprobs=spoiled(batch.rollout_logprobs, batch.response_mask > 0))

    patch.setattr(Backend, "logprobs", logprobs)
    patch.setattr(Critic, "values", values)
    patch.setattr(step, "collate", collated)


def check(name, layout):
    wanted, others = alone(name)
    with pytest.MonkeyPatch.context() as patch:
        if not re.match("pairs|texts|distil|a reward", name):
            spoil(patch)
        metrics, gradients = {**FEW, **MANY}[name](*layout)
    assert finite(metrics)
    # In float32 are the values of a critic of its own, the weights of experts, and lengths of responses with steps.
    near = 1e-6 if name in ("critic", "ppo", "vapo", "records") else 1e-12
    of_metrics = 1e-6 if near == 1e-6 or "steps" in name else 1e-8
    assert without_tree(metrics) == pytest.approx(without_tree(wanted), rel=of_metrics, abs=of_metrics)
    assert len(gradients) == len(others) > 0
    for found, other in zip(gradients, others, strict=True):
        assert float((found - other).abs().max()) <= near * float(other.abs().max())


@pytest.mark.run
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", FEW)
def test_each_layout_is_each_row_alone(name, layout):
    check(name, layout)


@pytest.mark.run
@pytest.mark.parametrize("name", FEW)
def test_in_the_widths_of_a_gpu_it_is_each_row_alone(name, monkeypatch):
    """Packed, by the slow double of torch's kernel, and padded."""
    monkeypatch.setattr(varlen, "kernel_for", lambda *_: varlen_attn)
    monkeypatch.setattr(runs, "packed_width", lambda n, most, device: packed_width(n, most, "cuda"))
    monkeypatch.setattr(runs, "forward_width", lambda n, device: -(-n // 8) * 8)
    check(name, ("on", 60))
    check(name, ("off", 40))


@pytest.mark.run
@pytest.mark.parametrize("name", MANY)
def test_each_objective_is_that_of_each_row_alone(name):
    check(name, CUT_TREE)


@pytest.mark.run
@pytest.mark.parametrize(
    ("name", "where"),
    [
        *((name, where) for name in FEW for where in ("loss", "gradient")),
        *((name, "critic") for name in FEW if "critic" in name),
    ],
)
def test_what_is_not_finite_is_refused_and_changes_nothing(name, where, monkeypatch):
    def refused(own, act):
        every = trained_of(own)
        weights = [p for trained in every for p in trained.model.parameters()]
        before = [p.detach().clone() for p in weights]
        if where == "loss":
            every[0].model.base_model.norm.register_forward_hook(lambda _, __, out: out * math.nan)
        else:
            moved = next(p for p in every[where == "critic"].model.parameters() if p.requires_grad)
            moved.register_hook(lambda g: g * math.inf)
        said = {"loss": "loss|divergence", "gradient": "gradient norm", "critic": "critic"}[where]
        with pytest.raises(NonFiniteError, match=rf"({said}).*refused"):
            act()
        assert all(torch.equal(p, old) for p, old in zip(weights, before, strict=True))
        # Of texts, the stage drops the gradient: `next_token_update`.
        assert all(p.grad is None for p in weights) or (name, where) == ("texts", "loss")
        return {}, []

    monkeypatch.setattr(f"{__name__}.watched", refused)
    {**FEW, **MANY}[name](*ALONE)
