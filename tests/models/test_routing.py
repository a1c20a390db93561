"""Routers of mixtures of experts: recorded, replayed, and proved to be of the kind that can be."""

import pytest
import torch

from tests.models.families import VOCAB, tiny
from tests.train.sampled import MODELS, model_of
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.routing import num_experts, recording, replaying, routers, unreplayable

EXPERTS = [name for name in MODELS if "moe" in name or name == "mixtral"]
IDS = torch.randint(2, VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))


def others(model):
    """[2, 7, layers, top_k] int16: experts at random, without repetition."""
    found = routers(model)
    generator = torch.Generator().manual_seed(2)
    draws = torch.rand(2, 7, len(found), found[0].num_experts, generator=generator)
    return draws.topk(found[0].top_k, -1).indices.to(torch.int16)


def logits_of(model):
    out = model(input_ids=IDS, use_cache=False).logits
    return out


@pytest.mark.parametrize("name", EXPERTS)
def test_a_blocks_answer_is_the_sum_over_the_experts_that_were_asked_for(name):
    """By loops: the softmax of the router's present logits over those experts, times what each of them says."""
    model = model_of(name, torch.float64)
    router = routers(model)[0]
    block = next(m for m in model.modules() if getattr(m, "gate", None) is router)
    seen = []
    handle = block.experts.register_forward_hook(lambda _m, x, out: seen.append((x[0].detach(), out.detach())))
    wanted = others(model)
    with torch.no_grad(), replaying(model, wanted):
        logits_of(model)
    handle.remove()
    (inputs, outputs), experts = seen[0], block.experts
    for token, x in enumerate(inputs):
        scores = torch.mv(router.weight, x)
        chosen = wanted[:, :, 0].reshape(-1, router.top_k)[token].tolist()
        shares = scores.softmax(0)[chosen]
        if getattr(router, "norm_topk_prob", True):
            shares = shares / shares.sum()
        total = torch.zeros_like(x)
        for share, e in zip(shares, chosen, strict=True):
            gate, up = torch.mv(experts.gate_up_proj[e], x).chunk(2)
            total = total + share * torch.mv(experts.down_proj[e], torch.nn.functional.silu(gate) * up)
        torch.testing.assert_close(outputs[token], total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EXPERTS)
def test_own_choices_replayed_change_nothing_and_others_do(name):
    model = model_of(name).train()
    assert unreplayable(model) is None
    assert model.training
    assert num_experts(model.config) == routers(model)[0].num_experts
    model.eval()
    with torch.no_grad():
        plain = logits_of(model)
        with recording(model) as choices:
            logits_of(model)
            own = choices.take(2)
        with replaying(model, own) as tally:
            torch.testing.assert_close(logits_of(model), plain)
        assert (tally.changed, tally.total) == (0, 14 * len(routers(model)))
        with replaying(model, others(model)) as tally:
            assert (logits_of(model) - plain).abs().max() > 0.05
        assert 0 < tally.changed <= tally.total
        assert torch.equal(logits_of(model), plain)  # no hook is left behind


def test_a_token_without_a_record_is_routed_by_the_router():
    model = model_of("qwen3_moe")
    wanted = others(model)
    wanted[:, 4:] = -1
    with torch.no_grad():
        with recording(model) as choices:
            logits_of(model)
            own = choices.take(2)
        with replaying(model, wanted) as tally, recording(model) as choices:
            logits_of(model)
            used = choices.take(2)
    assert tally.total == 2 * 4 * 2
    assert torch.equal(used[:, :4], wanted[:, :4])
    assert torch.equal(used[:, 4:, 0], own[:, 4:, 0])


def test_the_gradient_reaches_the_router_and_the_asked_experts_only():
    model = model_of("qwen3_moe")
    wanted = torch.tensor([2, 5], dtype=torch.int16).expand(2, 7, 2, 2)
    with replaying(model, wanted):
        logits_of(model).square().sum().backward()
    for layer in model.model.layers:
        assert layer.mlp.gate.weight.grad.abs().max() > 0
        touched = layer.mlp.experts.down_proj.grad.abs().amax((1, 2)) > 0
        assert touched.nonzero()[:, 0].tolist() == [2, 5]


def test_what_is_not_of_the_known_kind_is_told_why():
    assert "no router that is known" in str(unreplayable(tiny("qwen2 tied")))
    weighs = model_of("qwen3_moe")
    for router in routers(weighs):
        router.register_forward_hook(lambda _m, _x, out: (out[0], out[1] * 0.9, out[2]))
    assert "weigh experts in another way" in str(unreplayable(weighs))
    shaped = model_of("qwen3_moe")
    for router in routers(shaped):
        router.register_forward_hook(lambda _m, _x, out: out[:2])
    assert "not of the known kind" in str(unreplayable(shaped))


def test_a_record_of_another_architecture_is_refused():
    model = model_of("qwen3_moe")
    with (
        pytest.raises(ConfigError, match=r"of 5 layers with 2 experts a token, the policy has 2 routers with \[2\]"),
        replaying(model, torch.zeros(2, 7, 5, 2, dtype=torch.int16)),
    ):
        logits_of(model)
    with (
        pytest.raises(ConfigError, match="of 6 tokens, the forward has 14"),
        replaying(model, torch.zeros(2, 3, 2, 2, dtype=torch.int16)),
    ):
        logits_of(model)
