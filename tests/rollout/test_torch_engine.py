"""The embedded engine: a response depends on its own seed and the weights, and on nothing else."""

import random
from itertools import islice
from typing import Any

import pytest
import torch

from tests.models.decoder.test_decoder import lie_about_rotation
from tests.models.families import SLOW, next_logits, scatter, tiny
from verizero.pipeline.errors import EngineError
from verizero.pipeline.models.decoder.decoder import ON_GPU, Decoder
from verizero.pipeline.rollout.engine import Completion, Ended, Request, Sampling
from verizero.pipeline.rollout.sampling import pick, pick_kept, uniforms
from verizero.pipeline.rollout.torch_engine import TorchEngine

EOS = (1, 5)
MAX = 12
REQUESTS = [
    Request((3, 4, 6, 7), (11, 12, 13)),
    Request((8,), (21,)),
    Request((9, 10, 11), (31, 32)),
    Request((3, 4, 6, 7), (41, 42, 43, 44)),
    Request((2, 2, 2, 2, 2, 2, 2), (51, 52)),
]
QUEUE = [Request((i, 3), tuple(range(100 * i, 100 * i + 4))) for i in range(2, 20)]
"""So many that slots are taken again."""


def engine_of(name: str, max_rows: int = 1024, publish: bool = True) -> TorchEngine:
    engine = TorchEngine(tiny(name), EOS, 0, max_rows)
    if publish:
        engine.publish(0)
    return engine


def numbers_of(seed: int, count: int) -> torch.Tensor:
    """The first numbers of a seed, float64 [count, 1]."""
    return torch.tensor([*islice(uniforms(seed), count)], dtype=torch.float64)[:, None]


def slowly(model: Any, prompt: tuple[int, ...], seed: int, sampling: Sampling) -> tuple[Completion, bool]:
    """One response by forwards over the whole row, token by token; and that no draw was within rounding of another."""
    ids, logprobs = list(prompt), []
    clear = True
    for number in numbers_of(seed, sampling.max_tokens):
        logits = next_logits(model, ids)[None]
        token, logprob = pick(logits, number, sampling)
        for shift in (1e-5, -1e-5):
            nudged = (number + shift).clamp(0, 1 - 2.0**-53)
            if sampling.temperature > 0 and pick(logits, nudged, sampling)[0] != token:
                clear = False
        ids.append(int(token))
        logprobs.append(float(logprob))
        if ids[-1] in EOS:
            return Completion(tuple(ids[len(prompt) :]), tuple(logprobs), "stop"), clear
    return Completion(tuple(ids[len(prompt) :]), tuple(logprobs), "length"), clear


def generated(engine: TorchEngine, requests: list[Request], sampling: Sampling) -> list[list[Completion]]:
    """The answers, of each of which the reader is told once, in its place."""
    heard: list[Ended] = []
    answers = engine.generate(requests, sampling, heard.extend)
    ended = {(e.request, e.sample): (e.token_ids, e.finish_reason) for e in heard}
    assert len(ended) == len(heard)
    made = {(i, j): c for i, some in enumerate(answers) for j, c in enumerate(some)}
    assert ended == {place: (c.token_ids, c.finish_reason) for place, c in made.items()}
    return answers


def same(ours: Completion, theirs: Completion) -> None:
    assert ours.token_ids == theirs.token_ids
    assert ours.finish_reason == theirs.finish_reason
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        *(("qwen2 tied", sampling) for sampling in (Sampling(MAX), Sampling(6, 0.7, 0.9, 6), Sampling(4, 0.0))),
        *((name, Sampling(6, 0.7, 0.9, 6)) for name in ("qwen3 wide heads", *SLOW)),
    ],
)
def test_responses_are_those_of_a_slow_loop(name, sampling):
    engine = engine_of(name)
    assert engine.is_fast == (name not in SLOW) == (engine.fallback_reason is None)
    answers = engine.generate(REQUESTS, sampling)
    seen = []
    for request, completions in zip(REQUESTS, answers, strict=True):
        assert len(completions) == len(request.seeds)
        for seed, found in zip(request.seeds, completions, strict=True):
            wanted, clear = slowly(engine.model, request.prompt_ids, seed, sampling)
            if clear:
                same(found, wanted)
                seen.append(wanted.finish_reason)
    assert len(seen) >= 10


