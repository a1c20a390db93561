"""Servers of vLLM: started with the recipe's arguments, and given weights by the way that suits their place."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

import torch

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.own_programs import module_command
from verizero.pipeline.rollout.server_client import Client, Program, Setting
from verizero.pipeline.rollout.vllm_arguments import (
    ROOM,
    check_arguments,
    check_heads,
    device_arguments,
    engine_arguments,
    import_vllm,
)
from verizero.pipeline.rollout.vllm_process import Way, environments, flags, variables
from verizero.pipeline.rollout.vllm_records import prepare
from verizero.pipeline.rollout.vllm_remote import Channel, Piece, RemoteServer
from verizero.pipeline.rollout.vllm_transfer import GlooChannel, VllmChannel, settled, way_of
from verizero.pipeline.rollout.weights import Named, buckets


class VllmServers:
    """The client of servers of vLLM."""

    kind = "vLLM"
    longest_field = ROOM

    def __init__(self, params: VllmConfig, setting: Setting) -> None:
        self.params, self.setting = params, setting
        self.longest = params.max_model_tokens or setting.policy.context
        self._model = tempfile.TemporaryDirectory(prefix="verizero-engine-")

    @property
    def way(self) -> Way:
        """The way of weights to the servers. Raises: ConfigError for one that cannot work here."""
        return way_of(self.params, self.setting.policy.model.device, self.setting.num_ranks)

    def programs(self) -> Sequence[Program]:
        """Return the commands of the recipe's number of servers. Raises: ConfigError."""
        worker, policy, max_rows = import_vllm(), self.setting.policy, self.setting.max_rows
        prepare(policy.records, worker.why_no_records())
        policy.model.config.save_pretrained(self._model.name)
        arguments = {"model": self._model.name, **engine_arguments(policy, self.params, max_rows)}
        arguments["weight_transfer_config"] = {"backend": worker.TRANSFERS[self.way]}
        arguments |= device_arguments(policy, self.params, max_rows, worker.on_cpu())
        check_arguments(self.params.arguments, worker.argument_names())
        check_heads(policy.model.config, worker.head_sizes())
        command = [*module_command("vllm.entrypoints.openai.api_server"), "--enable-scale-out"]
        command += flags(arguments | self.params.arguments)
        own = environments(self.params, self.way, worker.on_cpu(), torch.cuda.device_count())
        return [Program(command, variables(environment)) for environment in own]

    def connect(self, url: str) -> RemoteServer:
        """Return the client of one server."""
        return RemoteServer(url, self.setting.policy, self.params, self._channel)

    def pieces(self, weights: Named) -> Generator[Piece, None, None]:
        """Yield pieces of the weights for the channels; for the way through a folder, the one that has all of them."""
        way, most = self.way, self.params.bucket_mib * 2**20
        if way != "folder":
            for bucket in buckets(weights, most):
                yield settled(bucket, way)
            return
        from safetensors.torch import save_file

        # In the run's folder, which all servers see; removed once all have loaded or are dropped.
        with tempfile.TemporaryDirectory(dir=self.setting.folder, prefix="weights-") as folder:
            for number, bucket in enumerate(buckets(weights, most)):
                tensors = {name: t.to("cpu").contiguous() for name, t in bucket}
                save_file(tensors, str(Path(folder) / f"{number:05}.safetensors"))
            yield str(Path(folder).absolute())

    def close(self) -> None:
        """Remove the folder from which servers read the model's shape."""
        self._model.cleanup()

    def _channel(self, server: RemoteServer) -> Channel:
        """Connect the policy's device with the server's workers. Raises: ServerLost, EngineError, ConfigError."""
        if (way := self.way) in ("nccl", "ipc"):
            piece_bytes = self.params.bucket_mib * 2**20
            return VllmChannel(server, way, self.setting.policy.model.device, piece_bytes, import_vllm())
        return GlooChannel(server)


def servers(params: VllmConfig, setting: Setting) -> Client:
    """Return the client of servers of vLLM."""
    return VllmServers(params, setting)
