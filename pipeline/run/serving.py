"""A trained model behind the gateway, or in a terminal: requests that wait are answered together."""

from __future__ import annotations

import logging
import queue
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.environments.gateway.api import Answer, TurnRequest, num_chars
from verizero.pipeline.environments.gateway.exchange import Exchange, Pending
from verizero.pipeline.errors import ConfigError, DataError, EngineError
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.load import eos_ids, load_model, load_tokenizer
from verizero.pipeline.rollout.engine import Completion, Engine, Request, Sampling
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.service import Refused
from verizero.pipeline.types import Message, Prompt

HOME = str(RunConfig.model_fields["output"].default)
"""The folder under which models of GGUF files are kept: that of the runs, where a recipe names no other."""
TOGETHER_S = 0.005
"""Seconds that a request waits for others that can be computed with it."""
EMPTY_PROMPT = Prompt("request", "", "", None)
"""The prompt of conversations that bring all their messages."""
LOG = logging.getLogger(__name__)
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True)
class Served:
    """A model that answers conversations."""

    engine: Engine
    conversing: Conversing
    context: int | None
    """The longest sequence in tokens."""
    sampling: Sampling
    """Values for all that a request does not set."""
    max_chars: int | None = None
    """The most characters that `context` tokens can hold."""

    def count(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> int:
        """Return the number of tokens in a conversation's prompt. Raises: DataError by the template; Refused."""
        self._check_length(messages, tools)
        return len(self.conversing.begin(EMPTY_PROMPT, messages, tools))

    def answer(self, turns: Sequence[TurnRequest], seeds: Sequence[int]) -> list[Answer | Refused]:
        """Return an answer to each request. Requests with equal sampling options are computed together."""
        out: list[Answer | Refused | None] = [None] * len(turns)
        groups: dict[Sampling, list[tuple[int, tuple[int, ...]]]] = {}
        for i, turn in enumerate(turns):
            try:
                self._check_length(turn.messages, turn.tools)
                ids = self.conversing.begin(EMPTY_PROMPT, turn.messages, turn.tools)
                groups.setdefault(self._sampling(turn, len(ids)), []).append((i, ids))
            except Exception as exc:
                out[i] = refusal(exc)
        for sampling, members in groups.items():
            requests = [Request(ids, (_seed(turns[i], seeds[i]),)) for i, ids in members]
            try:
                completions = self.engine.generate(requests, sampling)
            except Exception as exc:
                for i, _ in members:
                    out[i] = refusal(exc)
                continue
            for (i, ids), (completion,) in zip(members, completions, strict=True):
                try:
                    out[i] = self._answer(turns[i], ids, completion)
                except Exception as exc:
                    out[i] = refusal(exc)
        return [o if o is not None else Refused(500, "no answer was made") for o in out]

    def _check_length(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """Raise Refused for a request that is too long for the context, without the time to tokenize it."""
        if self.max_chars is not None and (num := num_chars(messages, tools)) > self.max_chars:
            raise Refused(
                400,
                f"the request has {num} characters; {self.context} tokens hold at most {self.max_chars}",
            )

    def _sampling(self, request: TurnRequest, num_prompt: int) -> Sampling:
        """Return how this request is sampled; the API has checked its values. Raises: Refused for a full context."""
        values = request.decided
        max_tokens = min([self.sampling.max_tokens, *(values[name] for name in LIMITS if name in values)])
        temperature = values.get("temperature", self.sampling.temperature)
        top_p, top_k = values.get("top_p", self.sampling.top_p), values.get("top_k", self.sampling.top_k)
        if self.context is not None:
            max_tokens = min(max_tokens, self.context - num_prompt)
            if max_tokens < 1:
                raise Refused(400, f"the maximum context length is {self.context} tokens, the prompt has {num_prompt}")
        return Sampling(max_tokens, temperature, top_p, top_k)

    def _answer(self, request: TurnRequest, ids: Sequence[int], completion: Completion) -> Answer:
        turn = sum(m.role == "assistant" for m in request.messages)
        read = self.conversing.read(completion.token_ids, completion.finish_reason, turn, request.tools)
        was_cut = completion.finish_reason == "length"
        return Answer(secrets.token_hex(8), read.message, len(ids), len(completion.token_ids), was_cut)


def refusal(problem: Exception) -> Refused:
    """Return the refusal for a request that raised an exception; other requests continue."""
    if isinstance(problem, Refused):
        return problem
    if isinstance(problem, DataError):
        return Refused(400, str(problem))
    if not isinstance(problem, EngineError):
        LOG.error("a request failed", exc_info=problem)
    return Refused(500, f"{type(problem).__name__}: {problem!s:.300}")


def _seed(request: TurnRequest, seed: int) -> int:
    request_seed = request.decided.get("seed")
    return seed if request_seed is None else abs(int(request_seed))


def serve_forever(served: Served, exchange: Exchange) -> None:
    """Answer the requests of an exchange until it raises KeyboardInterrupt."""
    while True:
        serve_waiting(served, exchange, None)


def serve_waiting(served: Served, exchange: Exchange, timeout_s: float | None) -> int:
    """Answer the next request, and those that come with it; return their number, 0 if none came in time."""
    try:
        waiting: list[Pending] = [exchange.requests.get(timeout=timeout_s)]
    except queue.Empty:
        return 0
    while True:
        try:
            waiting.append(exchange.requests.get(timeout=TOGETHER_S))
        except queue.Empty:
            break
    num = len(waiting)
    for pending in waiting:
        if pending.only_counts:
            exchange.answer_count(pending, served.count)
    waiting = [p for p in waiting if not p.only_counts and not p.is_abandoned]
    answers = served.answer([p.request for p in waiting], [secrets.randbits(62) for _ in waiting])
    for pending, answer in zip(waiting, answers, strict=True):
        exchange.answer(pending, answer) if isinstance(answer, Answer) else exchange.refuse(pending, answer)
    return num


def recipe_of(path: str) -> RunConfig | None:
    """Return the recipe of the run in the folder `path`; None if it is no run's folder."""
    folder = Path(path)
    is_run = (folder / "model").is_dir() and (folder / "recipe.yaml").is_file()
    return load_recipe(folder / "recipe.yaml") if is_run else None


def folder_of_model(path: str) -> str:
    """Return the folder of a run's model, of a model, or of what a GGUF file was made into; or a hub id.

    Raises: ConfigError for a folder without a model.
    """
    folder = Path(path)
    if (folder / "model").is_dir():
        path = str(folder / "model")
    elif folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has neither model/ nor config.json; give a run's folder, or a model's")
    return model_folder(path, Path(HOME), field="model")


def load_served(
    path: str, template: str | Template | None, sampling: Sampling, device: str, dtype: str = "float32"
) -> Served:
    """Return the model of a run's folder, with that run's template, or of a model's folder, GGUF file or hub id.

    `template` replaces the run's; without either it is the tokenizer's chat template, if it has one.
    Raises: ConfigError for a folder without a model; DataError for a template that the tokenizer cannot write.
    """
    recipe = recipe_of(path)
    how = None if recipe is None else recipe.data.template
    path = folder_of_model(path)
    tokenizer = load_tokenizer(path)
    if template is not None or how is None:
        how = Template.model_validate(template or ("chat" if tokenizer.chat_template else "plain"))
    model: Any = load_model(path, dtype, device)
    engine = TorchEngine(model, eos_ids(model, tokenizer), tokenizer.pad_token_id)
    engine.publish(0)
    context = getattr(model.config, "max_position_embeddings", None)
    longest = max(map(len, tokenizer.get_vocab()))
    max_chars = None if context is None else context * longest
    return Served(engine, turns_of(Renderer(tokenizer, how)), context, sampling, max_chars)