@pytest.mark.run
@pytest.mark.parametrize("name", ["qwen2 one key head", "qwen3 with bias", "gpt2"])
def test_a_response_depends_on_its_own_seed_only(name):
    """Whatever the batch, its order, its cut into waves, and whichever other rows end early or late."""
    engine = engine_of(name)
    sampling = Sampling(MAX)
    alone = {
        (r.prompt_ids, seed): engine.generate([Request(r.prompt_ids, (seed,))], sampling)[0][0]
        for r in REQUESTS
        for seed in r.seeds
    }
    lengths = {len(c.token_ids) for c in alone.values()}
    assert len(lengths) > 2  # rows end at many different steps
    for trial in range(6):
        rng = random.Random(trial)
        shuffled = rng.sample(REQUESTS, len(REQUESTS)) + [REQUESTS[trial % 5]] * (trial % 3)
        shuffled = [Request(r.prompt_ids, tuple(rng.sample(r.seeds, len(r.seeds)))) for r in shuffled]
        engine.max_rows = [1, 2, 3, 5, 8, 1024][trial]
        for request, completions in zip(shuffled, generated(engine, shuffled, sampling), strict=True):
            for seed, found in zip(request.seeds, completions, strict=True):
                same(found, alone[request.prompt_ids, seed])


@pytest.mark.parametrize("sampling", [Sampling(MAX), Sampling(MAX, 1.0, 0.9, 6, 3)])
def test_the_habits_of_a_gpu_give_the_same_responses(sampling):
    engine, other = engine_of("qwen2 tied"), engine_of("qwen2 tied")
    other._decoder = Decoder(other.model, ON_GPU)
    for ours, theirs in zip(generated(other, REQUESTS, sampling), engine.generate(REQUESTS, sampling), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
            assert a.kept == b.kept


@pytest.mark.parametrize("name", ["qwen2 tied", "gpt2"])
@pytest.mark.parametrize("sampling", [Sampling(MAX, 1.0, 0.9, 0, 3), Sampling(MAX, 1.0, 0.5, 0, 64)])
def test_the_sets_of_a_response_are_those_of_forwards_over_the_whole_row(name, sampling):
    engine = engine_of(name, 5)  # so few that slots are taken again
    sizes, num_bounded = set(), 0
    for request, completions in zip(REQUESTS, engine.generate(REQUESTS, sampling), strict=True):
        for seed, found in zip(request.seeds, completions, strict=True):
            ids, told = list(request.prompt_ids), []
            for number, token in zip(numbers_of(seed, MAX), found.token_ids, strict=False):
                told.append(pick_kept(next_logits(engine.model, ids)[None], number, sampling)[2])
                ids.append(token)
            assert found.kept.sizes == tuple(int(kept.sizes) for kept in told)
            assert found.kept.ids == b"".join(kept.ids[0, : int(kept.sizes)].numpy().tobytes() for kept in told)
            assert found.kept.num_bounded == sum(bool(kept.bounded) for kept in told)
            sizes |= {*found.kept.sizes}
            num_bounded += found.kept.num_bounded
    assert (num_bounded > 0) == (sampling.max_kept == 3)
    assert (len(sizes) > 1) == (sampling.max_kept == 64)


def watched(engine: TorchEngine) -> tuple[list[list[int]], list[int]]:
    """The lengths of the prompts of each prefill, a row each, and the rows of each step, as they come."""
    prefills: list[list[int]] = []
    steps: list[int] = []
    admit, step = engine._decoder.admit, engine._decoder.step

    def admitted(cache, prompts, repeats, slots):
        prefills.append([len(p) for p, n in zip(prompts, repeats, strict=True) for _ in range(n)])
        return admit(cache, prompts, repeats, slots)

    def stepped(tokens, cache):
        steps.append(len(tokens))
        return step(tokens, cache)

    engine._decoder.admit, engine._decoder.step = admitted, stepped
    return prefills, steps


def test_no_more_rows_are_decoded_at_once_than_allowed_and_long_prompts_first():
    engine = engine_of("llama", max_rows=3)
    prefills, steps = watched(engine)
    engine.generate(REQUESTS, Sampling(3))
    lengths = [n for some in prefills for n in some]
    assert max(len(some) for some in prefills) == max(steps) == 3
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 2
    assert len(lengths) == sum(len(r.seeds) for r in REQUESTS)


@pytest.mark.run
@pytest.mark.parametrize(("name", "refills"), [("qwen2 tied", True), ("gpt2", False)])
def test_a_slot_takes_the_next_response_while_others_are_written(name, refills):
    """A queue is done in fewer steps than waves that wait for their longest response."""
    engine = engine_of(name, max_rows=8)
    prefills, steps = watched(engine)
    answers = engine.generate(QUEUE, Sampling(40))
    lengths = [len(c.token_ids) for some in answers for c in some]
    waves = sum(max(lengths[i : i + 8]) - 1 for i in range(0, len(lengths), 8))
    assert (len(steps) < 0.8 * waves) == refills, (len(steps), waves)
    assert (len(prefills) > len(lengths) / 8) == refills


def test_each_is_told_of_before_the_next_token_is_drawn():
    engine, heard = engine_of("qwen2 tied"), []
    _, steps = watched(engine)
    engine.generate(QUEUE, Sampling(MAX), lambda some: heard.extend((len(steps), e) for e in some))
    assert {at for at, _ in heard} > {0, 1, 2}, "not all at once"
    assert all(len(e.token_ids) == at + 1 for at, e in heard)
    assert torch.is_inference_mode_enabled() is False


@pytest.mark.parametrize("name", ["qwen2 tied", "gpt2"])
def test_publish_takes_a_copy(name):
    """A change of weights reaches the engine with the next publish, and the version says which it has."""
    engine = engine_of(name)
    before = engine.generate(REQUESTS, Sampling(MAX))
    scatter(engine.model, 77)
    assert engine.generate(REQUESTS, Sampling(MAX)) == before
    assert engine.version == 0
    engine.publish(3)
    assert engine.version == 3
    after = engine.generate(REQUESTS, Sampling(MAX))
    assert after != before
    fresh = TorchEngine(engine.model, EOS, 0)
    assert fresh.version == -1
    fresh.publish(3)
    assert fresh.generate(REQUESTS, Sampling(MAX)) == after


def test_weights_that_do_not_fit_are_an_engine_error_and_the_version_stays():
    engine = engine_of("gpt2")
    engine.model.transformer.wte = torch.nn.Embedding(5, 32)
    with pytest.raises(EngineError, match="embedded engine"):
        engine.publish(1)
    assert engine.version == 0


def test_a_prompt_that_leaves_no_room_is_refused_with_its_numbers():
    engine = engine_of("llama")
    fits = Request(tuple(range(2, 20)), (1,))
    assert len(engine.generate([fits], Sampling(64 - 18))[0]) == 1
    with pytest.raises(EngineError, match=r"18 .*max_response_tokens=47 .* 64.*on_long_prompt"):
        engine.generate([fits], Sampling(64 - 17))


def test_a_model_that_lies_about_its_family_takes_the_slow_path():
    model = tiny("llama")
    lie_about_rotation(model)
    engine = TorchEngine(model, EOS, 0)
    engine.publish(0)
    assert not engine.is_fast
    assert engine.fallback_reason
