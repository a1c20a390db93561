"""vLLM in this process: weights after each publish, log-probs, seeds, refusals, and its end; on the real engine."""

import gc
import os
import random
import weakref
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist

from tests.models.families import build, next_logits, scatter
from tests.rollout.stub_vllm import needs_vllm
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import EngineError
from verizero.pipeline.models.compiled import COMPILE_THREADS
from verizero.pipeline.rollout.engine import Completion, Engine, Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.sampling import cut_off
from verizero.pipeline.rollout.vllm_engine import VllmEngine

pytestmark = [pytest.mark.run, needs_vllm]

EOS = (1, 5)
SMALL = VllmConfig(kv_cache_gib=0.1, arguments={"max_num_batched_tokens": 96})
"""So few tokens a step that prompts wait for each other."""
REQUESTS = [
    Request((3, 4, 6, 7), (11, 12, 2**63 - 1)),
    Request((8,), (21,)),
    Request((9, 10, 11), (31, 32)),
]


class Colocated:
    """A policy that moves, and the engine that is to follow it."""

    def __init__(self, **shape):

        self.model = build("qwen2", {"hidden_size": 128, **shape})
        self.left_out: str | None = None
        self.before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
        self.set_num_threads = torch.set_num_threads
        self.engine = VllmEngine(EngineModel.of(self.model, EOS, self.weights), SMALL, 64)
        self.after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
        self.next = 0

    def weights(self):
        return ((n, p.detach()) for n, p in self.model.named_parameters() if n != self.left_out)

    def move(self):
        """An update of the policy that the engine is not told of."""
        self.next += 1
        scatter(self.model, self.next)

    def publish(self):
        self.engine.publish(self.next)


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.nightly)], ids=["tied", "untied"])
def both(request):
    """With the output layer tied to the embedding, and of its own; nothing is compiled, as vLLM does a count of its."""
    with torch.compiler.set_stance("force_eager"):
        both = Colocated(tie_word_embeddings=request.param)
        yield both
        both.engine.close()


def greedy(model: Any, prompt: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The likeliest response, by forwards over the whole row."""
    ids = list(prompt)
    while len(ids) < len(prompt) + most and (len(ids) == len(prompt) or ids[-1] not in EOS):
        ids.append(int(next_logits(model, ids).argmax()))
    return tuple(ids[len(prompt) :])


def scored(model: Any, prompt: tuple[int, ...], answer: Completion, sampling: Sampling) -> list[float]:
    """The log-probs of the response's tokens by the trainer's model, under the distribution that was sampled."""
    ids = torch.tensor([[*prompt, *answer.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0, len(prompt) - 1 :].float()
    if sampling.temperature > 0:
        logits = cut_off(logits / sampling.temperature, sampling.top_k, sampling.top_p)
    found: list[float] = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
    return found


def check_responses(engine: Engine, model: Any) -> None:
    """Greedy responses are those of the model's present weights, and sampled ones have its log-probs."""
    for request, completions in zip(REQUESTS, engine.generate(REQUESTS, Sampling(20, temperature=0)), strict=True):
        assert {c.token_ids for c in completions} == {greedy(model, request.prompt_ids, 20)}
    sampling = Sampling(6, 0.9)
    for request, completions in zip(REQUESTS, engine.generate(REQUESTS, sampling), strict=True):
        for one in completions:
            assert one.logprobs == pytest.approx(scored(model, request.prompt_ids, one, sampling), abs=1e-4)


@pytest.mark.nightly  # first: a process has one engine at a time
@pytest.mark.parametrize("of_trainer", [True, False])
def test_its_memory_is_free_and_the_trainers_group_stays(of_trainer, monkeypatch):
    """The second time a second engine starts where the first one was."""
    import torch._inductor.config as inductor

    monkeypatch.delenv(COMPILE_THREADS, raising=False)
    if of_trainer:
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with inductor.patch(compile_threads=7):
            both = Colocated()
            assert COMPILE_THREADS not in os.environ
            assert inductor.compile_threads == 7
        both.publish()
        check_responses(both.engine, both.model)
        engine = both.engine._llm.llm_engine
        finalizer, model = engine.engine_core._finalizer, weakref.ref(engine._get_driver_model_for_cleanup())
        assert model() is not None
        del engine
        both.engine.close()
        gc.collect()
        assert not finalizer.alive, "vLLM would end the trainer's group at some later time"
        assert model() is None
        assert dist.is_initialized() is of_trainer
        if of_trainer:
            dist.all_reduce(torch.ones(1))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.mark.parametrize("times", range(3))
def test_after_each_publish_the_engine_is_the_trainer(both, times):
    both.move()
    both.publish()
    assert both.engine.version == both.next
    check_responses(both.engine, both.model)


def test_an_update_reaches_the_engine_by_publish_only(both):
    both.publish()
    before = both.engine.generate(REQUESTS, Sampling(20, temperature=0))
    both.move()
    assert both.engine.generate(REQUESTS, Sampling(20, temperature=0)) == before
    both.publish()
    assert both.engine.generate(REQUESTS, Sampling(20, temperature=0)) != before


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(24),
        Sampling(24, 0.7),
        Sampling(24, 1.3),
        Sampling(24, 0),
        Sampling(24, 0.8, 0.7),
        Sampling(24, 1, 1, 4),
    ],
    ids=["plain", "cool", "hot", "greedy", "top_p", "top_k"],
)
def test_log_probs_are_the_trainers(both, sampling):
    both.publish()
    answers = both.engine.generate(REQUESTS, sampling)
    seen = 0
    for request, completions in zip(REQUESTS, answers, strict=True):
        assert len(completions) == len(request.seeds)
        for answer in completions:
            wanted = scored(both.model, request.prompt_ids, answer, sampling)
            assert answer.logprobs == pytest.approx(wanted, abs=1e-4)
            seen += len(wanted)
    assert seen > 20


def test_weights_that_do_not_come_are_missed(both):
    both.left_out = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(EngineError, match=r"1 weights.*layers\.1\.mlp\.down_proj"):
        both.publish()
    both.left_out = None
    both.publish()
    check_responses(both.engine, both.model)


def test_responses_of_another_version_are_refused(both):
    both.publish()
    both.engine._llm.llm_engine.set_weight_version("older")
    with pytest.raises(EngineError, match="version older"):
        both.engine.generate(REQUESTS[:1], Sampling(2))
    both.publish()
    assert len(both.engine.generate(REQUESTS[:1], Sampling(2))[0]) == 3


def test_sleep_is_declined_on_the_cpu_with_its_reason(both):
    assert "CPU" in str(both.engine.sleep_note)
    both.engine.rest()
    both.publish()
    check_responses(both.engine, both.model)


def test_a_process_has_one_engine_at_a_time(both):
    with pytest.raises(EngineError, match="close it"):
        VllmEngine(EngineModel.of(both.model, EOS), VllmConfig(kv_cache_gib=0.1), 64)
    both.publish()
    check_responses(both.engine, both.model)
