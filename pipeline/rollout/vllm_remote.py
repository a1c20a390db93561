"""A client of one vLLM server: prompts and responses as token ids, weights over a channel or in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Completion, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.http_client import HttpClient
from verizero.pipeline.rollout.server_client import ServerLost
from verizero.pipeline.rollout.server_pool import in_thread
from verizero.pipeline.rollout.vllm_adapters import NAME, NOWHERE, check_adapters, settings_of
from verizero.pipeline.rollout.vllm_arguments import check_spans, finish_reason, options
from verizero.pipeline.rollout.vllm_records import decode_array, kept_tokens, routing

POLL_S = 0.0005
WeightsPiece = Sequence[tuple[str, Tensor]] | str
"""Some weights, on the device from which a channel reads; or the path of a folder with all of them."""


class Channel(Protocol):
    """A connection that sends weights to a server's workers."""

    def send(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """Send one piece of the weights. Raises: ServerLost, EngineError."""
        ...

    def leave(self) -> None:
        """End the connection; may take a while."""
        ...


class RemoteServer(HttpClient):
    """The server at `url`. Any number of threads may call it at once."""

    def __init__(self, url: str, policy: EngineModel, config: VllmConfig, connect: Connect) -> None:
        """`connect` makes the channel for weights at the first update, and again after a restart of the server."""
        super().__init__(url, config, "rollout.vllm", "is it vLLM 0.32?")
        self._policy = policy
        self._connect_weights = connect
        self._channel: Channel | None = None
        self._is_updating = False
        self._last_version: str | None = None
        """The version that the server reported last; None amid an update. A different one later means a restart."""

    def sample(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling, label: str) -> Completion:
        """Return one response. Raises: as `ask`, and ServerLost if weights of another version drew it."""
        body: dict[str, Any] = {"token_ids": list(prompt_ids)}
        body["sampling_params"] = options(self._policy, sampling, seed)
        if self._policy.adapters is not None:
            body["model"] = NAME
        answer = self.ask("POST", "/inference/v1/generate", body)
        (choice,) = answer["choices"]
        logprobs = tuple(float(c["logprob"]) for c in (choice["logprobs"] or {}).get("content") or ())
        drawn = tuple(choice["token_ids"])
        if len(logprobs) != len(drawn):
            raise EngineError(f"{self.url} gave {len(logprobs)} log-probs for {len(drawn)} tokens; {self.hint}")
        # Weights may change during a response; each part must be of the version `label`.
        spans = [(s["version"], s["start"], s["end"]) for s in choice.get("weight_versions") or ()]
        try:
            check_spans(spans, label)
            reason = finish_reason(choice["finish_reason"])
        except EngineError as exc:
            raise ServerLost(f"{self.url}: {exc}") from exc
        kept = kept_tokens(choice.get("sampling_mask"), drawn, sampling)
        experts = decode_array(choice.get("routed_experts"))
        return Completion(drawn, logprobs, reason, kept, routing(experts, len(prompt_ids), len(drawn), sampling))

    @property
    def version(self) -> str:
        """The version of its weights, as the server reports it now."""
        self._last_version = str(self.ask_for("weight_version", "GET", "/weight_info"))
        return self._last_version

    def was_restarted(self) -> bool:
        """True if the server answers and reports another version than last time."""
        answer, before = self.ask_briefly("/weight_info"), self._last_version
        if not isinstance(answer, dict) or "weight_version" not in answer:
            return False
        self._last_version = str(answer["weight_version"])
        is_another = self._last_version != before
        # The workers of a server that was restarted are not in our group: a new one is formed.
        if is_another and self._channel is not None:
            in_thread(self._remove_channel().leave)
        return is_another

    def start_update(self) -> None:
        """Prepare the server for weights; connect to its workers at the first time."""
        if self._channel is None:
            # An update that broke off would make the server refuse to start another one.
            self.ask("POST", "/collective_rpc", {"method": "forget_update"})
            self._channel = self._connect_weights(self)
        self.ask("POST", "/start_weight_update")
        self._is_updating = True

    def take_weights(self, piece: WeightsPiece) -> None:
        """Send one piece of the weights, or the path of a folder with all of them."""
        self._last_version = None  # until it is confirmed: if it is lost now, it may come back with any
        if isinstance(piece, str):
            self.ask("POST", "/collective_rpc", {"method": "load_folder", "args": [piece]})
            return
        if not self._is_updating:
            self.start_update()
        assert self._channel is not None
        self._channel.send(piece)

    def confirm(self, label: str) -> None:
        """End the update and call the weights `label`. Raises: ServerLost if the server does not confirm it."""
        if self._is_updating:
            self.ask("POST", "/finish_weight_update", {"weight_version": label})
            self._is_updating = False
        else:
            self.ask("POST", "/update_weight_version", {"new_version": label})
        self._put_adapters()
        # Cached keys and values are of the old weights.
        if not self.ask_for("success", "POST", "/reset_prefix_cache"):
            raise ServerLost(f"{self.url} kept its prefix cache, which is of older weights")
        if (actual := self.version) != label:
            raise ServerLost(f"{self.url} has weights of version {actual} after version {label} was published")

    def _put_adapters(self) -> None:
        """Let the server use the adapters of the update. Raises: ServerLost, EngineError if it has others."""
        if self._policy.adapters is None:
            return
        put = {"method": "put_adapters", "args": [settings_of(self._policy.adapters.config)]}
        check_adapters(self.ask("POST", "/collective_rpc", put)["results"], self.url)
        if NAME not in [model["id"] for model in self.ask_for("data", "GET", "/v1/models")]:
            self.ask("POST", "/v1/load_lora_adapter", {"lora_name": NAME, "lora_path": NOWHERE}, has_json=False)

    def close(self) -> None:
        """Leave the channel; the server itself keeps running."""
        if self._channel is not None:
            self._remove_channel().leave()

    def _remove_channel(self) -> Channel:
        """Forget the channel and return it; an update on it counts as broken off."""
        assert self._channel is not None
        channel, self._channel, self._is_updating = self._channel, None, False
        return channel


Connect = Callable[[RemoteServer], Channel]
