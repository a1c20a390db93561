"""Tools: the decorator `@tool` makes a function a tool, and a toolbox answers the calls of a message.

The annotations of the function are the schema of its arguments, its docstring the description. A call that is the
policy's mistake becomes an observation: an unknown tool, arguments that do not fit, and ValueError, ArithmeticError,
LookupError or an exception listed in `wrong`. Any other exception leaves the toolbox: the host failed, not the policy.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from verizero.pipeline import registry
from verizero.pipeline.environments.base import PluginParams, ToolSchema, ToolUse, params_of, validated
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import did_you_mean
from verizero.pipeline.types import Call, Message, Prompt

MISTAKES: tuple[type[Exception], ...] = (ValueError, ArithmeticError, LookupError)
"""Exceptions that are the policy's mistakes in every tool."""
UNKNOWN = "unknown"
"""Calls of tools that do not exist are counted under this name: the policy must not choose names of metrics."""
MEANINGS = {
    "missing": "is missing",
    "int_parsing": "is not an integer",
    "int_type": "is not an integer",
    "int_from_float": "is not an integer",
    "float_parsing": "is not a number",
    "float_type": "is not a number",
    "string_type": "is not a text",
    "bool_parsing": "is neither true nor false",
}
"""Short texts for pydantic's most frequent errors, written after the argument's name."""


class ToolParams(PluginParams):
    """Base of the parameters of a file of tools."""


class Arguments(BaseModel):
    """Base of a tool's arguments. Numbers may be texts, and texts numbers: in forms with tags all values are text."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, arbitrary_types_allowed=True)


class WrongCall(Exception):
    """A call that is the policy's mistake; the text of this exception is shown to the policy."""


class Tool:
    """A function that the policy may call. Made by `@tool`."""

    def __init__(self, function: Callable[..., Any], name: str, wrong: tuple[type[Exception], ...] = ()) -> None:
        """`wrong` lists further exceptions that are the policy's mistakes.

        Raises: ConfigError if the arguments or the docstring do not describe a tool.
        """
        self.function, self.name = function, name
        self.wrong = (*MISTAKES, *wrong)
        self._fields, self._model, self.schema = _shape(function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def answer(self, arguments: Mapping[str, Any]) -> str:
        """Return the result of a call as text. Raises: WrongCall for the policy's mistakes."""
        try:
            checked = self._model.model_validate(dict(arguments))
        except ValidationError as exc:
            raise WrongCall(self._refused(exc)) from exc
        values = {name: getattr(checked, field) for field, name in self._fields.items()}
        try:
            return result_text(self.function(**values))
        except self.wrong as exc:
            raise WrongCall(_exception_text(exc)) from exc

    def _refused(self, exc: ValidationError) -> str:
        known = list(self._fields.values())
        lines = []
        for error in exc.errors(include_url=False):
            argument = ".".join(str(part) for part in error["loc"])[:100]
            if error["type"] == "extra_forbidden":
                hint = did_you_mean(argument, known, f"only {', '.join(known) or 'nothing'}", most=1)
                lines.append(f"{self.name} takes no {argument}. {hint}")
            else:
                meaning = MEANINGS.get(error["type"])
                lines.append(f"{argument} {meaning}" if meaning else f"{argument}: {error['msg'].lower()}")
        return ". ".join(lines)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, wrong: tuple[type[Exception], ...] = ()
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Any = None, /, *, name: str | None = None, wrong: tuple[type[Exception], ...] = ()) -> Any:
    """Make a tool of a function with annotated arguments and a docstring. Its name is the function's, unless set.

    Example: @tool
             def add(a: int, b: int) -> int:
                 \"\"\"Return a + b.\"\"\"
                 return a + b
    """

    def make(f: Callable[..., Any]) -> Tool:
        return Tool(f, name or f.__name__, wrong)

    return make if function is None else make(function)


class Toolbox:
    """The tools of an episode: answers the calls of a message, and closes the tools at the end."""

    def __init__(self, tools: Sequence[Tool], close: Sequence[Callable[[], None]] = ()) -> None:
        """`close`: functions that close the tools, e.g. a database. Raises: ConfigError if two tools have one name."""
        self.tools = {t.name: t for t in tools}
        if len(self.tools) < len(tools):
            names = [t.name for t in tools]
            raise ConfigError(f"two tools are called {next(n for n in names if names.count(n) > 1)!r}; rename one")
        self._close = list(close)

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools as the policy's template shows them."""
        return tuple(t.schema for t in self.tools.values())

    def answer(self, message: Message) -> tuple[tuple[Message, ...], tuple[ToolUse, ...]]:
        """Return the answers to the message's calls, in order, and the calls for the counts.

        Raises: what a tool raises, unless it is the policy's mistake.
        """
        answered = [self._call(call) for call in message.calls]
        return tuple(m for m, _ in answered), tuple(u for _, u in answered)

    def _call(self, call: Call) -> tuple[Message, ToolUse]:
        called = self.tools.get(call.name)
        wrong = False
        try:
            if called is None:
                hint = did_you_mean(call.name, self.tools, f"tools: {', '.join(self.tools) or 'none'}", most=1)
                raise WrongCall(f"no tool is called {call.name[:100]}. {hint}")
            text = called.answer(call.arguments)
        except WrongCall as exc:
            wrong, text = True, str(exc)
        use = ToolUse(UNKNOWN if called is None else called.name, wrong)
        return Message("tool", text, answers=call.id, name=call.name), use

    def close(self) -> None:
        """Close all tools, each once, even if one of them fails."""
        functions, self._close = self._close, []
        failures = []
        for close in functions:
            try:
                close()
            except Exception as exc:
                failures.append(exc)
        if failures:
            raise failures[0]


