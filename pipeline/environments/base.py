"""The protocol of an environment: it starts an episode, answers the policy's messages, and is closed.

An environment is used for one episode. It sees messages, never tokens. Its own exceptions are failures of the
infrastructure: the episode then has no reward and leaves its group. What the policy did wrong is a message to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar, get_type_hints, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import Message, Prompt, Verdict

BASE = "base"
"""Key in pydantic's validation context: the folder that relative paths start from, or None."""
P = TypeVar("P", bound=BaseModel)


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
    """The beginning of an episode.

    Example: Start(tools=(add_schema,))
    """

    messages: tuple[Message, ...] = ()
    """The conversation so far: system and user messages. Empty: the prompt's own question, as without environment."""
    tools: tuple[ToolSchema, ...] = ()
    state: str | None = None
    """A name of the state that the policy sees; equal names mean equal states, within a task."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool, for the counts: wrong means that the arguments or the tool's name were the policy's mistake.

    Example: ToolUse("add", wrong=False)
    """

    name: str
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """An environment's answer to a message of the policy.

    Example: Reply((Message("user", "lower"),), reward=-0.1, state="1..15")
    """

    messages: tuple[Message, ...] = ()
    """Messages of tools and users, in order, that the policy is shown next. Empty only if the episode is done."""
    done: bool = False
    reward: float | None = None
    """The reward of this turn: any finite number."""
    state: str | None = None
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
        """Return the answer to the policy's message, whose calls are parsed. Any exception is a failure of the host."""
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


CountPrompt = Callable[[Sequence[Message], Sequence[ToolSchema]], int]
"""Returns the number of tokens in the prompt for a whole history with these tools. Raises: DataError."""


@runtime_checkable
class CountsPrompts(Protocol):
    """An environment that counts the tokens of prompts."""

    def count_by(self, count: CountPrompt) -> None:
        """Receive the function that counts; it may be called within `start` and `step`."""
        ...


class PluginParams(BaseModel):
    """Base of the parameters of an environment and of tools: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def languages(self) -> frozenset[str]:
        """Return the languages of the programs that run in the sandbox, such as "python" and "bash"; here none."""
        return frozenset()


class EnvironmentParams(PluginParams):
    """Base of an environment's parameters."""


MakeEnvironment = Callable[[Any, Prompt, int, int], Environment]
"""The function of a plug-in: (params, prompt, task_seed, sample_seed) -> the environment of one episode."""


@dataclass(frozen=True, slots=True)
class BoundEnvironment:
    """An environment with its parameters: makes one object for each episode.

    Example: load("guess").bind({"tries": 5})
    """

    name: str
    params: EnvironmentParams
    function: MakeEnvironment

    def make(self, prompt: Prompt, task_seed: int, sample_seed: int) -> Environment:
        """Return the environment of a new episode."""
        return self.function(self.params, prompt, task_seed, sample_seed)


@dataclass(frozen=True, slots=True)
class EnvironmentPlugin:
    """An environment by name, with the class of its parameters. `bind` checks the parameters.

    Example: load("guess")
    """

    name: str
    params_type: type[EnvironmentParams]
    function: MakeEnvironment

    def bind(self, params: Mapping[str, Any] | None = None, base: Path | None = None) -> BoundEnvironment:
        """Return this environment with validated parameters. Relative paths among them start from `base`.

        Raises: ConfigError naming the parameter, its value and what is allowed.
        """
        checked = validated(self.params_type, params, base, f"environment {self.name!r}")
        return BoundEnvironment(self.name, checked, self.function)


def load(name: str | None = None, path: str | None = None, base: Path | None = None) -> EnvironmentPlugin:
    """Return the environment called `name` (a file here or an entry point), or the one at `path`, "file.py:function".

    A file's function is called `environment`. The annotation of its first parameter is the class of its parameters. A
    relative path starts from `base` (the recipe's folder), by default from the working folder.
    Raises: UnknownName, ConfigError.
    """
    if (name is None) == (path is None):
        raise ConfigError(
            "an environment needs either a name or a path, e.g. {name: guess} or {path: games.py:my_game}"
        )
    if name is not None:
        plugin = registry.find("environments", name)
        function = getattr(plugin, "environment", None) if isinstance(plugin, ModuleType) else plugin
    else:
        assert path is not None
        function = registry.at_path(path, base, "environment")[0]
    key = name or path or ""
    params_type, make = params_of(function, EnvironmentParams, f"environment {key!r}")
    return EnvironmentPlugin(key, params_type, make)


def validated(model: type[P], params: Mapping[str, Any] | None, base: Path | None, what: str) -> P:
    """Return the parameters as an instance of `model`. Raises: ConfigError, which begins with `what`."""
    try:
        return model.model_validate(dict(params or {}), context={BASE: base})
    except ValidationError as exc:
        errors = [dict(error) for error in exc.errors()]
        raise ConfigError(f"{what}: {registry.refused_parameters(errors, list(model.model_fields))}") from exc


def params_of(function: object, base_class: type[P], what: str) -> tuple[type[P], Callable[..., Any]]:
    """Return the annotation of a function's first parameter, and the function.

    Raises: ConfigError if there is no function, or its annotation is no subclass of `base_class`.
    """
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
