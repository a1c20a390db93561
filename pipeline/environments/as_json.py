"""Prompts, messages and replies as JSON, for environments in another process; and checks of what comes back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from verizero.pipeline.environments.base import (
    BoundEnvironment,
    CountsTokens,
    Environment,
    Reply,
    Start,
    is_deterministic,
    load,
)
from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.types import Message, Prompt
from verizero.sandbox import settings

MESSAGE = TypeAdapter(Message)
START = TypeAdapter(Start)
REPLY = TypeAdapter(Reply)


def prompt_json(prompt: Prompt) -> dict[str, Any]:
    """Return the part of a prompt that is sent to an environment in another process."""
    return {
        "id": prompt.id,
        "question": prompt.asked,
        "reference": prompt.reference,
        "domain": prompt.domain,
        "system": prompt.system,
    }


def message_json(message: Message) -> Any:
    """Return a message as a JSON value."""
    return MESSAGE.dump_python(message)


def start_of(value: Any, what: str) -> Start:
    """Return a JSON value as an environment's beginning. Raises: EnvironmentFailed if it is malformed."""
    try:
        return START.validate_python({} if value is None else value)
    except ValidationError as exc:
        raise EnvironmentFailed(f"{what}: its start is malformed: {_first(exc)}") from exc


def reply_of(value: Any, what: str) -> Reply:
    """Return a JSON value as an environment's answer. Raises: EnvironmentFailed if it is malformed or not valid."""
    try:
        reply = REPLY.validate_python(value)
    except ValidationError as exc:
        raise EnvironmentFailed(f"{what}: its answer is malformed: {_first(exc)}") from exc
    if fault := fault_of(reply):
        raise EnvironmentFailed(f"{what}: its answer {fault}")
    return reply


def fault_of(reply: Reply) -> str:
    """Return in words why an environment's answer is not valid; empty if it is."""

    if any(m.role == "assistant" for m in reply.messages):
        return "has a message of the assistant, whose words are the policy's alone"
    if not reply.done and not reply.messages and reply.history is None:
        return "has no message although the episode is not done, so the policy has nothing to read"
    if reply.reward is not None and not math.isfinite(reply.reward):
        return f"has the reward {reply.reward}, which is not finite"
    if reply.outcome is not None and not reply.done:
        return "has an outcome although the episode is not done"
    if reply.outcome is not None and not 0.0 <= reply.outcome.score <= 1.0:
        return f"has the score {reply.outcome.score}, which is outside [0, 1]"
    return ""


class JsonEnvironment:
    """An environment of this project that takes and returns JSON, for the place `process`."""

    def __init__(self, environment: Environment) -> None:
        """`environment` is a new episode."""
        self._environment = environment

    def start(self) -> Any:
        """Return the beginning, with what the environment wants: see far.py."""
        begun = START.dump_python(self._environment.start())
        return {
            **begun,
            "deterministic": is_deterministic(self._environment),
            "counts_tokens": isinstance(self._environment, CountsTokens),
            "takes_unread": bool(getattr(self._environment, "takes_unread", False)),
        }

    def count_tokens(self, prompt_tokens: int, sampled_tokens: int, was_cut: bool) -> None:
        """Pass on the size of the turn, before its `step`."""
        if isinstance(self._environment, CountsTokens):
            self._environment.count_tokens(prompt_tokens, sampled_tokens, was_cut)

    def step(self, message: Mapping[str, Any]) -> Any:
        """Return the answer to a message."""
        return REPLY.dump_python(self._environment.step(MESSAGE.validate_python(message)))

    def close(self) -> None:
        """End the episode."""
        self._environment.close()


def json_environment(name: str | None, path: str | None, params: Mapping[str, Any], base: str | None) -> Any:
    """Return a function (params, prompt, task_seed, sample_seed) that makes episodes of the environment, in JSON.

    Programs that the policy writes run in the sandbox of the process that started this one.
    """
    settings.take_over()
    folder = None if base is None else Path(base)
    bound: BoundEnvironment = load(name, path, folder).bind(params, folder)

    def make(_: Any, prompt: Mapping[str, Any], task_seed: int, sample_seed: int) -> JsonEnvironment:
        return JsonEnvironment(bound.make(Prompt(verifier="environment", **prompt), task_seed, sample_seed))

    return make


def _first(exc: ValidationError) -> str:
    error = exc.errors()[0]
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}, got {error['input']!r:.80}"
