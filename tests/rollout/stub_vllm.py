"""A double of the module that imports vLLM, on a machine with GPUs: it notes arguments and calls."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make install-engines")
"""Files of tests with the real vLLM import it when they need it: all processes of the tests collect all files."""


class StubVllm:
    """vLLM on GPUs, as far as an engine calls it."""

    def __init__(self):
        self.arguments = {}
        self.environment = {}
        self.calls = []
        self.weights = None

    def on_cpu(self):
        return False

    def why_no_records(self):
        return None

    def argument_names(self):
        return set()

    def head_sizes(self):
        return None

    def make_llm(self, arguments):
        import os

        self.arguments, self.environment = arguments, {"LOCAL_RANK": os.environ.get("LOCAL_RANK")}
        return StubLlm(self)

    def shutdown(self, llm, ends_group):
        self.calls.append(("shutdown", ends_group))

    def ranks_of_engine(self):
        return SimpleNamespace(rank=0, gather=lambda value: [value])

    def sampling_params(self, **options):
        return options


class StubLlm:
    """An engine whose weights are gone after a sleep of level 2, and which refuses to generate without them."""

    def __init__(self, stub):
        self.stub, self.llm_engine = stub, self
        self.model_config = SimpleNamespace(max_model_len=64)
        self.version = "default"
        self.asleep = set()
        self.asked = []

    def sleep(self, level):
        self.stub.calls.append(("sleep", level))
        self.asleep = {"weights", "kv_cache"}
        if level == 2:
            self.stub.weights = None

    def wake_up(self, tags):
        self.stub.calls.append(("wake", *tags))
        self.asleep -= set(tags)

    def collective_rpc(self, method, args):
        assert "weights" not in self.asleep
        self.stub.calls.append(method)
        self.stub.weights = {name: tensor.clone() for name, tensor in args[0]}

    def reset_prefix_cache(self):
        assert not self.asleep
        return True

    def set_weight_version(self, version):
        self.version = version

    def get_weight_version(self):
        return self.version

    def add_request(self, name, prompt, params, lora_request=None):
        self.asked.append((name, prompt["prompt_token_ids"]))

    def has_unfinished_requests(self):
        return bool(self.asked)

    def step(self):
        assert not self.asleep
        assert self.stub.weights is not None, "vLLM was asked for responses, and its weights are gone"
        self.stub.calls.append("generate")
        asked, self.asked = self.asked, []
        return [self.answer(name, prompt) for name, prompt in asked]

    def answer(self, name, prompt):
        said = SimpleNamespace(
            token_ids=[5],
            logprobs=[{5: SimpleNamespace(logprob=-0.5)}],
            weight_versions=[SimpleNamespace(version=self.version, start=0, end=1)],
            finish_reason="stop",
            sampling_mask=None,
            routed_experts=None,
        )
        return SimpleNamespace(request_id=name, finished=True, outputs=[said], prompt_token_ids=prompt)
