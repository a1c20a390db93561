"""The divergences of distillation: against slow doubles and at the edges."""

import math

import pytest
import torch

from tests.oracles import distillation as slow
from verizero.pipeline.rl.distillation import (
    ServedLogprobs,
    compare,
    distribution,
    divergence,
    stale_weights,
)
from verizero.pipeline.rl.divergences import Objective, explain
from verizero.pipeline.rl.reduce import aggregate

WORDS = 7
NAMES = ("reverse_kl", "forward_kl")
OBJECTIVES = [
    *(Objective(name, temperature=t) for name in NAMES for t in (1.0, 0.7)),
    *(Objective(name, "top_k", k, 0.7) for name in NAMES for k in (1, 3)),
    Objective(over="sampled", temperature=0.7),
]
NEAR = {"rtol": 1e-9, "atol": 1e-12}


def logits_of(num, seed, words=WORDS):
    return 2 * torch.randn(num, words, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def asked(logits, teacher, objective, seed=0):
    """What was compared at sampled tokens, the tokens, and the gradient of the sum of divergences."""
    own = logits.detach().clone().requires_grad_(True)
    targets = torch.randint(WORDS, (len(logits),), generator=torch.Generator().manual_seed(seed))
    found = compare(own, targets, teacher, objective)
    (gradient,) = torch.autograd.grad(found.divergence.sum(), own)
    return found, targets, gradient


@pytest.mark.parametrize("objective", [o for o in OBJECTIVES if o.over != "sampled"], ids=str)
def test_values_and_gradients_are_those_of_the_formulas(objective):
    logits, teacher = logits_of(5, 1), logits_of(5, 2)
    found, _, gradient = asked(logits, teacher, objective)
    top_k = objective.top_k if objective.over == "top_k" else None
    how = {"temperature": objective.temperature, "top_k": top_k}
    for row in range(5):
        own, theirs = logits[row].tolist(), teacher[row].tolist()
        wanted = slow.token_loss(own, theirs, objective.divergence, **how)
        assert float(found.divergence[row].detach()) == pytest.approx(wanted, rel=1e-12)
        assert float(found.reverse_kl[row]) == pytest.approx(slow.token_loss(own, theirs, "reverse_kl", **how))
        steep = slow.slopes(lambda x, t=theirs: slow.token_loss(x, t, objective.divergence, **how), own)
        assert gradient[row].tolist() == pytest.approx(steep, abs=1e-8)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_a_teacher_that_is_the_policy_teaches_nothing(objective):
    logits = logits_of(9, 5)
    found, _, gradient = asked(logits, logits, objective)
    assert float(found.divergence.detach().abs().max()) < 1e-14
    assert float(gradient.abs().max()) < 1e-14


@pytest.mark.parametrize("name", NAMES)
def test_top_k_of_all_tokens_is_the_vocabulary_and_fewer_are_never_more(name):
    logits, teacher = logits_of(9, 6), logits_of(9, 7)
    whole, _, gradient = asked(logits, teacher, Objective(name))
    before = torch.zeros(9, dtype=torch.float64)
    for k in range(1, WORDS + 1):
        some, _, slope = asked(logits, teacher, Objective(name, "top_k", k))
        assert bool((some.divergence >= before - 1e-14).all()), "a finer partition tells more"
        before = some.divergence.detach()
    torch.testing.assert_close(before, whole.divergence.detach(), **NEAR)
    torch.testing.assert_close(slope, gradient, **NEAR)
    assert float(some.outside.max()) == 0.0


def test_a_small_rest_keeps_its_digits():
    logits = torch.tensor([[30.0, 0.0, -1.0], [30.0, 0.0, -1.0]])
    teacher = torch.tensor([[30.0, 3.0, -1.0], [30.0, 0.0, -1.0]])
    found = compare(logits, torch.tensor([0, 0]), teacher, Objective("forward_kl", "top_k", top_k=1))
    exact = compare(logits.double(), torch.tensor([0, 0]), teacher.double(), Objective("forward_kl", "top_k", top_k=1))
    torch.testing.assert_close(found.outside.double(), exact.outside, rtol=1e-5, atol=0.0)
    assert float(exact.divergence[0]) > 0.0
    assert float(found.divergence[1]) == 0.0


@pytest.mark.parametrize("objective", [*(Objective(n, "top_k", 3) for n in NAMES), Objective(over="sampled")], ids=str)
def test_what_a_server_tells_is_what_its_logits_say(objective):
    logits, teacher = logits_of(6, 8), logits_of(6, 9)
    held, targets, wanted = asked(logits, teacher, objective)
    log_q = distribution(teacher, objective.temperature)
    ids = targets[:, None] if objective.over == "sampled" else log_q.topk(3, dim=1).indices
    told, _, gradient = asked(logits, ServedLogprobs(ids, log_q.gather(1, ids)), objective)
    for mine, theirs in zip(told, held, strict=True):
        torch.testing.assert_close(mine, theirs, **NEAR)
    torch.testing.assert_close(gradient, wanted, **NEAR)


def test_a_server_whose_numbers_add_up_to_more_than_one_has_a_small_rest():
    told = ServedLogprobs(torch.tensor([[0, 1]]), torch.tensor([[0.7, 0.300001]]).log())
    found, _, gradient = asked(logits_of(1, 1), told, Objective(over="top_k", top_k=2))
    assert bool(found.divergence.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert float(found.divergence.detach()) > 0


def test_a_vocabulary_padded_to_two_sizes_is_cut_to_the_smaller():
    logits, teacher = logits_of(4, 1), logits_of(4, 2, WORDS + 3)
    found, _, gradient = asked(logits, teacher, Objective())
    same, _, wanted = asked(logits, teacher[:, :WORDS], Objective())
    torch.testing.assert_close(found.divergence, same.divergence, **NEAR)
    torch.testing.assert_close(gradient, wanted, **NEAR)
    wide, _, slope = asked(logits_of(4, 2, WORDS + 3), logits, Objective())
    assert bool((slope[:, WORDS:] == 0).all())
    assert bool(wide.divergence.isfinite().all())


@pytest.mark.parametrize("sampler", ["policy", "older policy"])
def test_over_all_words_that_may_be_sampled_a_token_has_the_gradient_of_its_divergence(sampler):
    """With weights where an older policy sampled it."""
    logits, teacher = logits_of(1, 11, 3), logits_of(1, 12, 3)
    drawn_from = logits + 0.5 * logits_of(1, 5, 3) if sampler == "older policy" else logits
    how = Objective(over="sampled", stale_weights="token", stale_cap=math.inf)
    total, mask = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    for word, chance in enumerate(drawn_from.softmax(1)[0]):
        own = logits.clone().requires_grad_(True)
        found = compare(own, torch.tensor([word]), teacher, how)
        weights = stale_weights(found.logprobs[None], chance.log().view(1, 1), torch.tensor([True]), mask, how)
        loss = aggregate(
            "token_mean", found.divergence[None] * weights.values, mask, tokens=1.0, sequences=0.0, norm_length=None
        )
        total += chance * torch.autograd.grad(loss, own)[0]
    theirs = slow.softmax(teacher[0].tolist())
    steep = slow.slopes(lambda x: slow.kl(slow.softmax(x), theirs), logits[0].tolist())
    assert total[0].tolist() == pytest.approx(steep, abs=1e-8)


def test_the_page_says_what_is_minimised():
    page = explain(Objective("forward_kl", "top_k", 20))
    for words in ("forward_kl over top_k", "sum_v q(v)", "20 most likely"):
        assert words in page
    own = explain(Objective(over="sampled", stale_weights="token", stale_cap=3.0), 0.5)
    for words in ("besides 0.5 J", "sum_t w_t D_t", "min(pi(y_t) / pi_gen(y_t), 3)"):
        assert words in own
    assert divergence("reverse_kl", torch.zeros(1, 1), torch.zeros(1, 1)).item() == 0


def test_weights_are_1_in_fresh_rows_and_those_above_the_cap_are_told():
    logprobs = torch.tensor([[-1.0, -1.0, float("nan")], [-1.0, -1.0, -3.0]], dtype=torch.float64)
    sampled = torch.tensor([[-2.0, -1.5, 0.0], [-2.0, -1.0, -1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    how = Objective(over="sampled", stale_weights="token", stale_cap=2.0)
    found = stale_weights(logprobs, sampled, torch.tensor([True, False]), mask, how)
    assert found.values[0].tolist() == pytest.approx([2.0, math.exp(0.5), 1.0])
    assert found.values[1].tolist() == [1.0, 1.0, 1.0]
    assert found.clamped.tolist() == [[True, False, False], [False, False, False]]
