"""The teachers of distillation: a model in every rank, the policy's own reference, or a server of log-probs.

Each gets micro-batches of its prompts with the policy's responses, and returns its distributions at response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError, EngineError, GradingError
from verizero.pipeline.models.comparison import Readout, readout
from verizero.pipeline.models.forward import Targets, can_pack
from verizero.pipeline.models.strictness import given_away
from verizero.pipeline.rl.distillation import ServedLogprobs
from verizero.pipeline.train.backend import Backend
from verizero.verifiers._chat_request import first_choice


@dataclass(frozen=True, slots=True)
class ResponseBatch:
    """One micro-batch: prompts, each followed by the policy's response."""

    input_ids: Tensor
    """int64 [B, T], right-padded."""
    mask: Tensor
    """bool [B, T]: the response tokens; none in an idle micro-batch."""
    targets: Targets
    """Their places, and how the rows are packed."""
    rollout_logprobs: Tensor | None = None
    """float64 [B, T], of the tokens of stale rows; None where no weights need them, and for teachers."""
    stale: Tensor | None = None
    """bool [B]: an older policy sampled the response."""


class Teacher(Protocol):
    """A distribution over the next token at each token of a response."""

    def read(self, batches: Sequence[ResponseBatch]) -> Iterator[Readout | ServedLogprobs]:
        """Yield the teacher's distributions at the N response tokens of each micro-batch, in order, row by row."""
        ...


class ModelTeacher(Teacher):
    """A frozen model, whole in every rank."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)

    def read(self, batches: Sequence[ResponseBatch]) -> Iterator[Readout | ServedLogprobs]:
        """Yield hidden states and the output layer. Rows are padded if this model cannot be packed."""
        for batch in batches:
            targets = batch.targets
            if targets.runs is not None and not can_pack(self.model):
                targets = replace(targets, runs=None)
            with torch.no_grad():
                answer = readout(self.model, batch.input_ids, batch.mask, targets)
            yield answer


class ReferenceTeacher(Teacher):
    """The backend's reference: an earlier state of the policy, with other prompts than the policy."""

    def __init__(self, backend: Backend, whole: bool) -> None:
        """`whole`: yield logits, because the reference's output layer may not stay in memory (LoRA, offload, FSDP)."""
        self._backend, self._whole = backend, whole

    def read(self, batches: Sequence[ResponseBatch]) -> Iterator[Readout | ServedLogprobs]:
        """Yield hidden states and the output layer, or logits."""
        for batch in batches:

            def compute(model: Any, batch: ResponseBatch = batch) -> Readout:
                return readout(model, batch.input_ids, batch.mask, batch.targets, whole=self._whole)

            with torch.no_grad():
                answer = self._backend.compute(compute, "reference")
            yield answer


@dataclass(frozen=True, slots=True)
class Server:
    """A server with vLLM's `prompt_logprobs` at the completions of an OpenAI-compatible interface."""

    url: str
    """Base URL, e.g. http://localhost:8000/v1."""
    model: str
    api_key_variable: str | None = None
    timeout_s: float = 300.0
    retries: int = 3
    backoff_s: float = 1.0
    parallel: int = 8


class ServedTeacher(Teacher):
    """A server of log-probs: of the sampled tokens, or of the k most likely tokens at each of them."""

    def __init__(self, server: Server, top_k: int, vocab: int) -> None:
        """`top_k` 0: the sampled tokens alone. `vocab`: the policy's number of logits."""
        self._server, self._top_k, self._vocab = server, top_k, vocab

    def read(self, batches: Sequence[ResponseBatch]) -> Iterator[Readout | ServedLogprobs]:
        """Yield the server's log-probs, after requests for all rows, several at a time.

        Raises: EngineError if the server does not answer; DataError for tokens that the policy does not have.
        """
        rows = [row for batch in batches for row in _rows_of(batch)]
        with given_away(), ThreadPoolExecutor(self._server.parallel, thread_name_prefix="teacher") as pool:
            try:
                answers = iter(list(pool.map(self._ask, rows)))
            except GradingError as exc:
                pool.shutdown(cancel_futures=True)
                raise EngineError(
                    f"{exc}; check that it runs, and that it gives prompt_logprobs={self._top_k} (vllm serve "
                    "--max-logprobs), then start the same command again"
                ) from exc
        width = self._top_k or 1
        for batch in batches:
            pairs = [pair for _ in _rows_of(batch) for pair in next(answers)]
            ids = torch.tensor([i for i, _ in pairs], dtype=torch.int64, device=batch.input_ids.device)
            logprobs = torch.tensor([v for _, v in pairs], dtype=torch.float64, device=batch.input_ids.device)
            yield ServedLogprobs(ids.reshape(-1, width), logprobs.reshape(-1, width))

    def _ask(self, row: tuple[list[int], int]) -> list[tuple[list[int], list[float]]]:
        """Return ids and log-probs at each response token of one row."""
        ids, start = row
        server = self._server
        body = {
            "model": server.model,
            "prompt": ids,
            "prompt_logprobs": self._top_k,
            "max_tokens": 1,
            "temperature": 0,
        }

        def read(choice: dict[str, Any]) -> list[dict[str, Any]]:
            entries: list[dict[str, Any]] = choice["prompt_logprobs"]
            if len(entries) != len(ids):
                raise ValueError(f"{len(entries)} places for a prompt of {len(ids)} tokens")
            return entries[start:]

        entries_of_tokens = first_choice(
            f"{server.url.rstrip('/')}/completions",
            body,
            read,
            api_key_variable=server.api_key_variable,
            timeout_s=server.timeout_s,
            retries=server.retries,
            backoff_s=server.backoff_s,
            what=f"teacher at {server.url}",
        )
        return [self._read_entry(entry, token) for entry, token in zip(entries_of_tokens, ids[start:], strict=True)]

    def _read_entry(self, entry: dict[str, Any], token: int) -> tuple[list[int], list[float]]:
        """Return the sampled token, or the k most likely ones, with log-probs, from the server's entry for a token."""
        logprobs = {int(name): float(value["logprob"]) for name, value in entry.items()}
        if unknown := [i for i in logprobs if i >= self._vocab]:
            raise DataError(
                f"the teacher at {self._server.url} has a token {unknown[0]}, and the policy {self._vocab} tokens; "
                "serve a model of the policy's own vocabulary"
            )
        # The server adds the sampled token to its k most likely ones, if it is none of them.
        ids = [token] if self._top_k == 0 else sorted(logprobs, key=lambda i: (-logprobs[i], i))[: self._top_k]
        if len(ids) < self._top_k or token not in logprobs:
            raise EngineError(
                f"the teacher at {self._server.url} names {len(logprobs)} tokens in the place of token {token}, and "
                f"{self._top_k or 'that one'} was asked for; serve it with vLLM's prompt_logprobs"
            )
        return ids, [logprobs[i] for i in ids]


def _rows_of(batch: ResponseBatch) -> list[tuple[list[int], int]]:
    """Return the tokens of each row that has a response, and the index at which the response starts."""
    rows = []
    for ids, is_response in zip(batch.input_ids.tolist(), batch.mask.tolist(), strict=True):
        if any(is_response):
            start = is_response.index(True)
            rows.append((ids[: start + sum(is_response)], start))
    return rows
