"""The way from a recipe's `algorithm:` section to its parts.

A file of one algorithm has `class Params(PolicyParams)` and `parts(params) -> Parts`. It states `SOURCE` (the paper)
and `DEPARTURES` (the differences from it), and opens with its objective, in the notation that `verizero check` shows: r
is the importance ratio, A the advantage, sg stops the gradient. A file of several has a class for each, which
`registry.named` puts into the file's `PLUGINS`. It loads no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl import rules
from verizero.pipeline.rl.explain import DEFAULT_SETTING, Setting, explain
from verizero.pipeline.rl.parts import AlgorithmParams, Parts


def chosen(algorithm: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name or the path of the algorithm that a recipe chooses, and its parameters. Raises: ConfigError."""
    params = dict(algorithm)
    # null takes back what a recipe that is extended, or the section of a stage, has chosen
    named = [choice for key in ("name", "path") if (choice := params.pop(key, None)) is not None]
    if len(named) != 1 or not isinstance(named[0], str):
        raise ConfigError(
            "rl.algorithm needs a name or the path of a file, e.g. {name: grpo} or {path: my_algorithm.py}, got "
            f"{dict(algorithm)!r}"
        )
    return named[0], params


def load_algorithm(name: str, params: Mapping[str, Any] | None = None) -> tuple[AlgorithmParams, Parts]:
    """Return the validated parameters of the algorithm `name`, and its parts, which have passed `rules.check`.

    `name` may be the path of a file, which ends in .py.

    Raises: UnknownName with the near ones; ConfigError for an unknown or wrong parameter, for parts that make no sense
    together, or for a plug-in without `Params` and `parts`.
    """
    module = _module(name)
    params_type, choose = getattr(module, "Params", None), getattr(module, "parts", None)
    if not (isinstance(params_type, type) and issubclass(params_type, AlgorithmParams) and callable(choose)):
        raise ConfigError(f"algorithm {name!r} must have a class Params(AlgorithmParams) and a function parts(params)")
    try:
        checked = params_type.model_validate(dict(params or {}))
    except ValidationError as exc:
        reason = registry.refused_parameters(exc.errors(), list(params_type.model_fields))
        raise ConfigError(f"algorithm {name!r}: {reason}") from exc
    try:
        parts = choose(checked)
        if not isinstance(parts, Parts):
            raise ConfigError(f"parts() must return Parts, got {type(parts).__name__}")
        rules.check(parts)
    except ConfigError as exc:
        raise ConfigError(f"algorithm {name!r}: {exc}") from exc
    return checked, parts


def _module(name: str) -> Any:
    is_file = name.endswith(".py")
    return registry.import_file(Path(name), "algorithm") if is_file else registry.find("algorithms", name)


def weighted(parts: Parts, weights: tuple[float, ...]) -> Parts:
    """Return the parts with the recipe's weights of reward components, where they take some and name none themselves.

    Raises: ConfigError for weights that the advantage does not take.
    """
    if not parts.needs_components or not weights or parts.advantage.options.get("weights") is not None:
        return parts
    options = {**parts.advantage.options, "weights": weights}
    parts = replace(parts, advantage=replace(parts.advantage, options=options))
    rules.check(parts)
    return parts


def explain_algorithm(
    name: str,
    params: Mapping[str, Any] | None = None,
    *,
    max_response_tokens: int,
    setting: Setting = DEFAULT_SETTING,
    weights: tuple[float, ...] = (),
) -> str:
    """Return what `verizero check` shows of the algorithm `name` with the recipe's longest response and reward weights.

    Departures are those that the file declares, and every parameter that differs from the preset's default.

    Raises: as `load_algorithm`.
    """
    module = _module(name)
    checked, parts = load_algorithm(name, params)
    changed = []
    for key in sorted(checked.model_fields_set - {"allow"}):
        field = type(checked).model_fields[key]
        if not field.is_required() and (value := getattr(checked, key)) != field.default:
            changed.append(f"{key} is {value!r}, the preset has {field.default!r}")
    return explain(
        weighted(parts, weights).resolve(max_response_tokens),
        name=name,
        source=getattr(module, "SOURCE", ""),
        departures=[*getattr(module, "DEPARTURES", ()), *changed],
        setting=setting,
    )
