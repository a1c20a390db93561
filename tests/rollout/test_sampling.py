"""Drawing tokens: the distribution, its cuts and its log-probs against slow doubles."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.sampling import cut_off, pick, pick_kept, uniforms

LAST = 1 - 2.0**-53
"""The greatest uniform that torch draws."""


def softmax(logits: list[float], temperature: float) -> list[float]:
    top = max(logits)
    weights = [math.exp((x - top) / temperature) for x in logits]
    return [w / sum(weights) for w in weights]


def kept(logits: list[float], temperature: float, top_k: int, top_p: float) -> set[int]:
    """By the definition: the k most likely, then the fewest of those that reach p of their probability."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if top_k:
        order = order[:top_k]
    p = softmax([logits[i] for i in order], temperature)
    out: set[int] = set()
    reached = 0.0
    for i, share in zip(order, p, strict=True):
        if top_p < 1 and reached >= top_p:
            break
        out.add(i)
        reached += share
    return out


def draw(logits: list[float], numbers: list[float], sampling: Sampling) -> tuple[list[int], list[float]]:
    rows = torch.tensor([logits]).expand(len(numbers), -1)
    tokens, logprobs = pick(rows, torch.tensor(numbers, dtype=torch.float64), sampling)
    return tokens.tolist(), logprobs.tolist()


# distinct by more than float32 rounding, so that the slow double orders them alike
LOGITS = st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True).map(lambda xs: [x / 10 for x in xs])


@pytest.mark.run
@settings(max_examples=60)
@given(
    LOGITS,
    st.sampled_from([0.3, 1.0, 1.7]),
    st.integers(0, 6),
    st.sampled_from([0.05, 0.37, 0.93, 1.0]),
    st.integers(1, 9),
)
@example(logits=[0.0, 5.2, -5.9], temperature=0.3, top_k=0, top_p=1.0, most=3)
def test_draws_logprobs_and_kept_sets_are_those_of_the_definition(logits, temperature, top_k, top_p, most):
    defined, numbers = kept(logits, temperature, top_k, top_p), [i / 100 for i in range(100)] + [LAST]
    rows, drawn = torch.tensor([logits]).expand(len(numbers), -1), torch.tensor(numbers, dtype=torch.float64)
    wanted = sorted(sorted(defined, key=lambda i: -logits[i])[:most])
    *of_kept, told = pick_kept(rows, drawn, Sampling(1, temperature, top_p, top_k, max_kept=most))
    assert told.ids.tolist() == [wanted + [-1] * (min(most, len(logits)) - len(wanted))] * len(numbers)
    assert told.sizes.tolist() == [len(wanted) % len(logits)] * len(numbers)
    assert told.bounded.tolist() == [len(defined) > most] * len(numbers)
    plain = pick(rows, drawn, Sampling(1, temperature, top_p, top_k))
    for allowed, (tokens, logprobs) in ((wanted, of_kept), (sorted(defined), plain)):
        p = softmax([logits[i] for i in allowed], temperature)
        for number, token, logprob in zip(numbers, tokens.tolist(), logprobs.tolist(), strict=True):
            at = allowed.index(token)
            assert logprob == pytest.approx(math.log(p[at]), abs=1e-4)
            # inversion: token i is drawn exactly on [P(< i), P(<= i))
            assert sum(p[:at]) - 1e-5 <= number <= sum(p[: at + 1]) + 1e-5


@pytest.mark.parametrize("number", [0.0, 1e-300, 0.5, LAST])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_token_of_probability_zero_is_never_drawn(number, temperature):
    """First, last and middle ones, at the ends of the unit interval; also where a probability underflows to 0."""
    nothing = -math.inf
    cases = [
        [nothing, 1.0, 2.0, nothing],
        [1.0, nothing, nothing, 2.0],
        [nothing, nothing, 0.0, nothing],
        [-2e4, 3.0, -2e4],
        [0.0, -2e4, -2e4],
    ]
    for logits in cases:
        (token,), (logprob,) = draw(logits, [number], Sampling(1, temperature))
        assert logits[token] > -1e4
        assert math.isfinite(logprob)


