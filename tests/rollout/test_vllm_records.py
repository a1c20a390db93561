"""What vLLM records of responses, in its own classes, becomes what training replays; nonsense is refused."""

import numpy
import pytest

from tests.models.families import build
from tests.rollout.fake_server import FakeServer, Posted, pool_of
from tests.rollout.stub_vllm import needs_vllm
from tests.stages.tiny import tiny
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel, Records
from verizero.pipeline.rollout.vllm_arguments import engine_arguments
from verizero.pipeline.rollout.vllm_records import (
    decode_array,
    kept_tokens,
    recordable_options,
    recording_arguments,
    routing,
)
from verizero.pipeline.run.build import records_of

CUT = Sampling(8, 0.7, 0.9, 3, max_kept=4)
ROUTED = Sampling(8, keep_routing=True)
EXPERTS = numpy.arange(2 * 6 * 3, dtype=numpy.uint8).reshape(6, 3, 2)
"""Of six tokens, in three layers, two of each."""


def test_sets_are_ascending_and_one_for_each_token():
    kept = kept_tokens([[7, 2, 9], [4], [300, 5]], (9, 4, 5), CUT)
    assert kept.sizes == (3, 1, 2)
    assert numpy.frombuffer(kept.ids, dtype="<i4").tolist() == [2, 7, 9, 4, 5, 300]
    assert kept.num_bounded == 0
    assert kept_tokens(None, (9,), Sampling(8)) is None


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (None, "none .* 2 .*return_sampling_mask"),
        ([[1]], "1 .* 2 .*return_sampling_mask"),
        ([[1], [3]], "token 2"),
        ([[1], [2, 3, 4, 5, 6]], "rollout.max_kept=4"),
    ],
)
def test_sets_that_cannot_be_are_refused(sets, named):
    with pytest.raises(EngineError, match=named):
        kept_tokens(sets, (1, 2), CUT)


def test_experts_are_of_all_tokens_but_the_last():
    found = routing(EXPERTS, 4, 3, ROUTED)
    assert (found.layers, found.top_k) == (3, 2)
    assert numpy.frombuffer(found.experts, dtype="<i2").reshape(6, 3, 2).tolist() == EXPERTS.tolist()
    assert routing(EXPERTS, 4, 3, Sampling(8)) is None
    for experts, num in ((None, 3), (EXPERTS, 4), (EXPERTS[0], 3)):
        with pytest.raises(EngineError, match="enable_return_routed_experts"):
            routing(experts, 4, num, ROUTED)


def test_every_draw_has_the_bounds_that_vllm_asks_for():
    assert recordable_options(Sampling(4, 0.7, 1.0, 20), 100) == {"top_k": 20}
    assert recordable_options(Sampling(4, 0.7), 100) == {"top_k": 100}
    assert recordable_options(Sampling(4, 0.0), 100) == {"temperature": 1.0, "top_k": 1}


def test_only_what_the_recipe_keeps_is_asked_for():
    dense, mixed = build("qwen2", {}), build("qwen2", {})
    mixed.config.num_experts = 8
    keeps = ["rl.algorithm={name: deepseek_v32}", "rollout.engine=vllm"]
    assert records_of(tiny(), dense) == Records()
    assert records_of(tiny(overrides=keeps), dense) == Records()
    assert records_of(tiny(overrides=[*keeps, "rollout.top_k=20"]), mixed) == Records(True, True)
    policy = EngineModel.of(dense, (1,), None, Records(True, True))
    asked = engine_arguments(policy, VllmConfig(), 8)
    assert (
        asked["return_sampling_mask"] is asked["enable_return_routed_experts"] is asked["enable_prefix_caching"] is True
    )
    assert asked["logprobs_mode"] == "processed_logprobs"
    assert "return_sampling_mask" not in engine_arguments(EngineModel.of(dense, (1,)), VllmConfig(), 8)
    with pytest.raises(ConfigError, match=r"set rollout.top_k"):
        tiny(overrides=[*keeps, "rollout.top_p=0.9"])


def test_a_servers_answer_has_both(tmp_path):
    class Recording(FakeServer):
        def reply(self, path, body):
            status, said = super().reply(path, body)
            if path == "/inference/v1/generate":
                assert body["sampling_params"]["top_k"] == 3
                (choice,) = said["choices"]
                choice["sampling_mask"] = [[t, 60] for t in choice["token_ids"]]
            return status, said

    with Recording() as fake:
        policy = EngineModel.of(build("qwen2", {}), (1, 5), None, Records(sampling=True))
        config = VllmConfig(urls=(fake.url,), request_timeout_s=20)
        engine = pool_of(policy, config, tmp_path, channel=Posted)
        engine.publish(1)
        ((one,),) = engine.generate([Request((3, 4), (11,))], CUT)
    assert one.token_ids == (11, 4)
    assert one.kept.sizes == (2, 2)
    assert numpy.frombuffer(one.kept.ids, dtype="<i4").tolist() == [11, 60, 4, 60]


@pytest.mark.run
@needs_vllm
class TestVllmsOwnClasses:
    def test_its_lists_of_sets(self):
        from vllm.outputs import SamplingMask
        from vllm.v1.outputs import SamplingMaskLists

        one = SamplingMaskLists(numpy.array([7, 2, 9]))
        two = SamplingMaskLists(numpy.array([4, 300, 5]), numpy.array([0, 1, 3]))
        mask = SamplingMask([p for chunk in (one, two) for p in chunk.to_nested_list()])
        kept = kept_tokens(mask.token_ids, (9, 4, 5), CUT)
        assert kept.sizes == (3, 1, 2)

    def test_its_packing_of_experts_for_http(self):
        from vllm.utils.serial_utils import numpy2base64

        assert numpy.array_equal(decode_array(numpy2base64(EXPERTS)), EXPERTS)
        assert decode_array(None) is None

    def test_its_names_of_arguments_and_of_answers(self):
        from dataclasses import fields

        from vllm.outputs import CompletionOutput

        from verizero.pipeline.rollout.vllm_arguments import import_vllm

        worker = import_vllm()
        assert set(recording_arguments(Records(True, True))) <= worker.argument_names()
        assert {"sampling_mask", "routed_experts"} <= {f.name for f in fields(CompletionOutput)}
        assert (worker.why_no_records() is not None) >= worker.on_cpu()
