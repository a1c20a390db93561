"""Servers of vLLM as an operator starts them (docs/engines.md), with weights of their own; and signals that strike."""

import json
import os
import threading
import urllib.request

from tests.far import FarProgram
from tests.processes import stats, until
from tests.warm import ROOT, VLLM
from verizero.pipeline.config.auto import for_machine
from verizero.pipeline.host.network import LOOPBACK, free_port
from verizero.pipeline.models.load import save_folder
from verizero.pipeline.rollout.vllm_arguments import flags, variables
from verizero.pipeline.run.build import build_tokenizer
from verizero.pipeline.run.opening import load_policy

ARGUMENTS = {
    "enable_scale_out": True,
    "skip_tokenizer_init": True,
    "logprobs_mode": "processed_logprobs",
    "dtype": "float32",
    "enforce_eager": True,
    "worker_extension_cls": "verizero.pipeline.rollout.vllm_worker.WorkerExtension",
    "weight_transfer_config": {"backend": "verizero_gloo"},
    "generation_config": "vllm",
    "kv_cache_memory_bytes": 100 * 2**20,
    "enable_lora": True,  # it takes all weights, too
    "max_lora_rank": 8,
    "disable_log_stats": True,
}


class GivenServer:
    """One server at `url`, of the model that a recipe begins with."""

    def __init__(self, config, folder):
        tokenizer = build_tokenizer(config)
        policy = load_policy(for_machine(config, 1, "cpu"), tokenizer, None)
        save_folder(policy, tokenizer, folder / "model")
        self.folder, self.log = folder, folder / "server.log"
        self.program = None
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"

    @property
    def group(self):
        return self.program.pid

    @property
    def is_alive(self):
        return self.program is not None and self.program.poll() is None

    @property
    def version(self):
        with urllib.request.urlopen(f"{self.url}/weight_info", timeout=60) as reply:
            return str(json.load(reply)["weight_version"])

    def start(self):
        """Begin to start it, where it does not run; `wait` returns when it answers."""
        if self.is_alive:
            return
        program = ["vllm.entrypoints.openai.api_server", "--host", LOOPBACK, "--port", str(self.port)]
        program += flags({"model": str(self.folder / "model"), **ARGUMENTS})
        self.program = FarProgram(VLLM, program, self.log, variables(), ROOT)

    def wait(self):
        until(self._answers, "an answer of the server", 400)

    def _answers(self):
        assert self.is_alive, self.log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except OSError:
            return False

    def kill(self):
        if self.program is not None:
            self.program.kill()
            self.program.wait()
            assert_gone({self.group})


def strike(engine, url, group, number):
    """Send the processes of the server at `url` a signal after its next answer; it then owes another answer.

    One request is held back until the signal is sent. The server may have answered all others by then, and nobody
    misses a server that hangs and owes nothing.
    """
    (server,) = [s for s in engine.servers if s.url == url]
    hold, answered, answer = threading.Lock(), threading.Event(), server.sample

    def struck(*asked):
        is_held = hold.acquire(blocking=False)
        if is_held:
            answered.wait(20)  # it gives up if there is no other request
            os.killpg(group, number)
        reply = answer(*asked)
        answered.set()
        return reply

    server.sample = struck


def assert_gone(groups):
    def living():
        return [p for p, (state, _, group, *_) in stats().items() if int(group) in groups and state != "Z"]

    until(lambda: not living(), "the end of the servers' processes")
