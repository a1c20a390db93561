"""Servers of vLLM: started with the recipe's arguments; the transport of weights depends on their device."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence

import torch

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.host.child import module_command
from verizero.pipeline.rollout.server_client import Client, Program, ServerSetup
from verizero.pipeline.rollout.server_nodes import folder_of
from verizero.pipeline.rollout.vllm_arguments import (
    LONGEST_FIELD,
    Way,
    checked_arguments,
    environments,
    flags,
    import_vllm,
    variables,
)
from verizero.pipeline.rollout.vllm_remote import (
    Channel,
    GlooChannel,
    NcclChannel,
    RemoteServer,
    WeightsPiece,
    ready_to_send,
    way_of,
)
from verizero.pipeline.rollout.weights import Named, buckets


class VllmServers:
    """The client of servers of vLLM."""

    kind = "vLLM"
    longest_field = LONGEST_FIELD

    def __init__(self, params: VllmConfig, setup: ServerSetup) -> None:
        self.params, self.setup = params, setup
        self.longest = params.max_model_tokens or setup.policy.longest
        self._model: tempfile.TemporaryDirectory[str] | None = None

    @property
    def way(self) -> Way:
        """The transport of weights to the servers. Raises: ConfigError for one that cannot work here."""
        return way_of(self.params, self.setup.policy.model.device)

    def programs(self) -> Sequence[Program]:
        """Return the commands of the recipe's number of servers. Raises: ConfigError."""
        worker, policy, params = import_vllm(), self.setup.policy, self.params
        if self.setup.nodes and not worker.on_cpu():
            gpus = range(params.servers * (each := params.tensor_parallel))
            params = params.model_copy(update={"devices": tuple(tuple(gpus[i : i + each]) for i in gpus[::each])})
        arguments = checked_arguments(worker, policy, params, self.setup.max_rows)
        # Other nodes see the run's folder, and not this machine's /tmp.
        shared = folder_of(self.setup.folder) if self.setup.nodes else None
        self._model = tempfile.TemporaryDirectory(prefix="verizero-engine-", dir=shared)
        policy.model.config.save_pretrained(self._model.name)  # vLLM makes a model without weights of it
        arguments |= {"model": self._model.name, "weight_transfer_config": {"backend": worker.TRANSFERS[self.way]}}
        command = [*module_command("vllm.entrypoints.openai.api_server"), "--enable-scale-out"]
        command += flags(arguments | params.arguments)
        of_servers = environments(params, worker.on_cpu(), torch.cuda.device_count())
        return [Program(command, variables(environment)) for environment in of_servers]

    def connect(self, url: str) -> RemoteServer:
        """Return the client of one server."""
        return RemoteServer(url, self.setup.policy, self.params, self._channel)

    def pieces(self, weights: Named) -> Generator[WeightsPiece, None, None]:
        """Yield pieces of the weights for the channels."""
        way = self.way
        for bucket in buckets(weights, self.params.bucket_mib * 2**20):
            yield ready_to_send(bucket, way)

    def close(self) -> None:
        """Remove the folder from which servers read the model's shape."""
        if self._model is not None:
            self._model.cleanup()

    def _channel(self, server: RemoteServer) -> Channel:
        """Return a connection for weights to the server's workers. Raises: ServerLost, EngineError, ConfigError."""
        if self.way == "gloo":
            return GlooChannel(server)
        piece_bytes = self.params.bucket_mib * 2**20
        return NcclChannel(server, self.setup.policy.model.device, piece_bytes, import_vllm())


def servers(params: VllmConfig, setup: ServerSetup) -> Client:
    """Return the client of servers of vLLM."""
    return VllmServers(params, setup)