MakeTools = Callable[[Any, Prompt], Toolbox]


@dataclass(frozen=True, slots=True)
class BoundTools:
    """Tools with their parameters: makes a toolbox for each episode.

    Example: load("calculator").bind()
    """

    name: str
    params: ToolParams
    function: MakeTools

    def make(self, prompt: Prompt) -> Toolbox:
        """Return the tools of a new episode."""
        return self.function(self.params, prompt)


@dataclass(frozen=True, slots=True)
class ToolsPlugin:
    """Tools by name, with the class of their parameters.

    Example: load("sql")
    """

    name: str
    params_type: type[ToolParams]
    function: MakeTools

    def bind(self, params: Mapping[str, Any] | None = None, base: Path | None = None) -> BoundTools:
        """Return these tools with validated parameters. Relative paths among them start from `base`.

        Raises: ConfigError naming the parameter, its value and what is allowed.
        """
        return BoundTools(self.name, validated(self.params_type, params, base, f"tool {self.name!r}"), self.function)


def load(name: str | None = None, path: str | None = None, base: Path | None = None) -> ToolsPlugin:
    """Return the tools called `name` (a file here or an entry point), or those at `path`, "file.py:function".

    A file here has `Params` and `tools(params, prompt) -> Toolbox`. A path or entry point may name such a function, or
    a function decorated with @tool, which has no parameters. Raises: UnknownName, ConfigError.
    """
    if (name is None) == (path is None):
        raise ConfigError("a tool needs either a name or a path, e.g. {name: calculator} or {path: my_tools.py:add}")
    if name is not None:
        plugin = registry.find("tools", name)
        function = getattr(plugin, "tools", None) if isinstance(plugin, ModuleType) else plugin
    else:
        assert path is not None
        function = registry.at_path(path, base, "tool")[0]
    key = name or path or ""
    if isinstance(function, Tool):
        single = function
        return ToolsPlugin(key, ToolParams, lambda params, prompt: Toolbox([single]))
    params_type, make = params_of(function, ToolParams, f"tool {key!r}")
    return ToolsPlugin(key, params_type, make)


def result_text(value: Any) -> str:
    """Return a tool's result as text: a text as it is, None as "done", other values as JSON."""
    if isinstance(value, str):
        return value
    return "done" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _exception_text(exc: Exception) -> str:
    # A KeyError's text is the representation of its key.
    text = str(exc.args[0]) if isinstance(exc, LookupError) and exc.args else str(exc)
    return text or type(exc).__name__.lower()


@dataclass(frozen=True, slots=True)
class _Key:
    """The parts of a function that its arguments and schema depend on, as a key for a cache.

    A plug-in makes its functions again for every episode, and a model of arguments takes a millisecond to make.
    """

    name: str
    code: CodeType
    description: str | None
    defaults: tuple[Any, ...] | None
    keyword_defaults: tuple[tuple[str, Any], ...]
    annotations: tuple[tuple[str, Any], ...]
    function: Callable[..., Any] = field(compare=False)


Shape = tuple[dict[str, str], type[Arguments], ToolSchema]


def _shape(function: Callable[..., Any], name: str) -> Shape:
    """Return the arguments' names by the fields of their model, the model, and the schema."""
    keywords = tuple((getattr(function, "__kwdefaults__", None) or {}).items())
    annotations = tuple(getattr(function, "__annotations__", {}).items())
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        raise ConfigError(f"tool {name!r}: expected a function written in Python, got {function!r:.80}")
    key = _Key(name, code, function.__doc__, getattr(function, "__defaults__", None), keywords, annotations, function)
    try:
        return _cached_shape(key)
    except TypeError:  # a default that has no hash
        return _new_shape(key)


def _new_shape(key: _Key) -> Shape:
    fields, model = _arguments(key.function, key.name)
    return fields, model, ToolSchema(key.name, _description(key.function, key.name), _parameters(model))


_cached_shape = lru_cache(maxsize=512)(_new_shape)


def _description(function: Callable[..., Any], name: str) -> str:
    text = inspect.getdoc(function)
    if not text:
        raise ConfigError(f"tool {name!r}: its function has no docstring, which the policy would read")
    return text


def _arguments(function: Callable[..., Any], name: str) -> tuple[dict[str, str], type[Arguments]]:
    """Return the argument of each field of the model, and the model itself.

    Fields have names of their own, so that an argument may have any name, "schema" or "copy" included.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as exc:
        raise ConfigError(f"tool {name!r}: an annotation cannot be read: {exc}; import that name in its file") from exc
    fields: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: argument {parameter.name!r} has no fixed name; write each argument out")
        if parameter.name not in hints:
            raise ConfigError(f"tool {name!r}: argument {parameter.name!r} has no annotation; write its type")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"field_{len(fields)}"] = parameter.name
        definitions[f"field_{len(fields) - 1}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    return fields, create_model(f"{name}_arguments", __base__=Arguments, **definitions)


def _parameters(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of the arguments, without titles, which repeat the names."""
    schema = model.model_json_schema(by_alias=True)
    schema.pop("description", None)
    return {"properties": {}, **_untitled(schema)}


def _untitled(node: Any) -> Any:
    if isinstance(node, list):
        return [_untitled(item) for item in node]
    if not isinstance(node, dict):
        return node
    rest = {k: v for k, v in node.items() if k != "title" or not isinstance(v, str)}
    return {
        k: {name: _untitled(inner) for name, inner in v.items()} if k in ("properties", "$defs") else _untitled(v)
        for k, v in rest.items()
    }
