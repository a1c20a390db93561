"""The protocol of an environment: it starts an episode, answers the policy's messages, and is closed.

An environment is used for one episode. It sees messages, never tokens. Its own exceptions are failures of the
infrastructure: the episode then has no reward and leaves its group. What the policy did wrong is a message to it.
Here too: the answer in a message, and the verdict of an environment's own reward, which has a range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, get_type_hints, runtime_checkable

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError, EnvironmentFailed
from verizero.pipeline.types import Message, Verdict

BASE = "base"
"""Key in pydantic's validation context: the folder that relative paths start from, or None."""
P = TypeVar("P", bound=BaseModel)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the policy's chat template shows it.

    Example: ToolSchema("add", "Return a + b.", {"type": "object", "properties": {"a": {"type": "integer"}}})
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: an object."""


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of an episode."""

    messages: tuple[Message, ...] = ()
    """The conversation so far: system and user messages. Empty: the prompt's own question, as without environment."""
    tools: tuple[ToolSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool, for the counts: wrong means that arguments or the tool's name were the policy's mistake."""

    name: str
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """An environment's answer to a message of the policy. Example: Reply((Message("user", "lower"),), reward=-0.1)"""

    messages: tuple[Message, ...] = ()
    """Messages of tools and users, in order, that the policy is shown next. Empty only if the episode is done."""
    done: bool = False
    reward: float | None = None
    """The reward of this turn: any finite number."""
    outcome: Verdict | None = None
    """With `done`: the verdict on the episode. None: the prompt's verifier reads the last message."""
    history: tuple[Message, ...] | None = None
    """In place of `messages`: the whole conversation that the policy is shown next, perhaps of another branch."""
    tools: tuple[ToolSchema, ...] | None = None
    """With `history`: the tools of that conversation."""
    answer: str | None = None
    """With `done`: the text that a verifier grades, where it is not the policy's last message."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Further numbers for the metrics, by name."""
    uses: tuple[ToolUse, ...] = ()
    """Calls that were made, for the counts of each tool."""


class Environment(Protocol):
    """The environment of one episode, made by a plug-in's `environment(params, prompt, task_seed, sample_seed)`.

    `task_seed` is equal for all members of a group, so that they get one task; `sample_seed` differs. A class that
    cannot repeat itself with equal seeds and messages has the attribute `deterministic = False`.
    """

    def start(self) -> Start:
        """Return the beginning. Called once, before anything else."""
        ...

    def step(self, message: Message) -> Reply:
        """Return the answer to the policy's message, whose calls are parsed. An exception is the environment's own."""
        ...

    def close(self) -> None:
        """Release the episode's resources. Always called, perhaps twice."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """An environment that gets the size of each turn before `step`."""

    def count_tokens(self, prompt_tokens: int, sampled_tokens: int, was_cut: bool) -> None:
        """Receive the size of the turn whose message the next `step` gets."""
        ...


class PluginParams(BaseModel):
    """Base of the parameters of an environment and of tools: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def languages(self) -> frozenset[str]:
        """Return the languages of the programs that run in the sandbox, such as "python" and "bash".

        The base class has none. With "session" among them, the programs of an episode share a session of the sandbox.
        """
        return frozenset()


class EnvironmentParams(PluginParams):
    """Base of an environment's parameters."""


@dataclass(frozen=True, slots=True)
class Bound(Generic[Made]):
    """An environment, or tools, with their parameters: makes an object for each episode."""

    name: str
    params: PluginParams
    function: Callable[..., Made]

    def make(self, *arguments: Any) -> Made:
        """Return the environment of a new episode for (prompt, task_seed, sample_seed), or its tools for (prompt)."""
        return self.function(self.params, *arguments)


@dataclass(frozen=True, slots=True)
class Plugin(Generic[Made]):
    """An environment, or tools, by name, with the class of their parameters. `bind` checks the parameters."""

    kind: str
    name: str
    params_type: type[PluginParams]
    function: Callable[..., Made]

    def bind(self, params: Mapping[str, Any] | None = None, base: Path | None = None) -> Bound[Made]:
        """Return it with checked parameters; paths among them start from `base`. Raises: ConfigError."""
        checked = validated(self.params_type, params, base, f"{self.kind} {self.name!r}")
        return Bound(self.name, checked, self.function)


BoundEnvironment = Bound[Environment]


def load(name: str | None = None, path: str | None = None, base: Path | None = None) -> Plugin[Environment]:
    """Return the environment called `name` (a file here or an entry point), or the one at `path`, "file.py:function".

    A file's function is called `environment`. The annotation of its first parameter is the class of its parameters. A
    relative path starts from `base` (the recipe's folder), by default from the working folder.
    Raises: UnknownName, ConfigError.
    """
    function = function_of("environment", "guess", "games.py:my_game", name, path, base)
    key = name or path or ""
    return Plugin("environment", key, *params_of(function, EnvironmentParams, f"environment {key!r}"))


def function_of(
    kind: Literal["environment", "tool"], named: str, at: str, name: str | None, path: str | None, base: Path | None
) -> Any:
    """Return the function of a plug-in by name or by path. `named` and `at` are examples of both for the error.

    Raises: UnknownName; ConfigError unless exactly one of both is given.
    """
    if (name is None) == (path is None):
        article = "an" if kind == "environment" else "a"
        raise ConfigError(f"{article} {kind} needs either a name or a path, e.g. {{name: {named}}} or {{path: {at}}}")
    if name is None:
        return registry.at_path(str(path), base, kind)[0]
    plugin = registry.find("environments" if kind == "environment" else "tools", name)
    attribute = "environment" if kind == "environment" else "tools"
    return getattr(plugin, attribute, None) if isinstance(plugin, ModuleType) else plugin


def validated(model: type[P], params: Mapping[str, Any] | None, base: Path | None, what: str) -> P:
    """Return the parameters as an instance of `model`. Raises: ConfigError, which begins with `what`."""
    try:
        return model.model_validate(dict(params or {}), context={BASE: base})
    except ValidationError as exc:
        raise ConfigError(f"{what}: {registry.refused_parameters(exc.errors(), list(model.model_fields))}") from exc


def params_of(function: object, base_class: type[P], what: str) -> tuple[type[P], Callable[..., Any]]:
    """Return the annotation of a function's first parameter, and the function. Raises: ConfigError."""
    if not callable(function) or not hasattr(function, "__code__"):
        raise ConfigError(f"{what}: expected a function whose first parameter is its {base_class.__name__}")
    try:
        hints = get_type_hints(function)
    except NameError as exc:
        raise ConfigError(f"{what}: an annotation cannot be read: {exc}; import that name in its file") from exc
    code = function.__code__
    first = hints.get(code.co_varnames[0]) if code.co_argcount else None
    if not (isinstance(first, type) and issubclass(first, base_class)):
        raise ConfigError(
            f"{what}: annotate its first parameter with a subclass of {base_class.__name__}, got {first!r}"
        )
    return first, function


def is_deterministic(environment: Environment) -> bool:
    """True unless the environment declares that it cannot repeat itself."""
    return bool(getattr(environment, "deterministic", True))


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


THINKING, END_OF_THINKING = "<think>", "</think>"
MAX_REASON = 300


def answer_of(message: Message) -> str:
    """Return the message's words after its thinking, without spaces around them; empty if thinking does not end."""
    _, end, after = message.content.rpartition(END_OF_THINKING)
    if not end and THINKING in message.content:
        return ""
    return after.strip()


def verdict_of(reward: float, reward_range: tuple[float, float], reason: str = "") -> Verdict:
    """Return the verdict for a reward of that range, as a score in [0, 1]; its reason says if it had to be clamped.

    Raises: EnvironmentFailed if it is not finite, which says nothing about the policy.
    """
    if not math.isfinite(reward):
        raise EnvironmentFailed(f"its reward is {reward}, which is not finite")
    low, high = reward_range
    clamped = min(high, max(low, reward))
    note = "" if clamped == reward else f" (outside {low:g} to {high:g}: clamped)"
    score = (clamped - low) / (high - low)
    text = f"reward {reward:.6g}{note}" + (f": {reason}" if reason else "")
    return Verdict("graded", score, text[:MAX_REASON])


def _in_order(value: tuple[float, float]) -> tuple[float, float]:
    low, high = value
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"reward_range must be [lowest, highest], two finite numbers in order, got [{low}, {high}]")
    return value


RewardRange = Annotated[tuple[float, float], AfterValidator(_in_order)]
"""Lowest and highest reward of another library: finite, and in order."""
