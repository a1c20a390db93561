"""Environments as JSON: what crosses to another process or machine, and the checks of what comes back."""

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
    """Return what an environment elsewhere learns of a prompt."""
    return {
        "id": prompt.id,
        "question": prompt.question,
        "reference": prompt.reference,
        "domain": prompt.domain,
        "system": prompt.system,
    }


def message_json(message: Message) -> Any:
    """Return a message as JSON holds it."""
    return MESSAGE.dump_python(message)


def start_of(value: Any, what: str) -> Start:
    """Return an environment's beginning. Raises: EnvironmentFailed if it is none."""
    try:
        return START.validate_python({} if value is None else value)
    except ValidationError as exc:
        raise EnvironmentFailed(f"{what}: its start is malformed: {_first(exc)}") from exc


def reply_of(value: Any, what: str) -> Reply:
    """Return an environment's answer. Raises: EnvironmentFailed if it is none, or cannot be continued from."""
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


class Plain:
    """An environment of ours that takes and returns JSON: the far side of the place `process`."""

    def __init__(self, environment: Environment) -> None:
        """`environment` is a new episode."""
        self._environment = environment

    def start(self) -> Any:
        """Return the beginning, and with it what the environment can do and wants."""
        begun = START.dump_python(self._environment.start())
        return {
            **begun,
            "deterministic": is_deterministic(self._environment),
            "counts_tokens": isinstance(self._environment, CountsTokens),
            "takes_unread": bool(getattr(self._environment, "takes_unread", False)),
        }

    def count_tokens(self, prompt_tokens: int, sampled_tokens: int, was_cut: bool) -> None:
        """Note the size of the turn that the next `step` brings."""
        if isinstance(self._environment, CountsTokens):
            self._environment.count_tokens(prompt_tokens, sampled_tokens, was_cut)

    def step(self, message: Mapping[str, Any]) -> Any:
        """Return the answer to a message."""
        return REPLY.dump_python(self._environment.step(MESSAGE.validate_python(message)))

    def close(self) -> None:
        """End the episode."""
        self._environment.close()


def plain(name: str | None, path: str | None, params: Mapping[str, Any], base: str | None) -> Any:
    """Return a function (params, prompt, task_seed, sample_seed) that makes episodes of the environment, as JSON.

    The policy's programs run where those of the process run that started this one.
    """
    settings.take_over()
    folder = None if base is None else Path(base)
    bound: BoundEnvironment = load(name, path, folder).bind(params, folder)

    def make(_: Any, prompt: Mapping[str, Any], task_seed: int, sample_seed: int) -> Plain:
        return Plain(bound.make(Prompt(verifier="environment", **prompt), task_seed, sample_seed))

    return make


def _first(exc: ValidationError) -> str:
    error = exc.errors()[0]
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}, got {error['input']!r:.80}"