def test_the_tail_of_a_sharp_distribution_keeps_its_tokens_apart():
    """A thousand tokens of about 1e-9 each behind one of nearly 1: a float32 cumulative sum would merge them."""
    tail = 1000
    logits = torch.full((1, tail + 1), -math.log(1e9))
    logits[0, 0] = 0.0
    share = tail / 1e9 / (1 + tail / 1e9)
    wanted = torch.arange(5, tail, 10)
    numbers = (1 - share) + share * (wanted.double() + 0.5) / tail
    tokens, _ = pick(logits.expand(len(wanted), -1), numbers, Sampling(1))
    assert (tokens - 1 - wanted).abs().max() <= 1


def test_greedy_takes_the_most_likely_whatever_the_number():
    logits = [0.3, 2.0, -1.0, 1.9]
    tokens, logprobs = draw(logits, [0.0, 0.5, LAST], Sampling(1, 0.0, 0.5, 2))
    assert tokens == [1, 1, 1]
    assert logprobs == pytest.approx([math.log(softmax(logits, 1.0)[1])] * 3, abs=1e-6)


def test_ties_with_the_kth_token_stay():
    """The place in the vocabulary must not decide which of two equal tokens is dropped."""
    out = cut_off(torch.tensor([[1.0, 2.0, 1.0, 0.0]]), 2, 1.0)
    assert (out[0] > -math.inf).tolist() == [True, True, True, False]


def test_a_stream_is_that_of_its_seed_whatever_its_length_and_whoever_draws_in_between():
    streams = {seed: uniforms(seed) for seed in (5, 2**63 - 1, 7)}
    taken = [[next(stream) for stream in streams.values()] for _ in range(300)]
    for seed, numbers in zip(streams, zip(*taken, strict=True), strict=True):
        once = torch.rand(300, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        assert list(numbers) == once.tolist()
    assert len(set(zip(*taken, strict=True))) == 3


def drawn_whole(logits: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw with numbers [R, N] from cumulative sums over the vocabulary of logits [R, V], all in float64.

    Also how near each number is to a sum, where another way to add up may draw the next token.
    """
    logprobs = logits.double().log_softmax(-1)
    cumulative = logprobs.exp().cumsum(-1)
    goal = numbers * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, goal, right=True)
    around = torch.stack([cumulative.gather(1, (tokens - before).clamp(min=0)) for before in (0, 1)])
    return tokens, logprobs.gather(1, tokens), (around - goal).abs().amin(0)


@pytest.mark.parametrize("vocab", [8192, 49_152, 151_936])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_draws_by_blocks_are_those_of_the_double(vocab, spread):
    """Flat and peaked distributions, vocabularies that blocks do and do not divide, and half of the tokens cut off."""
    generator = torch.Generator().manual_seed(vocab)
    seen = 0
    for share in (0.0, 0.5, 1 - 5 / vocab):
        logits = torch.randn(4, vocab, generator=generator) * spread + 7
        logits[torch.rand(logits.shape, generator=generator) < share] = -math.inf
        logits[:, 3] = 7.0
        rows = logits.repeat_interleave(16, 0)
        numbers = torch.rand(len(rows), dtype=torch.float64, generator=generator)
        numbers[:4], numbers[4:8] = 0.0, 1 - 2.0**-53
        wanted, theirs, near = (x.flatten() for x in drawn_whole(logits, numbers.view(4, 16)))
        tokens, logprobs = pick(rows, numbers, Sampling(1))
        clear = near > 1e-6
        assert torch.equal(tokens[clear], wanted[clear])
        seen += int(clear.sum())
        assert torch.allclose(logprobs[clear].double(), theirs[clear], atol=2e-6)
        assert bool((rows.gather(1, tokens[:, None]) > -math.inf).all()), "a token of probability zero"
    assert seen > 40


def test_blocks_never_draw_a_token_of_probability_zero_at_their_edges():
    vocab = 16 * 512 + 3
    for allowed in ([511], [512], [0, vocab - 1], [vocab - 4], [5, 600]):
        logits = torch.full((64, vocab), -math.inf)
        logits[:, allowed] = torch.randn(len(allowed), generator=torch.Generator().manual_seed(1))
        numbers = torch.linspace(0, 1 - 2.0**-53, 64, dtype=torch.float64)
        tokens, _ = pick(logits, numbers, Sampling(1))
        assert set(tokens.tolist()) == set(allowed)
