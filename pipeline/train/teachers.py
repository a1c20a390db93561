"""The teachers of distillation: a model held by every rank, the policy's own reference, or a server's log-probs.

Each reads micro-batches of its own prompts with the policy's responses, and says what it finds at the response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError, EngineError, GradingError
from verizero.pipeline.models.comparison import Readout, readout
from verizero.pipeline.rl.distillation import Told
from verizero.pipeline.train.backend import Backend
from verizero.verifiers._chat_request import first_choice


@dataclass(frozen=True, slots=True)
class Reading:
    """One micro-batch as the teacher reads it: each row ends with the policy's response."""

    input_ids: Tensor
    """int64 [B, T], right-padded."""
    where: Tensor
    """bool [B, T]: the response tokens; none in an idle micro-batch."""


class Teacher(Protocol):
    """Says how likely it finds the tokens of responses, and all others in their place."""

    def read(self, batches: Sequence[Reading]) -> Iterator[Readout | Told]:
        """Yield what the teacher says at the N response tokens of each micro-batch, in order, row by row."""
        ...


class HeldTeacher(Teacher):
    """A frozen model that every rank holds whole."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)

    def read(self, batches: Sequence[Reading]) -> Iterator[Readout | Told]:
        """Yield hidden states and the output layer."""
        for batch in batches:
            with torch.no_grad():
                answer = readout(self.model, batch.input_ids, batch.where)
            yield answer


class OwnTeacher(Teacher):
    """The backend's reference: an earlier state of the policy, which reads other prompts than the policy."""

    def __init__(self, backend: Backend, whole: bool) -> None:
        """`whole`: yield logits, because the reference has no output layer that stays where it is (LoRA, offload)."""
        self._backend, self._whole = backend, whole

    def read(self, batches: Sequence[Reading]) -> Iterator[Readout | Told]:
        """Yield hidden states and the output layer, or logits."""
        for batch in batches:

            def compute(model: Any, batch: Reading = batch) -> Readout:
                return readout(model, batch.input_ids, batch.where, whole=self._whole)

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
    """A server that is asked for the log-probs of the sampled tokens, or of its k most likely ones in their places."""

    def __init__(self, server: Server, top_k: int, vocab: int) -> None:
        """`top_k` 0: the sampled tokens alone. `vocab`: the policy's number of logits."""
        self._server, self._top_k, self._vocab = server, top_k, vocab

    def read(self, batches: Sequence[Reading]) -> Iterator[Readout | Told]:
        """Yield the log-probs that the server reports; all rows are asked for first, several at a time.

        Raises: EngineError if the server does not answer; DataError for tokens that the policy does not have.
        """
        rows = [row for batch in batches for row in _rows_of(batch)]
        with ThreadPoolExecutor(self._server.parallel, thread_name_prefix="teacher") as pool:
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
            yield Told(ids.reshape(-1, width), logprobs.reshape(-1, width))

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
            places: list[dict[str, Any]] = choice["prompt_logprobs"]
            if len(places) != len(ids):
                raise ValueError(f"{len(places)} places for a prompt of {len(ids)} tokens")
            return places[start:]

        places = first_choice(
            f"{server.url.rstrip('/')}/completions",
            body,
            read,
            api_key_variable=server.api_key_variable,
            timeout_s=server.timeout_s,
            retries=server.retries,
            backoff_s=server.backoff_s,
            what=f"teacher at {server.url}",
        )
        return [self._of_place(place, token) for place, token in zip(places, ids[start:], strict=True)]

    def _of_place(self, place: dict[str, Any], token: int) -> tuple[list[int], list[float]]:
        """Return the sampled token, or the k most likely ones, with log-probs."""
        known = {int(name): float(entry["logprob"]) for name, entry in place.items()}
        if beyond := [i for i in known if i >= self._vocab]:
            raise DataError(
                f"the teacher at {self._server.url} has a token {beyond[0]}, and the policy {self._vocab} tokens; "
                "serve a model of the policy's own vocabulary"
            )
        # The server adds the sampled token to its k most likely ones, where it is none of them.
        most = [token] if self._top_k == 0 else sorted(known, key=lambda i: (-known[i], i))[: self._top_k]
        if len(most) < self._top_k or token not in known:
            raise EngineError(
                f"the teacher at {self._server.url} names {len(known)} tokens in the place of token {token}, and "
                f"{self._top_k or 'that one'} was asked for; serve it with vLLM's prompt_logprobs"
            )
        return most, [known[i] for i in most]


def _rows_of(batch: Reading) -> list[tuple[list[int], int]]:
    """Return the tokens of each row that has a response, and the index at which that starts."""
    rows = []
    for ids, where in zip(batch.input_ids.tolist(), batch.where.tolist(), strict=True):
        if any(where):
            start = where.index(True)
            rows.append((ids[: start + sum(where)], start))
    return rows
