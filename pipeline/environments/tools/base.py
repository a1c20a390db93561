"""Tools: the decorator `@tool` makes a function a tool, and a toolbox answers the calls of a message.

The annotations of the function are the schema of its arguments, its docstring the description. A call that is the
policy's mistake becomes an observation: an unknown tool, arguments that do not fit, and ValueError, ArithmeticError,
LookupError or an exception listed in `wrong`. Any other exception leaves the toolbox: the host failed, not the policy.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from verizero.pipeline.environments.base import Bound, Plugin, PluginParams, ToolSchema, ToolUse, function_of, params_of
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import did_you_mean
from verizero.pipeline.types import Call, Message

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
            value = self.function(**values)
            if value is None or isinstance(value, str):
                return "done" if value is None else value
            return json.dumps(value, ensure_ascii=False, default=str)
        except self.wrong as exc:
            # A KeyError's text is the representation of its key.
            text = str(exc.args[0]) if isinstance(exc, LookupError) and exc.args else str(exc)
            raise WrongCall(text or type(exc).__name__.lower()) from exc

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
        """Return the answers to the message's calls, and the calls to count. Raises: what breaks a tool itself."""
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


BoundTools = Bound[Toolbox]


def load(name: str | None = None, path: str | None = None, base: Path | None = None) -> Plugin[Toolbox]:
    """Return the tools called `name` (a file here or an entry point), or those at `path`, "file.py:function".

    A file here has `Params` and `tools(params, prompt) -> Toolbox`. A path or entry point may name such a function, or
    a function decorated with @tool, which has no parameters. Raises: UnknownName, ConfigError.
    """
    function, key = function_of("tool", "python", "my_tools.py:add", name, path, base), name or path or ""
    if isinstance(function, Tool):
        single = function
        return Plugin("tool", key, ToolParams, lambda params, prompt: Toolbox([single]))
    return Plugin("tool", key, *params_of(function, ToolParams, f"tool {key!r}"))


Shape = tuple[dict[str, str], type[Arguments], ToolSchema]
MOST_SHAPES = 512
_SHAPES: dict[tuple[Any, ...], Shape] = {}
"""Shapes by what they depend on: functions are made again for every episode, and a model takes a millisecond."""


def _shape(function: Callable[..., Any], name: str) -> Shape:
    """Return the arguments' names by the fields of their model, the model, and the schema."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        raise ConfigError(f"tool {name!r}: expected a function written in Python, got {function!r:.80}")
    parts = [getattr(function, part, None) for part in ("__doc__", "__defaults__", "__kwdefaults__", "__annotations__")]
    key = (name, code, *(tuple(part.items()) if isinstance(part, dict) else part for part in parts))
    try:
        known = _SHAPES.get(key)
    except TypeError:  # a default that has no hash
        return _new_shape(function, name)
    if known is None:
        if len(_SHAPES) >= MOST_SHAPES:
            _SHAPES.clear()
        known = _SHAPES[key] = _new_shape(function, name)
    return known


def _new_shape(function: Callable[..., Any], name: str) -> Shape:
    description = inspect.getdoc(function)
    if not description:
        raise ConfigError(f"tool {name!r}: its function has no docstring, which the policy would read")
    fields, model = _arguments(function, name)
    return fields, model, ToolSchema(name, description, _parameters(model))


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
