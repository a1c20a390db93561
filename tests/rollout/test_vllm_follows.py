"""Real vLLM, in process and as a server, has the trainer's weights after each publish, or its base and adapters."""

import os
import signal

import pytest
import torch

from tests.models.families import build, scatter
from tests.rollout.fake_server import pool_of
from tests.rollout.stub_vllm import needs_vllm
from tests.rollout.test_vllm_engine import EOS, REQUESTS, SMALL, check_responses
from tests.warm import VLLM, warm
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_arguments import adapter_arguments
from verizero.pipeline.rollout.vllm_engine import VllmEngine
from verizero.pipeline.train.backend import Backend

pytestmark = [pytest.mark.run, pytest.mark.nightly, needs_vllm]


class Pair:
    """A policy with adapters, and vLLM."""

    def __init__(self, quantize_on):
        model = build("qwen2", {"hidden_size": 128, "tie_word_embeddings": True})
        self.adapted = Adapted(model, 4, 8.0, (), 5, quantize_on=quantize_on)
        found = Backend(model, adapted=self.adapted).engine_adapters()
        self.engine = VllmEngine(EngineModel.of(model, EOS, adapters=found, longest=64), SMALL, 64)


@torch.no_grad()
def moved(model, seed):
    """Draw other adapters."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.requires_grad:
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)


@pytest.fixture(scope="module", params=[None, "cpu"], ids=["numbers", "four bits"])
def pair(request):
    pair = Pair(request.param)
    yield pair
    pair.engine.close()


def test_after_each_publish_it_is_the_trainer_and_not_before(pair):
    pair.engine.publish(0)
    check_responses(pair.engine, pair.adapted.model)
    before = pair.engine.generate(REQUESTS, Sampling(20, temperature=0))
    for version in (1, 2):
        moved(pair.adapted.model, version)
        assert pair.engine.generate(REQUESTS, Sampling(20, temperature=0)) == before
        pair.engine.publish(version)
        assert pair.engine.version == version
        check_responses(pair.engine, pair.adapted.model)
        before = pair.engine.generate(REQUESTS, Sampling(20, temperature=0))


def test_the_adapters_alone_are_published(pair):
    pair.engine.publish(3)
    wanted = sum(p.nbytes for p in pair.adapted.model.parameters() if p.requires_grad)
    assert pair.engine.counts() == {"publish/bytes": wanted}


def test_adapters_that_it_does_not_report_are_refused(pair, monkeypatch):
    plain = pair.engine._llm.collective_rpc

    def kept_others(method, args):
        said = plain(method, args=args)
        return [[1, 2]] if method == "put_adapters" else said

    monkeypatch.setattr(pair.engine._llm, "collective_rpc", kept_others)
    with pytest.raises(EngineError, match=r"vLLM has the adapters \[\[1, 2\]\] .* after number 1 was published"):
        pair.engine.publish(9)


def test_layers_and_ranks_that_it_does_not_compute_are_not_its():
    def adapted(**how):
        return Adapted(
            build("qwen2", {"tie_word_embeddings": False}), how.get("rank", 2), 4.0, how.get("targets", ()), 0
        )

    head = adapted(targets=("lm_head",))
    assert Backend(head.model, adapted=head).engine_adapters() is None, "merged weights are published"
    with pytest.raises(ConfigError, match=r"train.lora.rank=600, and vLLM computes adapters of at most 512"):
        adapter_arguments(adapted(rank=600).config)


SERVED = [Request((3, 4), tuple(range(100, 110))), Request((8,), tuple(range(7, 17)))]
GREEDY = Sampling(20, temperature=0)


def tokens_of(answers):
    """Return the tokens of responses, whose log-probs differ in rounding with what a server computes in one step."""
    return [[one.token_ids for one in of_prompt] for of_prompt in answers]


def follow_adapters(folder):
    """Assert that a real server has the trainer's base and last adapters after each publish."""
    model = build("qwen2", {"hidden_size": 128, "tie_word_embeddings": True})
    adapted = Adapted(model, 4, 8.0, (), 5, quantize_on="cpu")
    policy = EngineModel.of(model, (1, 5), adapters=Backend(model, adapted=adapted).engine_adapters())
    engine = pool_of(policy, VllmConfig(kv_cache_gib=0.1, bucket_mib=1), folder)
    of_base = 4 * sum(p.numel() for p in adapted.twin.parameters())
    of_adapters = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    try:
        for version, num_bytes in ((0, of_base + of_adapters), (1, of_adapters), (2, of_adapters)):
            if version:
                before = tokens_of(engine.generate(SERVED, GREEDY))
                moved(model, version)
                assert tokens_of(engine.generate(SERVED, GREEDY)) == before
            engine.publish(version)
            check_responses(engine, adapted.plain_model())
            assert engine.counts()["publish/bytes"] == num_bytes
        again = pool_of(policy, VllmConfig(urls=tuple(s.url for s in engine.servers)), folder)
        moved(model, 3)
        again.publish(3)
        check_responses(again, adapted.plain_model())
        assert again.counts()["publish/bytes"] == of_base + of_adapters, "a new run does not know what a server has"
        with pytest.raises(EngineError, match=r"weights of version 3@\w+, and version 2@"):
            engine.generate(SERVED, GREEDY)
        again.close()
    finally:
        engine.close()


def follow(folder):
    """Assert that a real server answers as the trainer after each publish, also after one that was broken off."""
    model = build("qwen2", {"hidden_size": 128, "tie_word_embeddings": True})
    engine = pool_of(EngineModel.of(model, (1, 5)), VllmConfig(kv_cache_gib=0.1, bucket_mib=1), folder)
    try:
        for version in (1, 2):
            scatter(model, version)
            engine.publish(version)
            check_responses(engine, model)
        scatter(model, 9)
        for half in (False, True):  # a run is killed amid its publish, and the next one has the same servers
            (server,) = engine.servers
            server.start_update()
            if half:
                server.take_weights(list(engine.setup.policy.weights())[:4])
            server.close()
            scatter(model, 3 + half)
            engine.publish(3)
            check_responses(engine, model)
        assert engine.counts()["publish/bytes"] == 4 * sum(p.numel() for p in model.parameters())
        os.killpg(engine._processes[0].process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"vllm-.*log"):
            engine.generate(SERVED, Sampling(9))
    finally:
        engine.close()


@pytest.mark.parametrize("follow", [follow, follow_adapters])
def test_it_follows_the_trainer(tmp_path, follow):
    warm(VLLM).call(follow, tmp_path)  # a fork that has vLLM, which the server is a fork of
