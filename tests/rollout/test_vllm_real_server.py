"""A real server of vLLM has the trainer's weights after each publish, or its base and the last adapters."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models.families import build, scatter
from tests.rollout.fake_server import pool_of
from tests.rollout.real_vllm import needs_vllm
from tests.warm import VLLM, warm
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import EngineError
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.rollout.engine import Completion, Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_remote import RemoteServer
from verizero.pipeline.train.backend import Backend

REQUESTS = [Request((3, 4), tuple(range(100, 110))), Request((8,), tuple(range(7, 17)))]
GREEDY = Sampling(20, temperature=0)


def tokens_of(answers: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    """Return the tokens of responses, whose log-probs differ in rounding with what a server computes in one step."""
    return [[one.token_ids for one in of_prompt] for of_prompt in answers]


def follow_adapters(folder: Path) -> None:
    """Assert that a real server has the trainer's base and last adapters after each publish."""
    from tests.rollout.test_vllm_adapters import moved
    from tests.rollout.test_vllm_engine import check_responses

    model = build("qwen2", {"hidden_size": 128, "tie_word_embeddings": True})
    adapted = Adapted(model, 4, 8.0, (), 5, quantize_on="cpu")
    policy = EngineModel.of(model, (1, 5), adapters=Backend(model, adapted=adapted).engine_adapters())
    engine = pool_of(policy, VllmConfig(kv_cache_gib=0.1, bucket_mib=1), folder)
    of_base = 4 * sum(p.numel() for p in adapted.twin.parameters())
    of_adapters = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    try:
        for version, num_bytes in ((0, of_base + of_adapters), (1, of_adapters), (2, of_adapters)):
            if version:
                before = tokens_of(engine.generate(REQUESTS, GREEDY))
                moved(model, version)
                assert tokens_of(engine.generate(REQUESTS, GREEDY)) == before
            engine.publish(version)
            check_responses(engine, adapted.plain_model())
            assert engine.counts()["publish/bytes"] == num_bytes
        again = pool_of(policy, VllmConfig(urls=tuple(s.url for s in engine.servers)), folder)
        moved(model, 3)
        again.publish(3)
        check_responses(again, adapted.plain_model())
        assert again.counts()["publish/bytes"] == of_base + of_adapters, "a new run does not know what a server has"
        with pytest.raises(EngineError, match=r"weights of version 3@\w+, and version 2@"):
            engine.generate(REQUESTS, GREEDY)
        again.close()
    finally:
        engine.close()


def follow(folder: Path) -> None:
    """Assert that a real server answers as the trainer after each publish, also after one that was broken off."""
    from tests.rollout.test_vllm_engine import check_responses

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
            assert isinstance(server, RemoteServer)
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
            engine.generate(REQUESTS, Sampling(9))
    finally:
        engine.close()


@pytest.mark.run
@pytest.mark.nightly
@needs_vllm
@pytest.mark.parametrize("follow", [follow, follow_adapters])
def test_it_follows_the_trainer(tmp_path: Path, follow: Callable[[Path], None]) -> None:
    warm(VLLM).call(follow, tmp_path)  # a fork that has vLLM, which the server is a fork of
