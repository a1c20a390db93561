"""Servers of vLLM: started with the recipe's arguments; the transport of weights depends on their device."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

import torch

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.own_programs import module_command
from verizero.pipeline.rollout.server_client import Client, Program, ServerSetup
from verizero.pipeline.rollout.vllm_arguments import (
    LONGEST_FIELD,
    check_arguments,
    check_heads,
    device_arguments,
    engine_arguments,
    import_vllm,
    save_shape,
)
from verizero.pipeline.rollout.vllm_process import Way, environments, flags, variables
from verizero.pipeline.rollout.vllm_records import choose_runner
from verizero.pipeline.rollout.vllm_remote import Channel, RemoteServer, WeightsPiece
from verizero.pipeline.rollout.vllm_transfer import GlooChannel, VllmChannel, ready_to_send, way_of
from verizero.pipeline.rollout.weights import Named, buckets


class VllmServers:
    """The client of servers of vLLM."""

    kind = "vLLM"
    longest_field = LONGEST_FIELD

    def __init__(self, params: VllmConfig, setup: ServerSetup) -> None:
        self.params, self.setup = params, setup
        self.longest = params.max_model_tokens or setup.policy.longest
        self._model = tempfile.TemporaryDirectory(prefix="verizero-engine-")

    @property
    def way(self) -> Way:
        """The transport of weights to the servers. Raises: ConfigError for one that cannot work here."""
        return way_of(self.params, self.setup.policy.model.device, self.setup.num_ranks)

    def programs(self) -> Sequence[Program]:
        """Return the commands of the recipe's number of servers. Raises: ConfigError."""
        worker, policy, max_rows = import_vllm(), self.setup.policy, self.setup.max_rows
        choose_runner(policy.records, worker.why_no_records())
        save_shape(policy, self._model.name)
        arguments = {"model": self._model.name, **engine_arguments(policy, self.params, max_rows)}
        arguments["weight_transfer_config"] = {"backend": worker.TRANSFERS[self.way]}
        arguments |= device_arguments(policy, self.params, max_rows, worker.on_cpu())
        check_arguments(self.params.arguments, worker.argument_names())
        check_heads(policy.model.config, worker.head_sizes())
        command = [*module_command("verizero.pipeline.rollout.vllm_program"), "--enable-scale-out"]
        command += flags(arguments | self.params.arguments)
        of_servers = environments(self.params, self.way, worker.on_cpu(), torch.cuda.device_count())
        return [Program(command, variables(environment)) for environment in of_servers]

    def connect(self, url: str) -> RemoteServer:
        """Return the client of one server."""
        return RemoteServer(url, self.setup.policy, self.params, self._channel)

    def pieces(self, weights: Named) -> Generator[WeightsPiece, None, None]:
        """Yield pieces of the weights for the channels; for the transport `folder`, one folder with all of them."""
        way, max_bytes = self.way, self.params.bucket_mib * 2**20
        if way != "folder":
            for bucket in buckets(weights, max_bytes):
                yield ready_to_send(bucket, way)
            return
        from safetensors.torch import save_file

        # In the run's folder, which all servers see; removed once all have loaded or are dropped.
        with tempfile.TemporaryDirectory(dir=self.setup.folder, prefix="weights-") as folder:
            for number, bucket in enumerate(buckets(weights, max_bytes)):
                tensors = {name: t.to("cpu").contiguous() for name, t in bucket}
                save_file(tensors, str(Path(folder) / f"{number:05}.safetensors"))
            yield str(Path(folder).absolute())

    def close(self) -> None:
        """Remove the folder from which servers read the model's shape."""
        self._model.cleanup()

    def _channel(self, server: RemoteServer) -> Channel:
        """Return a connection for weights to the server's workers. Raises: ServerLost, EngineError, ConfigError."""
        if (way := self.way) in ("nccl", "ipc"):
            piece_bytes = self.params.bucket_mib * 2**20
            return VllmChannel(server, way, self.setup.policy.model.device, piece_bytes, import_vllm())
        return GlooChannel(server)


def servers(params: VllmConfig, setup: ServerSetup) -> Client:
    """Return the client of servers of vLLM."""
    return VllmServers(params, setup)
