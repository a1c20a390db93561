"""Servers of `toy_server.py` as a rollout engine."""

from __future__ import annotations

import sys
import tempfile
from base64 import b64encode
from collections.abc import Generator, Sequence
from typing import ClassVar

from pydantic import Field
from safetensors.torch import save

from verizero.pipeline.config.servers import ServerParams
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Completion, Sampling
from verizero.pipeline.rollout.http_client import HttpClient
from verizero.pipeline.rollout.server_client import Client, Program, ServerLost, ServerSetup
from verizero.pipeline.rollout.weights import Named, buckets


class Params(ServerParams):
    """The recipe's `rollout.server`."""

    may_change: ClassVar[frozenset[str]] = ServerParams.may_change | {"threads"}
    threads: int = Field(1, ge=1, description="threads of each server")


class ToyServer(HttpClient):
    """The client of one server."""

    def __init__(self, url: str, params: Params, setup: ServerSetup) -> None:
        super().__init__(url, params, setup.field, "is it toy_server.py?")
        self.eos_ids = setup.policy.eos_ids
        self.last_label = ""

    def sample(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling, label: str) -> Completion:
        if sampling.is_cut or sampling.temperature == 0:
            raise EngineError("toy servers draw from the whole vocabulary; drop rollout.top_p and rollout.top_k")
        body = {"prompt_ids": list(prompt_ids), "seed": seed, "eos_ids": self.eos_ids}
        body |= {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
        reply = self.ask("POST", "/sample", body)
        if reply["label"] != label:
            raise ServerLost(f"{self.url} drew with weights of version {reply['label']} in place of {label}")
        return Completion(tuple(reply["token_ids"]), tuple(reply["logprobs"]), reply["finish_reason"])

    def take_weights(self, piece: str) -> None:
        self.ask("POST", "/weights", {"tensors": piece})

    def confirm(self, label: str) -> None:
        self.ask("POST", "/label", {"label": label})
        self.last_label = self.ask_for("label", "GET", "/label")
        if self.last_label != label:
            raise ServerLost(f"{self.url} has weights of version {self.last_label} after {label} was published")

    def was_restarted(self) -> bool:
        reply = self.ask_briefly("/label")
        return reply is not None and reply["label"] != self.last_label

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class ToyServers:
    """The kind of server."""

    kind = "Toy"
    longest_field = "the model's context"

    def __init__(self, params: Params, setup: ServerSetup) -> None:
        self.params, self.setup = params, setup
        self.longest = setup.policy.longest
        self.folder = tempfile.TemporaryDirectory(prefix="toy-")

    def programs(self) -> Sequence[Program]:
        self.setup.policy.model.config.save_pretrained(self.folder.name)
        words = ["--model", self.folder.name, "--threads", str(self.params.threads)]
        return [Program([sys.executable, "-m", "toy_server", *words])] * self.params.servers

    def connect(self, url: str) -> ToyServer:
        return ToyServer(url, self.params, self.setup)

    def pieces(self, weights: Named) -> Generator[str, None, None]:
        for piece in buckets(weights, self.params.bucket_mib * 2**20):
            yield b64encode(save({name: tensor.cpu().contiguous() for name, tensor in piece})).decode()

    def close(self) -> None:
        self.folder.cleanup()


def servers(params: Params, setup: ServerSetup) -> Client:
    return ToyServers(params, setup)
