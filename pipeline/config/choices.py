"""Verifiers and environments as recipes choose them: by name or by path, with parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, ValidationInfo, model_validator

from verizero.pipeline.config.sections import Section
from verizero.pipeline.errors import DataError
from verizero.pipeline.registry import PICKLED

if TYPE_CHECKING:
    from verizero.verifiers.base import BoundVerifier

ENVIRONMENT = "environment"
"""`Prompt.verifier` of prompts whose environment gives the verdict."""
REWARDS = "rewards"
"""The verifier that sums reward functions."""
STAGE = "stage:"
"""Prefix of a model's name: "stage:NAME" is the reward model that the recipe's stage NAME trains."""


def is_path(key: str) -> bool:
    """True for "file.py:function", or the file of a function that was passed as an object."""
    return ".py:" in key or f"{PICKLED}:" in key


class PluginChoice(Section):
    """A plug-in by name or by path ("checks.py:my_check", from the recipe's folder), with its parameters."""

    field_and_example: ClassVar[str]
    """The recipe's field and an example of a name, for error messages."""
    name: str | None = None
    path: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def checked_name(self) -> str | None:
        """Return the name; None if the plug-in is given by its path. Raises: ValueError unless exactly one is given."""
        if (self.name is None) == (self.path is None):
            field, example = self.field_and_example.split()
            raise ValueError(f"give exactly one of {field}.name (e.g. {example}) and {field}.path (file.py:function)")
        return self.name

    @property
    def key(self) -> str:
        """The choice as one text, for a prompt's field: name or path, then the parameters as JSON, if any."""
        plugin = self.name or self.path or ""
        return plugin + (json.dumps(self.params, sort_keys=True, ensure_ascii=False) if self.params else "")

    @classmethod
    def of_key(cls, key: str, folder: Path | None = None) -> Self:
        """Return the choice that a `key` names. Raises: UnknownName, ConfigError; DataError if it is not JSON."""
        name, brace, arguments = key.partition("{")
        try:
            params = json.loads(brace + arguments) if brace else {}
        except ValueError as exc:
            raise DataError(f"{key!r:.120} has parameters that are no JSON: {exc}") from exc
        fields = {"path" if is_path(name) else "name": name, "params": params}
        return cls.model_validate(fields, context={"base": folder})


class VerifierChoice(PluginChoice):
    """A verifier with its parameters."""

    field_and_example: ClassVar[str] = "verifier math"
    time_s: float = Field(
        30,
        gt=0,
        description="a verifier of your own: seconds for a response, or a call if it grades batches; then it failed",
    )

    @model_validator(mode="after")
    def _exists(self, info: ValidationInfo) -> Self:
        name = self.checked_name()
        if name is not None and name != ENVIRONMENT:
            from verizero.verifiers.base import load

            load(name).bind(self.params, (info.context or {}).get("base"))
        return self

    def bind(self, folder: Path | None, params: Mapping[str, Any] | None = None) -> BoundVerifier[Any]:
        """Return the verifier with its parameters, or `params`, from `folder`. Raises: UnknownName, ConfigError."""
        from verizero.verifiers.base import load

        return load(self.name, self.path, folder).bind(self.params if params is None else params, folder, self.time_s)

    @property
    def stage(self) -> str | None:
        """Name of the stage that trains this verifier's reward model, else None."""
        model = self.params.get("model")
        return model.removeprefix(STAGE) if isinstance(model, str) and model.startswith(STAGE) else None


class EnvironmentChoice(PluginChoice):
    """An environment with its parameters."""

    field_and_example: ClassVar[str] = "environment guess"

    @model_validator(mode="after")
    def _exists(self, info: ValidationInfo) -> Self:
        name = self.checked_name()
        if name is not None:
            from verizero.pipeline.environments.base import load

            load(name).bind(self.params, (info.context or {}).get("base"))
        return self
